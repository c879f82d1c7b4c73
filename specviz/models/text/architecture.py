"""What a run has to know of a language model: how far it sees, and which tokens end an answer."""

from __future__ import annotations

from typing import Any

# Where a chat template ends a turn with one of these, the model does too, whatever its generation config says.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_turn|>", "<end_of_turn>", "<|end|>", "<|return|>", "</s>")


ENDLESS = 1 << 20
"""Context of a model that names none: a recurrence has no window."""


def context_length_of(model: Any) -> int:
    """Most tokens that a loaded model sees, its own answer included."""
    return int(getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", 0) or ENDLESS)


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
