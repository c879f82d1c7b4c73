"""Tiny random checkpoints with MTP layers of their own, and what such a layer computes, written out from the published formula.

The formula (DeepSeek-AI 2024, arXiv 2412.19437, equations 21 to 23, in the order that checkpoints have): a norm of the embedding
of the next token beside a norm of the state, a projection, one of the model's own decoder layers, a norm, the model's own head.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer, Glm4MoeRMSNorm
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeDecoderLayer, Qwen3_5MoeRMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer, Qwen3NextRMSNorm

from specviz.models.hub.published import Fit
from tests.support.tiny.hybrid import VOCAB, as_drawn, delta, delta_experts, delta_moe

HIDDEN = 32


def glm(seed: int = 0) -> Any:
    """GLM-4.5's shape: all layers attend, two experts of six in two groups beside a shared one."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 12, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1,
        "use_qk_norm": True, "attention_bias": True, "initializer_range": 0.25, "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "num_mtp_layers": 1,
    }  # fmt: skip
    return as_drawn(Glm4MoeForCausalLM(Glm4MoeConfig(vocab_size=VOCAB, **shape)))


@dataclass
class Made:
    """A model, its MTP layer's parts as modules, and the tensors by their names in a checkpoint."""

    model: Any
    layer: nn.Module
    norm_of_embedding: nn.Module
    norm_of_state: nn.Module
    projection: nn.Linear
    last_norm: nn.Module
    tensors: dict[str, Tensor]

    @property
    def fit(self) -> Fit:
        model = self.model
        layers = model.config.num_hidden_layers
        return Fit("tiny", layers, model.get_input_embeddings().weight, model.get_output_embeddings().weight)

    def states(self, ids: list[int]) -> Tensor:
        """The model's states behind its final norm, [token, hidden]."""
        hidden: Tensor = self.model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        return hidden.double()

    def foretold(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """The formula over rows of next tokens [row] and states [row, hidden]: logits [row, vocab], and what it feeds itself."""
        rows = len(tokens)
        embedded = self.model.get_input_embeddings()(tokens)
        both = torch.cat((self.norm_of_embedding(embedded), self.norm_of_state(states)), -1)
        entering = self.projection(both)[None]
        mask = torch.full((rows, rows), float("-inf"), dtype=torch.float64).triu(1)[None, None]
        turns = tuple(part.double() for part in self.model.model.rotary_emb(entering, torch.arange(rows)[None]))
        output = self.layer(entering, position_embeddings=turns, attention_mask=mask)
        output = self.last_norm(output[0] if isinstance(output, tuple) else output)[0]
        return self.model.lm_head(output), output


_KINDS: dict[str, tuple[Any, type[nn.Module], type[nn.Module], str]] = {
    "qwen3_5": (delta, Qwen3_5DecoderLayer, Qwen3_5RMSNorm, "mtp"),
    "qwen3_5_moe": (delta_moe, Qwen3_5MoeDecoderLayer, Qwen3_5MoeRMSNorm, "mtp"),
    "qwen3_next": (delta_experts, Qwen3NextDecoderLayer, Qwen3NextRMSNorm, "mtp"),
    "glm4_moe": (glm, Glm4MoeDecoderLayer, Glm4MoeRMSNorm, "layers"),
}
KINDS = tuple(_KINDS)


def made(kind: str, seed: int = 0) -> Made:
    """A tiny model of this kind with a random MTP layer."""
    build, layer_class, norm_class, layout = _KINDS[kind]
    model = build(seed)
    config = model.config
    config._attn_implementation = "eager"
    torch.manual_seed(seed + 7)
    full = next((at for at, what in enumerate(getattr(config, "layer_types", None) or ()) if what == "full_attention"), 2)
    layer = layer_class(config, full)
    eps = config.rms_norm_eps
    before, state, last = (norm_class(config.hidden_size, eps=eps) for _ in range(3))
    projection = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
    parts = nn.ModuleDict({"layer": layer, "before": before, "state": state, "projection": projection, "last": last})
    with torch.no_grad():
        for name, value in [*parts.named_parameters(), *parts.named_buffers()]:
            drawn = (0.2 if value.ndim < 2 else 0.25) * torch.randn(value.shape)
            value.copy_(
                drawn + (1 if value.ndim == 1 and "norm" in name + "norm" and layout == "layers" and "bias" not in name else 0)
            )
    parts.double().eval().requires_grad_(False)
    named = {f"layer.{name}": value for name, value in layer.state_dict().items()}
    named |= {"before": before.weight, "state": state.weight, "projection": projection.weight, "last": last.weight}
    rename = _outer if layout == "mtp" else lambda name: _inner(name, config.num_hidden_layers)
    tensors = {rename(name): value.clone() for name, value in _apart(named).items()}
    return Made(model, layer, before, state, projection, last, tensors)


def _outer(name: str) -> str:
    fixed = {"before": "pre_fc_norm_embedding", "state": "pre_fc_norm_hidden", "projection": "fc", "last": "norm"}
    return f"mtp.{fixed[name]}.weight" if name in fixed else f"mtp.layers.0.{name.removeprefix('layer.')}"


def _inner(name: str, layers: int) -> str:
    fixed = {"before": "enorm", "state": "hnorm", "projection": "eh_proj", "last": "shared_head.norm"}
    return f"model.layers.{layers}." + (f"{fixed[name]}.weight" if name in fixed else name.removeprefix("layer."))


def _apart(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts one by one, as Qwen3-Next's and GLM's checkpoints have them."""
    tensors: dict[str, Tensor] = {}
    for name, value in named.items():
        if name.endswith("experts.gate_up_proj"):
            for number, expert in enumerate(value):
                gate, up = expert.chunk(2)
                start = name.removesuffix("gate_up_proj")
                tensors |= {f"{start}{number}.gate_proj.weight": gate, f"{start}{number}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            start = name.removesuffix("down_proj")
            tensors |= {f"{start}{number}.down_proj.weight": expert for number, expert in enumerate(value)}
        else:
            tensors[name] = value
    return tensors


def stored(folder: Path, one: Made, tensors: dict[str, Tensor] | None = None, **settings: Any) -> Path:
    """The whole checkpoint with its MTP layer in ``folder``."""
    one.model.save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file({**load_file(file), **(one.tensors if tensors is None else tensors)}, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder
