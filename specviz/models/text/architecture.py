"""Architecture facts the loop and the drafters need, read from a language model's configuration and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Where a chat template ends a turn with one of these, the model does too, whatever its generation config says.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_turn|>", "<end_of_turn>", "<|end|>", "<|return|>", "</s>")


ENDLESS = 1 << 20
"""Context of a model that names none: a recurrence has no window."""


@dataclass(frozen=True)
class Architecture:
    """The shape of a text model. ``vocab_size`` counts logits, which may be more than the tokenizer's tokens.

    ``layer_types`` has one word a layer: "full_attention", "sliding_attention", "linear_attention", …
    ``recurrent`` says that some layer keeps a state that cannot hold branches.
    """

    kind: str
    layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    heads: int
    kv_heads: int
    head_size: int
    layer_types: tuple[str, ...]
    sliding_window: int | None
    recurrent: bool
    tied_embeddings: bool
    parameters: int
    attention: str

    @property
    def only_full_attention(self) -> bool:
        """Whether every layer sees all of the cache, so that any tree can be verified without a workaround."""
        return not self.recurrent and set(self.layer_types) == {"full_attention"}


def architecture_of(model: Any) -> Architecture:
    """Read the shape of a loaded causal language model."""
    config = model.config.get_text_config(decoder=True)
    heads = int(getattr(config, "num_attention_heads", 0) or getattr(config, "num_heads", 1))
    kinds = _layer_types(model, config)
    return Architecture(
        kind=str(config.model_type),
        layers=int(config.num_hidden_layers),
        hidden_size=int(config.hidden_size),
        vocab_size=int(model.get_output_embeddings().weight.shape[0]),
        context_length=int(getattr(config, "max_position_embeddings", 0) or ENDLESS),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_size=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        layer_types=kinds,
        sliding_window=int(config.sliding_window) if "sliding_attention" in kinds else None,
        recurrent=bool(model._is_stateful) or any(kind in {"linear_attention", "conv"} for kind in kinds),
        tied_embeddings=model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        attention=str(model.config._attn_implementation),
    )


def _layer_types(model: Any, config: Any) -> tuple[str, ...]:
    """The configuration's own list, or what transformers' caches assume where there is none."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        return tuple(layer_types)
    if model._is_stateful:
        kind = "linear_attention"
    elif getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        kind = "sliding_attention"
    elif getattr(config, "attention_chunk_size", None):
        kind = "chunked_attention"
    else:
        kind = "full_attention"
    return (kind,) * int(config.num_hidden_layers)


def eos_ids_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends an answer: of the generation config, the config, the tokenizer, and the chat template."""
    eos_ids: set[int] = set()
    generation = getattr(model, "generation_config", None)
    config = model.config.get_text_config(decoder=True)
    for source in (generation, config, tokenizer):
        ends = getattr(source, "eos_token_id", None)
        if ends is not None:
            eos_ids.update(ends if isinstance(ends, (list, tuple)) else [ends])
    template = tokenizer.chat_template
    vocabulary = tokenizer.get_vocab()
    if template:
        written = template if isinstance(template, str) else "".join(template.values())
        eos_ids.update(vocabulary[end] for end in _TURN_ENDS if end in written and end in vocabulary)
    return frozenset(int(end) for end in eos_ids)
