"""Reader of MTP layers, trained with a model and stored in its checkpoint: DeepSeek-AI 2024 (arXiv 2412.19437, 2.2).

Two layouts: ``mtp.*`` (Qwen3-Next, Qwen3.5: ``pre_fc_norm_embedding``, ``pre_fc_norm_hidden``, ``fc``, ``layers.0``,
``norm``) and a decoder layer behind the model's own (DeepSeek-V3, GLM-4.5: ``enorm``, ``hnorm``, ``eh_proj``,
``shared_head``). Both compute ``layer(fc [norm(embedding); norm(state)])``, a norm, and the model's own head. One layer drafts a
chain by feeding itself, as in engines; its first state is the model's behind the final norm. Sources are vLLM's
``qwen3_next_mtp``, ``qwen3_5_mtp``, ``deepseek_mtp`` and ``glm4_moe_mtp``, and transformers' ``MtpModel``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.head_config import Experts, HeadConfig
from specviz.errors import ModelUnavailable, shown
from specviz.models.heads.head_parts import assembled, conventions, head_sizes
from specviz.models.heads.head_settings import OURS, rotary, section, switch, whole_number
from specviz.models.hub.published import Fit, Repository

KIND = "MTP"
PROMISES = ("mtp_num_hidden_layers", "num_mtp_layers", "num_nextn_predict_layers")
"""Settings with a model's number of MTP layers."""
_MOST_LAYERS = 1000
"""Most layers of a model whose settings are built, beyond any published one; its MTP layers may be stored apart from it."""
_OUTER = re.compile(r"(?:model\.)?mtp\.(.+)")
_INNER = re.compile(r"(?:model\.)?(?:language_model\.)?layers\.(\d+)\.(.+)")
_NAMES = {
    "pre_fc_norm_embedding.weight": "embedding_norm.weight", "pre_fc_norm_hidden.weight": "state_norm.weight",
    "enorm.weight": "embedding_norm.weight", "hnorm.weight": "state_norm.weight", "eh_proj.weight": "fc.weight",
    "shared_head.norm.weight": "norm.weight", "shared_head.head.weight": "lm_head.weight",
}  # fmt: skip
_BESIDE = frozenset({"fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight", *_NAMES.values()})
_EXPERT = re.compile(r"(layers\.\d+\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


@dataclass(frozen=True)
class Family:
    """Conventions of one model class's MTP layer that its tensors do not show. ``experts`` reads its sparse feed-forward from
    the settings, None for a dense one; ``output_bias``: attention_bias covers o_proj too."""

    centred: bool = False
    gated: bool = False
    head_norms: bool = True
    output_bias: bool = True
    experts: Callable[[Any], Experts] | None = None
    note: str = ""


def _softmax(config: Any) -> Experts:
    return Experts(
        config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size, config.shared_expert_intermediate_size,
        shared_gate=True, normed=getattr(config, "norm_topk_prob", True),
    )  # fmt: skip


def _sigmoid(config: Any) -> Experts:
    return Experts(
        config.n_routed_experts, config.num_experts_per_tok, config.moe_intermediate_size,
        config.n_shared_experts * config.moe_intermediate_size, scores="sigmoid", corrected=True, normed=config.norm_topk_prob,
        scale=config.routed_scaling_factor, groups=config.n_group, chosen_groups=config.topk_group,
    )  # fmt: skip


FAMILIES: dict[str, Family] = {
    "qwen3_5_text": Family(centred=True, gated=True),
    "qwen3_5_moe_text": Family(centred=True, gated=True, experts=_softmax),
    "qwen3_next": Family(centred=True, gated=True, experts=_softmax),
    "glm4_moe": Family(
        output_bias=False,
        experts=_sigmoid,
        note="It feeds itself what it normalised, as SGLang and transformers do; vLLM's glm4_moe_mtp feeds the state before.",
    ),
}
"""Families by the text model's model_type in transformers."""
_REASONS = {
    "deepseek_v3": "attend through a low-rank latent (MLA)",
    "deepseek_v32": "attend through a low-rank latent (MLA) and an index",
    "glm4_moe_lite": "attend through a low-rank latent (MLA)",
    "glm_moe_dsa": "attend through a low-rank latent (MLA) and an index",
    "longcat_flash": "attend through a low-rank latent (MLA)",
    "bailing_hybrid": "attend through a low-rank latent (MLA)",
    "deepseek_v4": "keep several residual streams",
    "qwen4_exp": "keep several residual streams",
    "nemotron_h": "alternate attention with experts in layers of their own kinds",
    "mimo_v2_flash": "attend with sinks",
    "step3p7": "are several, one a depth",
}
"""Features of other classes' MTP layers that our network lacks, as predicates for a sentence."""


def mtp_names(stored: Repository) -> dict[str, str]:
    """Published names of the MTP layers' tensors, by the names of :class:`HeadConfig`; empty without such layers."""
    names: dict[str, str] = {}
    extra = {
        found[1] for name in stored.files if (found := _INNER.fullmatch(name)) and found[2] in {"eh_proj.weight", "enorm.weight"}
    }
    first = min(map(int, extra), default=0)
    for name in stored.files:
        if found := _OUTER.fullmatch(name):
            names[_NAMES.get(found[1], found[1])] = name
        elif (found := _INNER.fullmatch(name)) and found[1] in extra:
            part, layer = found[2], int(found[1]) - first
            known = _NAMES.get(part, part)
            # A second layer's own norms have no place in a head of one layer: named by their layer, they are refused.
            names[known if known in _BESIDE and layer == 0 else f"layers.{layer}.{part}"] = name
    return {name.replace("mlp.shared_experts.", "mlp.shared_expert."): original for name, original in names.items()}


def promises(config: Mapping[str, Any]) -> bool:
    """Whether a config.json declares MTP layers."""
    inner = config.get("text_config")
    settings = [config, *([inner] if isinstance(inner, Mapping) else [])]
    return any(one.get(name) not in (None, 0) for one in settings for name in PROMISES)


def mtp_part(stored: Repository) -> Repository:
    """The folder with the MTP layers' tensors alone."""
    kept = set(mtp_names(stored).values())
    return replace(stored, files={name: file for name, file in stored.files.items() if name in kept})


def feature_head(stored: Repository, target: Fit) -> FeatureHead:
    """Read the MTP layer on the target's embedding and head, in its number format.

    Raises ModelUnavailable naming the tensor or setting that does not fit, or a feature of the layer that is not computed here.
    """
    name = stored.name
    config = _settings(stored)
    family = FAMILIES.get(config.model_type)
    if family is None:
        why = _REASONS.get(config.model_type, f"are of the class {shown(config.model_type)}, which our reader does not know")
        raise ModelUnavailable(f"The MTP layers of {name} {why}. Those of {', '.join(FAMILIES)} are read.")
    names = mtp_names(stored)
    layers = {found[1] for part in names if (found := re.match(r"layers\.(\d+)\.", part))}
    if len(layers) > 1:
        raise ModelUnavailable(f"{name} has {len(layers)} MTP layers, one a depth, of which our chain drafter feeds one. {OURS}")
    if stored.config.get("quantization_config"):
        raise ModelUnavailable(
            f"{name} sets quantization_config: it says that the weights are quantised, and we read plain ones."
        )
    if config.hidden_act != "silu":
        raise ModelUnavailable(f"{name} has hidden_act {config.hidden_act!r}, and our network computes silu. {OURS}")
    settings = {"intermediate_size": getattr(config, "moe_intermediate_size", None), **config.to_dict()}
    settings["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    stored, names = _stacked(stored, names)
    sizes = head_sizes(stored, target, names, settings, KIND, narrower=False)
    biased = switch(name, settings, "attention_bias")
    how = conventions(
        name,
        (target.layers,),
        settings,
        feeds_normed=True,
        centred=family.centred,
        centred_entry=family.centred,
        **rotary(stored, settings, sizes["head_size"], woven=True),
    )
    head = HeadConfig(
        **sizes,
        layers=1,
        wide=False,
        paired=True,
        gated=family.gated,
        how=how,
        attention_bias=biased,
        output_bias=biased and family.output_bias,
        head_norms=family.head_norms and switch(name, {"use_qk_norm": settings.get("use_qk_norm", True)}, "use_qk_norm"),
        experts=None if family.experts is None else family.experts(config),
    )
    return assembled(stored, target, names, head, KIND, (family.note,) if family.note else ())


def _settings(stored: Repository) -> Any:
    """The text model's settings with the defaults of its class."""
    kind, settings = stored.config.get("model_type"), {key: value for key, value in stored.config.items() if key != "model_type"}
    if not isinstance(kind, str):
        raise ModelUnavailable(f"{stored.name} has no model_type in its config.json, without which its MTP layers are unknown.")
    for part in (settings, section(stored.name, settings, "text_config")):
        if whole_number(stored.name, part, "num_hidden_layers", 1) > _MOST_LAYERS:
            raise ModelUnavailable(f"{stored.name} says that its model has {part['num_hidden_layers']} layers. Get it anew.")
    try:
        return AutoConfig.for_model(kind, **settings).get_text_config()
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        reason = _REASONS.get(kind, f"are of the class {shown(kind)}, whose settings cannot be read here ({problem})")
        raise ModelUnavailable(f"The MTP layers of {stored.name} {reason}.") from problem


@dataclass(frozen=True)
class _Stacked(Repository):
    """A folder that stacks experts stored one by one into one tensor, under its own name."""

    parts: Mapping[str, tuple[tuple[str, ...], ...]]
    """By name of a stacked tensor: for each expert, the tensors whose rows it joins."""

    def tensor(self, name: str) -> Tensor:
        if name not in self.parts:
            return super().tensor(name)
        plain = super().tensor
        return torch.stack([torch.cat([plain(part) for part in expert]) for expert in self.parts[name]])


def _stacked(stored: Repository, names: dict[str, str]) -> tuple[Repository, dict[str, str]]:
    """The folder and its names with experts in one tensor of each kind, as some checkpoints store them."""
    single: dict[tuple[str, int, str], str] = {}
    for part, original in names.items():
        if found := _EXPERT.fullmatch(part):
            single[found[1], int(found[2]), found[3]] = original
    if not single:
        return stored, names
    kept = {part: original for part, original in names.items() if not _EXPERT.fullmatch(part)}
    parts: dict[str, tuple[tuple[str, ...], ...]] = {}
    for start in sorted({where for where, _, _ in single}):
        numbers = sorted({number for where, number, _ in single if where == start})
        for whole, kinds in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
            missing = [(number, kind) for number in numbers for kind in kinds if (start, number, kind) not in single]
            if missing:
                number, kind = missing[0]
                raise ModelUnavailable(f"{stored.name} lacks the tensor {start}.{number}.{kind}_proj.weight: get it again.")
            parts[f"{start}.{whole}"] = tuple(tuple(single[start, number, kind] for kind in kinds) for number in numbers)
    files = {**stored.files, **{name: stored.files[experts[0][0]] for name, experts in parts.items()}}
    return _Stacked(stored.name, stored.config, files, parts), {**kept, **{name: name for name in parts}}
