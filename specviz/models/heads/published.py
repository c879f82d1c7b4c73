"""Reader of published heads in every layout: a folder's tensors and settings become a network in the target's number format.

Everything is checked before use: sizes and shapes before memory is allocated for them, each setting and tensor by name.
:mod:`specviz.models.heads.layouts` describes the layouts.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from specviz.drafting.networks.cross_net import CrossConfig, CrossNet
from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.head_config import EACH, TOGETHER, Experts, HeadConfig, HeadConventions
from specviz.drafting.networks.parallel_net import ParallelConfig, ParallelNet
from specviz.errors import ModelUnavailable, shown
from specviz.models.heads.head_settings import (
    HARMLESS,
    OURS,
    SIZES,
    layer_count,
    positive,
    refuse_unknown,
    rotary,
    section,
    switch,
    whole_number,
    whole_numbers,
    windows,
    words,
)  # fmt: skip
from specviz.models.heads.layouts import LAYOUTS, Layout, drafting, layout_of
from specviz.models.hub.published import Fit, Repository, reading, refuse_strangers, shaped
from specviz.paths import ASSETS

_MTP = tomllib.loads((ASSETS / "mtp_families.toml").read_text("utf-8"))
MTP_FAMILIES: Mapping[str, Mapping[str, Any]] = _MTP["family"]
"""Conventions of MTP layers by the text model's model_type in transformers."""
_MOST_LAYERS = 1000
"""Maximum number of layers in an MTP model's settings, above any published one; its files may hold the MTP layers alone."""
_MOST_HEADS = 16
"""Maximum number of Medusa heads, and of blocks per head: published models have at most five."""
_VOCABULARY = frozenset({"d2t", "t2d"})
_OF_THE_TARGET = frozenset({"verifier_lm_head.weight", "verifier_norm.weight"})
"""Tensors of the target that some trainers store beside the head; drafting does not read them."""
_ROUTER = ("mlp.gate.weight", "mlp.gate.e_score_correction_bias")
"""Tensors of the expert router, which stay in float32: rounding to half precision could change the chosen experts."""
_EXPERT = re.compile(r"(layers\.\d+\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_ANGELSLIM = "Eagle3LlamaForCausalLM"


def read(method: str, stored: Repository, target: Fit) -> Any:
    """Read the heads' network for a method. Raises ModelUnavailable naming their layout if it is not one of the method's."""
    layout = layout_of(stored)
    if layout.method == method:
        with reading(stored.name):
            return _READERS[layout.network](layout, stored, target)
    if layout.method:
        raise ModelUnavailable(f"{stored.name} holds {layout.title}: choose the method {layout.method} for them.")
    also = "" if layout in [LAYOUTS[name] for name in ("unknown", "model", "empty-mtp")] else ", which is not read yet"
    raise ModelUnavailable(f"{stored.name} is {layout.title}{also}; {method} wants heads made for it. {OURS}")


def feature_head(layout: Layout, stored: Repository, target: Fit, **more: Any) -> FeatureHead:
    """Read a head of EAGLE's family with its own embedding and output head, or else the target's. ``more`` adds conventions.

    Raises ModelUnavailable naming the tensor or setting that does not fit or is unknown to this layout.
    """
    name = stored.name
    kinds = words(name, stored.config, "architectures")
    fixed, how = dict(layout.config), {**layout.how, **more}
    if layout is LAYOUTS["mtp"]:
        settings, family = _mtp_settings(stored, target)
        stored, names = _with_stacked_experts(drafting(stored), layout)
        if len(own := {found[0] for part in names if (found := re.match(r"layers\.\d+\.", part))}) > 1:
            raise ModelUnavailable(f"{name} has {len(own)} MTP layers, one a depth, of which our drafter feeds one. {OURS}")
        fixed |= {**family.get("config", {}), "experts": _experts(family, settings)}
        how |= family.get("how", {})
        notes: tuple[str, ...] = (family["note"],) if "note" in family else ()
    else:
        settings, names = _settings(layout, stored, target, kinds), layout.names_in(stored)
        notes = _notes(settings, kinds)
    wide = "wide" in layout.config
    if wide and settings.get("tie_word_embeddings") and "embed_tokens.weight" in names and "lm_head.weight" not in names:
        raise ModelUnavailable(f"{name} ties its head to an embedding of its own, which is not read yet. {OURS}")
    declared = next((settings[flag] for flag in layout.declared if settings.get(flag) is not None), None)
    if declared is not None and bool(declared) != ("fc.bias" in names):
        has = "has" if "fc.bias" in names else "lacks"
        raise ModelUnavailable(f"{name} {has} fc.bias, and its config.json says bias {str(bool(declared)).lower()}. Get it anew.")
    fields = {field: max(switch(name, settings, flag) for flag in flags) for field, flags in layout.switches.items()}
    for field, tensor in layout.present.items():
        fields[field] = fields.get(field, False) or tensor in names
    together, each = fields.pop("together", False), fields.pop("each", False)
    if together and each:
        raise ModelUnavailable(f"{name} sets both norm_before_fc and fc_norm, of which a head has one. {OURS}")
    sizes = _sizes(layout, stored, target, names, settings)
    layers = 1 if "layers" in fixed else layer_count(stored, settings)
    how |= {field: fields.pop(field) for field in ("normed_residual", "feeds_normed") if field in fields}
    conventions = HeadConventions(
        taps=_taps(name, settings, target.layers) if wide else (target.layers,),
        entry_norm=TOGETHER if together else EACH if each else "",
        windows=() if "paired" in fixed else windows(name, settings, layers),
        eps=positive(name, settings, "rms_norm_eps", 1e-6),
        **rotary(stored, settings, sizes["head_size"], woven="paired" in fixed or _ANGELSLIM in kinds),
        **how,
    )
    queries = len(stored.tensor(names["imadpt.q"])) if layout is LAYOUTS["vispec"] else 0
    config = HeadConfig(**sizes, how=conventions, queries=queries, **{"wide": False, "layers": layers, **fields, **fixed})
    return _assembled(layout, stored, target, names, config, notes)


def _settings(layout: Layout, stored: Repository, target: Fit, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Return a folder's settings as one table. Raises ModelUnavailable for an unknown one."""
    name, inner = stored.name, stored.config.get("model")
    settings = {**stored.config, **inner} if layout is LAYOUTS["eagle"] and isinstance(inner, Mapping) else dict(stored.config)
    if layout.architectures and (strange := [kind for kind in kinds if not re.fullmatch(layout.architectures, kind)]):
        raise ModelUnavailable(f"{name} is a {strange[0]} (architectures), not {layout.title}. {OURS}")
    if layout.ignored:
        settings = {field: value for field, value in settings.items() if not re.fullmatch(layout.ignored, field)}
        if isinstance(rope := settings.get("rope_scaling"), Mapping) and "mrope_section" in rope:
            del settings["rope_scaling"]  # each row has one position, even if the target's tokens have three
    if layout is LAYOUTS["speculators"]:
        return _speculators_settings(layout, stored, target)
    if layout.short == "EAGLE-3":
        settings |= {f"eagle_config.{field}": value for field, value in section(name, settings, "eagle_config").items()}
    refuse_unknown(name, settings, SIZES | set(layout.read), layout.values)
    if settings.get("truncated_vocab_size") not in (None, settings.get("vocab_size")):
        raise ModelUnavailable(f"{name} drafts over a truncated vocabulary (truncated_vocab_size), which is not read yet. {OURS}")
    return settings


def _speculators_settings(layout: Layout, stored: Repository, target: Fit) -> dict[str, Any]:
    """The settings, completed by transformers' defaults for their kind of decoder."""
    name, outer = stored.name, dict(stored.config)
    if (kind := outer.get("speculators_model_type")) != "eagle3":
        raise ModelUnavailable(f"{name} is a speculator of the kind {shown(kind)} (speculators_model_type), not eagle3. {OURS}")
    refuse_unknown(name, outer, layout.read, {})
    if outer.get("norm_before_residual") is None:
        raise ModelUnavailable(
            f"{name} does not say norm_before_residual: the library takes that for false and vLLM for true. Find out which it "
            "was trained with, and write it into a copy of its config.json."
        )
    inner = section(name, outer, "transformer_layer_config")
    if not inner:
        raise ModelUnavailable(f"{name} has no transformer_layer_config, without which its layers are unknown. Get it anew.")
    if (kind := inner.get("model_type")) not in ("llama", "qwen3"):
        raise ModelUnavailable(
            f"{name} has layers of the kind {shown(kind)} (model_type), and ours are llama's or qwen3's. {OURS}"
        )
    refuse_unknown(name, inner, SIZES, {})
    layer_count(stored, inner)
    whole = AutoConfig.for_model(**{field: value for field, value in inner.items() if field not in HARMLESS})
    decoder = {**inner, **{field: getattr(whole, field) for field in SIZES if hasattr(whole, field)}}
    if decoder["vocab_size"] != target.embedding.shape[0]:
        raise ModelUnavailable(
            f"{name} was made for {decoder['vocab_size']} tokens, and {target.name} has {target.embedding.shape[0]}: choose the "
            "target it was trained for."
        )
    own = {"target_hidden_size": outer.get("target_hidden_size"), "use_qk_norm": kind == "qwen3"}
    # As in the library, a sliding_window is unused unless layer_types says where it applies.
    return {**outer, **decoder, **own, "use_sliding_window": bool(decoder.get("layer_types"))}


def _mtp_settings(stored: Repository, target: Fit) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The text model's settings, completed by the defaults of its class, and the conventions of its family."""
    name, kind = stored.name, stored.config.get("model_type")
    if not isinstance(kind, str):
        raise ModelUnavailable(f"{name} has no model_type in its config.json, without which its MTP layers are unknown.")
    settings = {field: value for field, value in stored.config.items() if field != "model_type"}
    for part in (settings, section(name, settings, "text_config")):
        if whole_number(name, part, "num_hidden_layers", 1) > _MOST_LAYERS:
            raise ModelUnavailable(f"{name} says that its model has {part['num_hidden_layers']} layers. Get it anew.")
    reasons = _MTP["reasons"]
    try:
        config = AutoConfig.for_model(kind, **settings).get_text_config()
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        reason = reasons.get(kind, f"are of the class {shown(kind)}, whose settings cannot be read here ({problem})")
        raise ModelUnavailable(f"The MTP layers of {name} {reason}.") from problem
    kind = config.model_type
    if kind not in MTP_FAMILIES:
        why = reasons.get(kind, f"are of the class {shown(kind)}, which our reader does not know")
        raise ModelUnavailable(f"The MTP layers of {name} {why}. Those of {', '.join(MTP_FAMILIES)} are read.")
    whole = {"use_qk_norm": True, "intermediate_size": getattr(config, "moe_intermediate_size", None), **config.to_dict()}
    whole["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    decisive = {"quantization_config": stored.config.get("quantization_config"), "hidden_act": config.hidden_act}
    refuse_unknown(name, decisive, (), {})
    return whole, MTP_FAMILIES[kind]


def _experts(family: Mapping[str, Any], settings: Mapping[str, Any]) -> Experts | None:
    """The sparse feed-forward of an MTP layer; None for a dense one."""
    if "experts" not in family:
        return None

    def value(said: Any) -> Any:
        if isinstance(said, list):
            return math.prod(settings[one] for one in said)
        return settings.get(said, True) if said == "norm_topk_prob" else settings[said] if isinstance(said, str) else said

    return Experts(scores=family["experts"], **{field: value(said) for field, said in _MTP["experts"][family["experts"]].items()})


@dataclass(frozen=True)
class _Stacked(Repository):
    """A folder whose experts, stored one by one, can be read as stacked tensors with names of their own."""

    parts: Mapping[str, list[list[str]]]
    """For each stacked tensor, by name: the tensors whose rows are joined, per expert."""

    def tensor(self, name: str) -> Tensor:
        if name not in self.parts:
            return super().tensor(name)
        plain = super().tensor
        return torch.stack([torch.cat([plain(part) for part in expert]) for expert in self.parts[name]])


def _with_stacked_experts(stored: Repository, layout: Layout) -> tuple[Repository, dict[str, str]]:
    """Return the folder and its tensors' names with one stacked tensor per kind, as some checkpoints store experts."""
    names = layout.names_in(stored)
    single = {found.groups(): names.pop(part) for part in list(names) if (found := _EXPERT.fullmatch(part))}
    parts: dict[str, list[list[str]]] = {}
    for start in sorted({start for start, _, _ in single}):
        numbers = sorted({number for where, number, _ in single if where == start}, key=int)
        for whole, kinds in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
            for number in numbers:
                for kind in kinds:
                    if (start, number, kind) not in single:
                        raise ModelUnavailable(
                            f"{stored.name} lacks the tensor {start}.{number}.{kind}_proj.weight: get it again."
                        )
            parts[f"{start}.{whole}"] = [[single[start, number, kind] for kind in kinds] for number in numbers]
    files = {**stored.files, **{name: stored.files[experts[0][0]] for name, experts in parts.items()}}
    return _Stacked(stored.name, stored.config, files, parts), {**names, **{name: name for name in parts}}


def _taps(name: str, settings: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Taps of an EAGLE-3 head, in transformers' numbering of hidden states; published configs number them in two ways."""
    # The numbers under eagle_config are layers' own: the output of layer i is hidden state i + 1.
    nested = tuple(layer + 1 for layer in whole_numbers(name, settings, f"eagle_config.{_LAYER_IDS}"))
    taps = whole_numbers(name, settings, _LAYER_IDS) or nested or (2, layers // 2, layers - 3)
    if not all(0 <= tap <= layers for tap in taps):
        raise ModelUnavailable(f"{name} reads hidden states {list(taps)} of a target with {layers} layers. {OURS}")
    return taps


def _notes(settings: Mapping[str, Any], kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Notes on settings that trainers and engines read differently."""
    notes = []
    if settings.get(f"eagle_config.{_LAYER_IDS}") and not settings.get(_LAYER_IDS):
        notes.append(
            f"{_LAYER_IDS} under eagle_config are read as SGLang reads them, the outputs of these layers; vLLM 0.32 takes the "
            "states before them."
        )
    if settings.get("norm_output") and "speculators_model_type" not in settings:
        notes.append(
            "norm_output is read as vLLM reads it: the normalised state is fed back. SpecForge up to August 2026 meant the norm "
            "before the head alone, and fed back the state itself."
        )
    if _ANGELSLIM in kinds and not settings.get("rope_scaling") and settings.get("rope_theta") not in (None, 10000):
        notes.append(
            f"rope_theta {settings['rope_theta']} is read as engines read it; AngelSlim's trainer of August 2026 turns at base "
            "10000 where rope_scaling is empty."
        )
    return tuple(notes)


def _sizes(
    layout: Layout, stored: Repository, target: Fit, names: Mapping[str, str], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the sizes of :class:`HeadConfig`, from the settings and the first layer's queries. In ``wide`` layouts, heads with
    their own embedding and output head may be narrower than the target. Raises ModelUnavailable if sizes do not fit."""
    name = stored.name
    hidden = whole_number(name, settings, "hidden_size")
    heads = whole_number(name, settings, "num_attention_heads")
    target_hidden = whole_number(name, settings, "target_hidden_size", hidden)
    narrower = "wide" in layout.config and {"embed_tokens.weight", "lm_head.weight"} <= set(names)
    if target_hidden != target.hidden or not (hidden == target_hidden or narrower):
        raise ModelUnavailable(
            f"{name} was made for hidden states {target_hidden} wide and is {hidden} wide itself, and those of "
            f"{target.name} are {target.hidden}: choose the target it was trained for."
        )
    queries = names.get("layers.0.self_attn.q_proj.weight")
    if queries is None:
        raise ModelUnavailable(f"{name} lacks the first layer's self_attn.q_proj.weight: these are no {layout.short} heads.")
    kv_heads = whole_number(name, settings, "num_key_value_heads", heads)
    # The size of an attention head is often not hidden / heads, and then not always in the config.
    rows = len(stored.tensor(queries))
    size = whole_number(name, settings, "head_dim", max(1, rows // heads))
    if heads % kv_heads or size % 2 or size * heads > rows:
        raise ModelUnavailable(f"{name} has {heads} heads of {size} on {kv_heads}, which its config.json has wrong.")
    inner = whole_number(name, settings, "intermediate_size")
    sizes = {"vocab_size": target.embedding.shape[0], "hidden": hidden, "target_hidden": target_hidden, "inner": inner}
    return {**sizes, "heads": heads, "kv_heads": kv_heads, "head_size": size}


def _assembled(
    layout: Layout, stored: Repository, target: Fit, names: Mapping[str, str], config: HeadConfig, notes: tuple[str, ...]
) -> FeatureHead:
    """Build the head, checking its tensors one by one; MSD's embedding may have fewer rows than the target's, which supplies the
    rest. Raises ModelUnavailable naming the tensor that is missing, of another shape, or unknown to this layout."""
    shapes, target_rows = config.shapes(), len(target.embedding)
    for name, shape in shapes.items():  # before any conversion: a wrong config must not allocate memory
        shaped(stored, names, name, shape)
    narrow = _VOCABULARY if config.wide or config.paired else ()
    known = {*shapes, *_OF_THE_TARGET, "lm_head.weight", "embed_tokens.weight", *narrow}
    refuse_strangers(stored, names, known, layout.short)
    embedding = target.embedding
    if "embed_tokens.weight" in names:
        rows = target_rows
        if layout is LAYOUTS["msd"]:  # a later release of the target appended tokens for pictures
            rows = min(rows, len(stored.tensor(names["embed_tokens.weight"])))
        own = shaped(stored, names, "embed_tokens.weight", (rows, config.hidden)).to(embedding)
        own = torch.cat((own, embedding[rows:])) if rows < target_rows else own
        embedding = embedding if torch.equal(own, embedding) else own  # the heads' embedding may have been trained
    ids = _draft_ids(stored, names, target_rows) if "d2t" in names else None
    head = target.head if ids is None else target.head[ids.to(target.head.device)]
    if "lm_head.weight" in names:
        head = shaped(stored, names, "lm_head.weight", (len(head), config.hidden)).to(target.head)
    like, exact = target.head, torch.promote_types(target.head.dtype, torch.float32)
    tensors = {
        name: shaped(stored, names, name, shape).to(like.device, exact if name.endswith(_ROUTER) else like.dtype)
        for name, shape in shapes.items()
    }
    for name, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise ModelUnavailable(f"{names[name]} of {stored.name} holds values that are no numbers. Get the heads anew.")
    if target.layers in config.taps and not config.paired:  # every engine feeds MTP layers with that state
        last = f"reads hidden state {target.layers}, the last: here it is the state after the final norm"
        notes += (f"It {last}, in engines often the one before it.",)
    unused = (f"{names[name]} is the target's, and nothing of drafting reads it." for name in sorted(_OF_THE_TARGET & set(names)))
    return FeatureHead(config, tensors, embedding, head, ids, layout.short, (*notes, *unused))


def _draft_ids(stored: Repository, names: Mapping[str, str], vocab: int) -> Tensor:
    """Return the token id of each row of the head, from ``d2t``, which holds the id minus the row's number.

    Raises ModelUnavailable unless the ids are the target's, all different, and agree with ``t2d``.
    """
    offsets = stored.tensor(names["d2t"]).long()
    ids = offsets + torch.arange(len(offsets))
    mask = stored.tensor(names["t2d"]).bool() if "t2d" in names else None

    def is_vocabulary(ids: Tensor) -> bool:
        good = ids.ndim == 1 and bool((ids >= 0).all()) and bool((ids < vocab).all()) and len(ids.unique()) == len(ids)
        if good and mask is not None:
            good = len(mask) <= vocab and int(mask.sum()) == len(ids) and bool(mask[ids.clamp(max=len(mask) - 1)].all())
        return good

    if not is_vocabulary(ids):
        why = f"is not one of the target's {vocab} tokens: choose the target these heads were trained for"
        if is_vocabulary(offsets):
            why = "holds the tokens themselves where every engine reads how far each lies from its row: subtract the row's number"
        raise ModelUnavailable(f"The draft vocabulary of {stored.name} (d2t, t2d) {why}.")
    return ids


def _parallel_net(layout: Layout, stored: Repository, target: Fit) -> ParallelNet:
    """Read Medusa heads; other weights in the folder are ignored. Raises ModelUnavailable naming the misfit."""
    names = {name: own for name, own in layout.names_in(stored).items() if re.fullmatch(layout.when[0]["tensor"], name)}
    numbers = [[int(number) for number in name.split(".")[:2]] for name in names]
    heads, blocks = 1 + max(head for head, _ in numbers), max(block for _, block in numbers)
    if max(heads, blocks) > _MOST_HEADS:  # before memory is allocated for them
        raise ModelUnavailable(f"{stored.name} numbers its tensors up to {max(heads, blocks)}: these are no Medusa heads.")
    # medusa-vicuna-7b-v1.3 declares two heads and has five, which its authors' loader allows: more than declared are accepted.
    for field, count in (("medusa_num_heads", heads), ("medusa_num_layers", blocks)):
        if isinstance(said := stored.config.get(field), int) and count < said:
            raise ModelUnavailable(
                f"{stored.name} holds {count} where its config.json says {said} ({field}): some are missing. Get it anew."
            )
    hidden = target.hidden
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for block in range(blocks):
            shapes |= {f"{head}.{block}.linear.weight": (hidden, hidden), f"{head}.{block}.linear.bias": (hidden,)}
        shapes[f"{head}.{blocks}.weight"] = (target.head.shape[0], hidden)
    refuse_strangers(stored, names, set(shapes), layout.short)
    tensors = {name: shaped(stored, names, name, shape).to(target.head) for name, shape in shapes.items()}
    outputs = torch.stack([tensors.pop(f"{head}.{blocks}.weight") for head in range(heads)])
    net = ParallelNet(ParallelConfig(hidden, heads, target.layers, blocks), outputs)
    net.load_state_dict({f"heads.{name}": value for name, value in tensors.items()})
    return net.to(target.head.device, target.head.dtype).eval().requires_grad_(False)


def _cross_net(layout: Layout, stored: Repository, target: Fit) -> CrossNet:
    """Read a DREAM drafter on the target's embedding and head. Raises ModelUnavailable naming the misfit."""
    name, settings = stored.name, stored.config
    refuse_unknown(name, settings, SIZES, layout.values)
    hidden = whole_number(name, settings, "hidden_size")
    if hidden != target.hidden:
        raise ModelUnavailable(
            f"{name} was made for hidden states {hidden} wide, and those of {target.name} are {target.hidden}: choose the "
            "target it was trained for."
        )
    heads = whole_number(name, settings, "num_attention_heads")
    size = hidden // heads
    turning = rotary(stored, settings, size)
    if set(turning) - {"theta", "rates"}:
        raise ModelUnavailable(f"{name} has rotary positions in a form that its authors' code does not compute. {OURS}")
    config = CrossConfig(
        vocab_size=target.embedding.shape[0],
        hidden=hidden,
        heads=heads,
        kv_heads=whole_number(name, settings, "num_key_value_heads", heads),
        head_size=size,
        inner=whole_number(name, settings, "intermediate_size"),
        taps=(0, target.layers),
        wide=False,
        eps=positive(name, settings, "rms_norm_eps", 1e-6),
        entry_norm=False,
        inner_norms=True,
        sink=False,
        keep=1.0,
        **turning,
    )
    names = layout.names_in(stored)
    names.pop("embed_tokens.weight", None)
    for part, rows in (("mlp.gate_proj", config.inner), ("self_attn.k_proj", config.kv_heads * size)):  # before the net is built
        shaped(stored, names, f"first.{part}.weight", (rows, hidden))
    net = CrossNet(config, target.embedding, target.head)
    shapes = {key: tuple(value.shape) for key, value in net.state_dict().items() if key != "reading.gates"}
    gates = {f"cross_attn_{part}_gate": (1,) for part in ("attn", "mlp")}
    refuse_strangers(stored, names, {*shapes, *gates}, layout.short)
    tensors = {key: shaped(stored, names, key, shape) for key, shape in {**shapes, **gates}.items()}
    tensors["reading.gates"] = torch.cat([tensors.pop(gate) for gate in gates])
    net.load_state_dict(tensors)
    return net.to(target.head.device, target.head.dtype).eval().requires_grad_(False)


_READERS: Mapping[str, Callable[[Layout, Repository, Fit], Any]] = {
    "feature": feature_head,
    "parallel": _parallel_net,
    "cross": _cross_net,
}
