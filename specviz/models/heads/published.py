"""Reader of published heads: a folder's tensors and settings become a network in the target's dtype.

Sizes and shapes are checked before memory is allocated; settings and tensors are checked by name. The layouts are described in
:mod:`specviz.models.hub.published`.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from specviz.drafting.networks.block_fill import MARKOV, BlockFill, FillConfig
from specviz.drafting.networks.cross_net import CrossConfig, CrossNet
from specviz.drafting.networks.eagle_head import PublishedEagleHead
from specviz.drafting.networks.head_config import EACH, TOGETHER, Experts, HeadConfig, HeadConventions
from specviz.drafting.networks.parallel_net import ParallelConfig, ParallelNet
from specviz.errors import ModelUnavailable, shown
from specviz.models.hub.published import (
    HARMLESS,
    LAYER_IDS,
    LAYOUTS,
    NUMBERS,
    OURS,
    POSITIVE,
    SIZE,
    SIZES,
    TOKEN,
    WORDS,
    Fit,
    Layout,
    Repository,
    Settings,
    Stored,
    drafting,
    layout_of,
    reading,
    shaped,
    tensors_of,
)
from specviz.paths import ASSETS

_MTP = tomllib.loads((ASSETS / "mtp_families.toml").read_text("utf-8"))
MTP_FAMILIES: Mapping[str, Mapping[str, Any]] = _MTP["family"]
"""Conventions of MTP layers by the text model's ``model_type``."""
_MOST_LAYERS = 1000
"""Maximum number of layers in an MTP model's settings, far above any published one."""
_MOST_HEADS = 16
"""Maximum number of Medusa heads and of blocks per head; published models have at most five."""
_VOCABULARY = frozenset({"d2t", "t2d"})
_OF_THE_TARGET = frozenset({"verifier_lm_head.weight", "verifier_norm.weight"})
"""Tensors of the target that some trainers store with the head; drafting does not read them."""
_ROUTER = ("mlp.gate.weight", "mlp.gate.e_score_correction_bias")
"""Tensors of the expert router, kept in float32 because half precision could change which experts are chosen."""
_BLOCK_KINDS = ("dflash", "dflash2", "dspark")
"""Kinds of speculators that are block drafters."""
_FEWEST_CANDIDATES = 16
"""Minimum number of candidates of a low-rank head: a tree may expand this many children of a node."""
_MOST_ROWS = 64
"""Maximum block length; published drafters have at most 16 rows."""
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_ANGELSLIM = "Eagle3LlamaForCausalLM"


def read(method: str, stored: Repository, target: Fit) -> Any:
    """Read the network of a method's heads. Raises ModelUnavailable, naming the layout, if the heads are for another method."""
    layout = layout_of(stored)
    if layout.method == method:
        with reading(stored.name):
            return _READERS[layout.network](layout, stored, target)
    if layout.method:
        raise ModelUnavailable(f"{stored.name} holds {layout.title}: choose the method {layout.method} for them.")
    also = "" if layout in [LAYOUTS[name] for name in ("unknown", "model", "empty-mtp")] else ", which is not supported yet"
    raise ModelUnavailable(f"{stored.name} is {layout.title}{also}; {method} requires heads made for it. {OURS}")


def published_eagle_head(layout: Layout, stored: Repository, target: Fit, **more: Any) -> PublishedEagleHead:
    """Read a head of EAGLE's family. It uses its own embedding and output head if they are stored, else the target's.

    ``more``: conventions to override. Raises ModelUnavailable naming the tensor or setting that does not fit or is unknown.
    """
    said = Settings(stored.name, stored.config)
    kinds = said.get("architectures", WORDS)
    fixed, how = dict(layout.config), {**layout.how, **more}
    if layout is LAYOUTS["mtp"]:
        stored = drafting(stored)
        said, family = _mtp_settings(said)
        fixed |= {**family.get("config", {}), "experts": _experts(family, said.values)}
        how |= family.get("how", {})
        notes: tuple[str, ...] = (family["note"],) if "note" in family else ()
    else:
        said = _settings(layout, said, target, kinds)
        notes = _notes(said.values, kinds)
    names = layout.names_in(stored)
    if "paired" in fixed and len(own := {found[0] for part in names if (found := re.match(r"layers\.\d+\.", part))}) > 1:
        raise said.refusal(f"has {len(own)} MTP layers, one per depth, of which our drafter runs only one")
    wide = "wide" in layout.config
    if wide and said.values.get("tie_word_embeddings") and "embed_tokens.weight" in names and "lm_head.weight" not in names:
        raise said.refusal("ties its head to its own embedding, which is not supported yet")
    declared = next((said.values[flag] for flag in layout.declared if said.values.get(flag) is not None), None)
    if declared is not None and bool(declared) != ("fc.bias" in names):
        has = "has" if "fc.bias" in names else "lacks"
        raise said.refusal(f"{has} fc.bias, but its config.json says bias {str(bool(declared)).lower()}")
    fields = {**layout.flags(said, names), **_candidates(said, names, len(target.embedding))}
    together, each = fields.pop("together", False), fields.pop("each", False)
    if together and each:
        raise said.refusal("sets both norm_before_fc and fc_norm, but a head can have only one")
    sizes = _sizes(layout, said, stored, names, target)
    layers = 1 if "layers" in fixed else said.layers(len(stored.files))
    how |= {field: fields.pop(field) for field in ("normed_residual", "feeds_normed") if field in fields}
    conventions = HeadConventions(
        taps=_taps(said, target.layers) if wide else (target.layers,),
        entry_norm=TOGETHER if together else EACH if each else "",
        windows=() if "paired" in fixed else said.windows(layers),
        eps=said.get("rms_norm_eps", POSITIVE, 1e-6),
        **said.rotary(sizes["head_size"], woven="paired" in fixed or _ANGELSLIM in kinds),
        **how,
    )
    queries = len(stored.tensor(names["imadpt.q"])) if layout is LAYOUTS["vispec"] else 0
    config = HeadConfig(**sizes, how=conventions, queries=queries, **{"wide": False, "layers": layers, **fields, **fixed})
    tensors, embedding, head, ids = _weights(layout, stored, target, names, config)
    if target.layers in config.taps and not config.paired:  # as engines do for MTP layers
        last = f"reads hidden state {target.layers}, the last: here it is the state after the final norm"
        notes += (f"The head {last}; engines often use the state before that norm.",)
    unused = (f"{names[name]} is the target's, and drafting does not read it." for name in sorted(_OF_THE_TARGET & set(names)))
    return PublishedEagleHead(config, tensors, embedding, head, ids, layout.short, (*notes, *unused))


def _candidates(said: Settings, names: Mapping[str, Stored], vocab: int) -> dict[str, int]:
    """Return the sizes of a low-rank head that chooses each row's candidates (EAGLE-4); {} for other heads."""
    if not (low_rank := said.section("efficient_lm_head_config")).values:
        return {}
    low_rank.refuse_unknown(("rank", "num_candidates"), {"type": ["low_rank"]})
    candidates = low_rank.get("num_candidates", SIZE)
    if not _FEWEST_CANDIDATES <= candidates <= vocab:
        raise said.refusal(f"chooses {candidates} candidates (num_candidates), but {_FEWEST_CANDIDATES} to {vocab} are possible")
    if "d2t" in names:
        raise said.refusal("chooses candidates (efficient_lm_head_config) of a draft vocabulary (d2t), which no engine does")
    return {"candidates": candidates, "rank": low_rank.get("rank", SIZE)}


def _settings(layout: Layout, said: Settings, target: Fit, kinds: tuple[str, ...]) -> Settings:
    """Return a folder's settings as one flat table. Raises ModelUnavailable for an unknown setting."""
    name, settings, inner = said.name, dict(said.values), said.values.get("model")
    if layout is LAYOUTS["eagle"] and isinstance(inner, Mapping):
        settings |= inner
    if layout.architectures and (strange := [kind for kind in kinds if not re.fullmatch(layout.architectures, kind)]):
        raise said.refusal(f"is a {strange[0]} (architectures), not {layout.title}")
    if layout.ignored:
        settings = {field: value for field, value in settings.items() if not re.fullmatch(layout.ignored, field)}
        if isinstance(rope := settings.get("rope_scaling"), Mapping) and "mrope_section" in rope:
            del settings["rope_scaling"]  # rows have one position each, even if the target's tokens have three
    if layout is LAYOUTS["speculators"]:
        return _speculators_settings(layout, said, target)
    if layout.short == "EAGLE-3":
        settings |= {f"eagle_config.{field}": value for field, value in said.section("eagle_config").values.items()}
    whole = Settings(name, settings)
    whole.refuse_unknown(SIZES | set(layout.read), layout.values)
    if settings.get("truncated_vocab_size") not in (None, settings.get("vocab_size")):
        raise whole.refusal("drafts over a truncated vocabulary (truncated_vocab_size), which is not supported yet")
    return whole


def _speculators_settings(layout: Layout, said: Settings, target: Fit) -> Settings:
    """Return the settings, completed by transformers' defaults for this kind of decoder."""
    name, outer, fills = said.name, said.values, layout.network == "fill"
    kinds = _BLOCK_KINDS if fills else ("eagle3",)
    if (kind := outer.get("speculators_model_type")) not in kinds:
        raise said.refusal(f"is a speculator of the kind {shown(kind)} (speculators_model_type), not {' or '.join(kinds)}")
    said.refuse_unknown(layout.read, layout.values)
    if not fills and outer.get("norm_before_residual") is None:
        raise ModelUnavailable(
            f"{name} does not set norm_before_residual, for which the library assumes false and vLLM true. Find out which "
            "value the heads were trained with, and write it into a copy of their config.json."
        )
    inner = said.section("transformer_layer_config")
    if not inner.values:
        raise said.refusal("has no transformer_layer_config, without which its layers are unknown")
    if (kind := inner.values.get("model_type")) not in ("llama", "qwen3"):
        raise said.refusal(f"has layers of the kind {shown(kind)} (model_type), but only llama's and qwen3's are read")
    inner.refuse_unknown(SIZES, {})
    inner.layers(_MOST_LAYERS)
    whole = AutoConfig.for_model(**{field: value for field, value in inner.values.items() if field not in HARMLESS})
    decoder = {**inner.values, **{field: getattr(whole, field) for field in SIZES if hasattr(whole, field)}}
    if decoder["vocab_size"] != len(target.embedding):
        raise ModelUnavailable(
            f"{name} was made for a vocabulary of {decoder['vocab_size']} tokens, but {target.name} has "
            f"{len(target.embedding)}: choose the "
            "target it was trained for."
        )
    own = {"target_hidden_size": outer.get("target_hidden_size"), "use_qk_norm": kind == "qwen3"}
    # As in the library, sliding_window has no effect without layer_types.
    return Settings(name, {**outer, **decoder, **own, "use_sliding_window": bool(decoder.get("layer_types"))})


def _mtp_settings(said: Settings) -> tuple[Settings, Mapping[str, Any]]:
    """Return the text model's settings, completed by the defaults of its class, and the conventions of its family."""
    name, kind, reasons = said.name, said.values.get("model_type"), _MTP["reasons"]
    if not isinstance(kind, str):
        raise said.refusal("has no model_type in its config.json, without which its MTP layers are unknown")
    for part in (said, said.section("text_config")):
        part.layers(_MOST_LAYERS)
    try:
        settings = {field: value for field, value in said.values.items() if field != "model_type"}
        config = AutoConfig.for_model(kind, **settings).get_text_config()
        kind = config.model_type
        reason = f"are of the class {shown(kind)}, which our reader does not know"
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        config, reason = None, f"are of the class {shown(kind)}, whose settings cannot be read here ({problem})"
    if config is None or kind not in MTP_FAMILIES:
        known = ", ".join(MTP_FAMILIES)
        raise ModelUnavailable(f"The MTP layers of {name} {reasons.get(kind, reason)}. Those of {known} are read.")
    whole = {"use_qk_norm": True, "intermediate_size": getattr(config, "moe_intermediate_size", None), **config.to_dict()}
    whole["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    decisive = {"quantization_config": said.values.get("quantization_config"), "hidden_act": config.hidden_act}
    Settings(name, decisive).refuse_unknown((), {})
    return Settings(name, whole), MTP_FAMILIES[kind]


def _experts(family: Mapping[str, Any], settings: Mapping[str, Any]) -> Experts | None:
    """Return the sizes of an MTP layer's experts, or None for a dense feed-forward."""
    if "experts" not in family:
        return None

    def value(said: Any) -> Any:
        if isinstance(said, list):
            return math.prod(settings[one] for one in said)
        return settings.get(said, True) if said == "norm_topk_prob" else settings[said] if isinstance(said, str) else said

    return Experts(scores=family["experts"], **{field: value(said) for field, said in _MTP["experts"][family["experts"]].items()})


def _taps(said: Settings, layers: int) -> tuple[int, ...]:
    """Return the taps of an EAGLE-3 head as indices of transformers' hidden states; configs number them in two ways."""
    # eagle_config and DeepSpec number layers; the output of layer i is hidden state i + 1.
    own = said.get(f"eagle_config.{_LAYER_IDS}", NUMBERS) or said.get("target_layer_ids", NUMBERS)
    nested = tuple(layer + 1 for layer in own)
    return _within(said, layers, said.get(_LAYER_IDS, NUMBERS) or nested or (2, layers // 2, layers - 3))


def _within(said: Settings, layers: int, taps: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``taps``. Raises ModelUnavailable if there are none, or if the target lacks one of these hidden states."""
    if not taps or not all(0 <= tap <= layers for tap in taps):
        raise said.refusal(f"reads hidden states {list(taps)} of a target with {layers} layers")
    return taps


def _notes(settings: Mapping[str, Any], kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return notes on settings that trainers and engines interpret differently."""
    notes = []
    if settings.get(f"eagle_config.{_LAYER_IDS}") and not settings.get(_LAYER_IDS):
        notes.append(
            f"{_LAYER_IDS} under eagle_config are read as SGLang reads them, the outputs of these layers; vLLM 0.32 takes the "
            "states before them."
        )
    if settings.get("norm_output") and "speculators_model_type" not in settings:
        notes.append(
            "norm_output is read as vLLM reads it: the normalised state is fed back. SpecForge up to August 2026 meant only the "
            "norm before the head, and fed back the state itself."
        )
    if _ANGELSLIM in kinds and not settings.get("rope_scaling") and settings.get("rope_theta") not in (None, 10000):
        notes.append(
            f"rope_theta {settings['rope_theta']} is read as engines read it; AngelSlim's trainer of August 2026 uses base "
            "10000 where rope_scaling is empty."
        )
    return tuple(notes)


def _sizes(
    layout: Layout, said: Settings, stored: Repository, names: Mapping[str, Stored], target: Fit, first: str = "layers.0"
) -> dict[str, Any]:  # fmt: skip
    """Return the sizes of :class:`HeadConfig`, from the settings and from the query projection of the layer called ``first``.

    In ``wide`` layouts, heads with their own embedding and output head may be narrower than the target. Raises ModelUnavailable
    if sizes do not fit.
    """
    name, hidden, heads = said.name, said.get("hidden_size", SIZE), said.get("num_attention_heads", SIZE)
    target_hidden = said.get("target_hidden_size", SIZE, hidden)
    narrower = "wide" in layout.config and {"embed_tokens.weight", "lm_head.weight"} <= set(names)
    if target_hidden != target.hidden or not (hidden == target_hidden or narrower):
        raise ModelUnavailable(
            f"{name} was made for hidden states of width {target_hidden} and is {hidden} wide, but the hidden states of "
            f"{target.name} have width {target.hidden}: choose the target it was trained for."
        )
    queries = names.get(f"{first}.self_attn.q_proj.weight")
    if queries is None:
        raise ModelUnavailable(f"{name} lacks the first layer's self_attn.q_proj.weight: these are not {layout.short} heads.")
    kv_heads = said.get("num_key_value_heads", SIZE, heads)
    # head_dim is often missing from the config, and need not be hidden / heads.
    rows = len(stored.tensor(queries))
    size = said.get("head_dim", SIZE, max(1, rows // heads))
    if heads % kv_heads or size % 2 or size * heads > rows:
        raise said.refusal(f"has {heads} heads of size {size} on {kv_heads} KV heads, which do not fit together")
    sizes = {"vocab_size": len(target.embedding), "hidden": hidden, "target_hidden": target_hidden, "heads": heads}
    return {**sizes, "kv_heads": kv_heads, "head_size": size, "inner": said.get("intermediate_size", SIZE)}


def _weights(
    layout: Layout, stored: Repository, target: Fit, names: Mapping[str, Stored], config: HeadConfig
) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor | None]:
    """Return the learned tensors, the embedding, the output head, and the token ids of the head's rows (None: all tokens).

    The target supplies embedding rows that MSD does not store. Raises ModelUnavailable naming the tensor that is missing,
    unknown, or of the wrong shape.
    """
    narrow = _VOCABULARY if config.wide or config.paired or layout.network == "fill" else frozenset()
    also = _OF_THE_TARGET | narrow | {"lm_head.weight", "embed_tokens.weight"}
    tensors = tensors_of(stored, names, config.shapes(), layout.short, also)  # checked before any conversion allocates memory
    embedding = target.embedding
    if "embed_tokens.weight" in names:
        rows = len(embedding)
        if layout is LAYOUTS["msd"]:  # a later release of the target appended image tokens
            rows = min(rows, len(stored.tensor(names["embed_tokens.weight"])))
        own = shaped(stored, names, "embed_tokens.weight", (rows, config.hidden)).to(embedding)
        own = torch.cat((own, embedding[rows:])) if rows < len(embedding) else own
        embedding = embedding if torch.equal(own, embedding) else own  # keep the heads' embedding only if training changed it
    ids = _draft_ids(stored, names, len(embedding)) if "d2t" in names else None
    head = target.head if ids is None else target.head[ids.to(target.head.device)]
    if "lm_head.weight" in names:
        head = shaped(stored, names, "lm_head.weight", (len(head), config.hidden)).to(head)
    exact = torch.promote_types(head.dtype, torch.float32)
    for name, value in tensors.items():
        tensors[name] = value.to(head.device, exact if name.endswith(_ROUTER) else head.dtype)
        if not bool(torch.isfinite(tensors[name]).all()):
            raise ModelUnavailable(f"{names[name]} of {stored.name} holds values that are not finite. Download the heads again.")
    return tensors, embedding, head, ids


def _block_fill(layout: Layout, stored: Repository, target: Fit) -> BlockFill:
    """Read a block drafter of z-lab, DeepSpec or the speculators library. Raises ModelUnavailable naming what does not fit."""
    said, names = Settings(stored.name, stored.config), layout.names_in(stored)
    library = "speculators_model_type" in said.values
    if library:
        said = _speculators_settings(layout, said, target)
    else:
        said = Settings(said.name, {**said.values, **said.section("dflash_config").values, "dflash_config": None})
        said.refuse_unknown(SIZES | set(layout.read), layout.values)
    if (layers := said.get("num_target_layers", SIZE, target.layers)) != target.layers:
        raise said.refusal(f"was made for a target of {layers} layers (num_target_layers), but {target.name} has {target.layers}")
    if said.values.get("mask_token_id") is None:
        raise said.refusal("does not set mask_token_id, the token at positions yet to be filled")
    markov = "markov_head.markov_w1.weight" in names
    # DeepSpec stores embedding and head, z-lab does not. DeepSpec uses one class name for both of its drafters.
    deepspec = not library and {"embed_tokens.weight", "lm_head.weight"} <= set(names)
    dspark = "dspark" in (said.values.get("speculators_model_type"), said.values.get("projector_type"))
    own = said.layers(len(stored.files))
    windows = said.windows(own)
    kind = next(
        (kind for kind, part in zip(MARKOV[1:], ("gate", "joint"), strict=True) if f"markov_head.{part}_proj.weight" in names),
        MARKOV[0],
    )
    if markov and said.values.get("markov_head_type", kind) != kind:
        raise said.refusal(f"says markov_head_type {shown(said.values['markov_head_type'])}, but its tensors are {kind}")
    selects, mixes = "candidate_selector.hidden_projection.weight" in names, "layers.0.attention_conv.base_kernel" in names
    rank, field = 0, ""
    if markov:
        rank, field = stored.tensor(names["markov_head.markov_w1.weight"]).shape[1], "markov_rank"
    elif selects:
        rank, field = len(stored.tensor(names["candidate_selector.hidden_projection.weight"])), "selector_rank"
    if field and (known := said.get(field, SIZE, rank)) != rank:
        raise said.refusal(f"says {field} {known}, but its tensors have {rank}")
    sizes = _sizes(layout, said, stored, names, target)
    confidence = names.get("confidence_head.proj.weight")
    if said.get("enable_confidence_head", bool, confidence is not None) != (confidence is not None):
        raise said.refusal("says enable_confidence_head, but its tensors disagree")
    conventions = HeadConventions(
        taps=_block_taps(said, target.layers, own, library),
        windows=windows,
        eps=said.get("rms_norm_eps", POSITIVE, 1e-6),
        rotary_pairs=not said.get("is_neox_style", bool, True),
        **said.rotary(sizes["head_size"]),
    )
    config = FillConfig(
        **sizes, **layout.config, **layout.flags(said, names), layers=own, how=conventions,
        block=said.get("block_size", SIZE, 8 if library else 16), mask=said.get("mask_token_id", TOKEN),
        from_anchor=said.get("sample_from_anchor", bool, dspark or deepspec or (markov and not library)),
        causal=_causal(said, own, windows, library),
        embedding_scale=said.get("input_embedding_scale", POSITIVE, 1.0),
        logit_scale=said.get("output_multiplier", POSITIVE, 1.0),
        softcap=said.get("final_logit_softcapping", POSITIVE) if said.values.get("final_logit_softcapping") else 0.0,
        conv_taps=said.get("conv_kernel_size", SIZE, 2) if mixes else 0, conv_group=said.get("conv_group_size", SIZE, 16),
        candidates=said.get("selector_top_k", SIZE, 16) if selects else 0, markov=kind if markov else "", rank=rank,
        confidence_reads_token=confidence is not None and stored.tensor(confidence).shape[-1] > sizes["hidden"],
        draft_vocab=len(stored.tensor(names["d2t"])) if "d2t" in names else 0,
    )  # fmt: skip
    if not 2 <= config.block <= _MOST_ROWS or config.mask >= config.vocab_size or sizes["hidden"] % config.conv_group:
        raise said.refusal("has an invalid block_size, mask_token_id or conv_group_size")
    tensors, embedding, head, ids = _weights(layout, stored, target, names, config)
    if ids is not None and selects:
        raise said.refusal("selects candidates of a draft vocabulary, which no engine does")
    net = BlockFill(config, embedding, head, ids)
    net.load_state_dict(tensors)
    net.dialect = layout.short
    return net.to(head.device, head.dtype).eval().requires_grad_(False)


def _block_taps(said: Settings, layers: int, own: int, library: bool) -> tuple[int, ...]:
    """Return the taps of a block drafter as indices of transformers' hidden states, which the speculators library stores. z-lab
    and DeepSpec store layer numbers, -1 for the embedding."""
    if library:
        return _within(said, layers, said.get("aux_hidden_state_layer_ids", NUMBERS))
    ids = said.get("target_layer_ids", LAYER_IDS)
    spread = [layers // 2] if own == 1 else [round(1 + place * (layers - 4) / (own - 1)) for place in range(own)]
    return _within(said, layers, tuple(layer + 1 for layer in ids or spread))


def _causal(said: Settings, layers: int, windows: tuple[int, ...], library: bool) -> tuple[bool, ...]:
    """Return, per layer, whether rows of a block attend only to earlier rows; by default if the layer has a sliding window."""
    for field in ("is_causal", "causal"):
        if not library and said.values.get(field) is not None:
            return (said.get(field, bool),) * layers
    if not library and said.get("causal_head", bool):
        return (True,) * layers
    both = library and said.get("sliding_window_non_causal", bool, said.values["speculators_model_type"] == "dflash2")
    return tuple(window > 0 and not both for window in windows)


def _draft_ids(stored: Repository, names: Mapping[str, Stored], vocab: int) -> Tensor:
    """Return the token id of each row of the head; ``d2t`` stores the id minus the row number.

    Raises ModelUnavailable unless the ids are distinct tokens of the target and agree with ``t2d``.
    """
    offsets = stored.tensor(names["d2t"]).long()
    mask = stored.tensor(names["t2d"]).bool() if "t2d" in names else None

    def is_vocabulary(ids: Tensor) -> bool:
        good = ids.ndim == 1 and bool(((ids >= 0) & (ids < vocab)).all()) and len(ids.unique()) == len(ids)
        if good and mask is not None:
            good = len(mask) <= vocab and int(mask.sum()) == len(ids) and bool(mask[ids.clamp(max=len(mask) - 1)].all())
        return good

    ids = offsets + torch.arange(len(offsets))
    if is_vocabulary(ids):
        return ids
    reason = f"is not one of the target's {vocab} tokens: choose the target these heads were trained for"
    if is_vocabulary(offsets):
        reason = "holds token ids, but every engine reads each id's offset from its row number: subtract the row number"
    raise ModelUnavailable(f"The draft vocabulary of {stored.name} (d2t, t2d) {reason}.")


def _parallel_net(layout: Layout, stored: Repository, target: Fit) -> ParallelNet:
    """Read Medusa heads; other weights in the folder are ignored. Raises ModelUnavailable naming what does not fit."""
    names = {name: own for name, own in layout.names_in(stored).items() if re.fullmatch(layout.when[0]["tensor"], name)}
    numbers = [[int(number) for number in name.split(".")[:2]] for name in names]
    heads, blocks = 1 + max(head for head, _ in numbers), max(block for _, block in numbers)
    if max(heads, blocks) > _MOST_HEADS:  # checked before memory is allocated
        raise ModelUnavailable(f"{stored.name} numbers its tensors up to {max(heads, blocks)}: these are not Medusa heads.")
    # medusa-vicuna-7b-v1.3 declares two heads and stores five, which its authors' loader accepts, so extra heads are allowed.
    for field, count in (("medusa_num_heads", heads), ("medusa_num_layers", blocks)):
        if isinstance(said := stored.config.get(field), int) and count < said:
            raise ModelUnavailable(
                f"{stored.name} holds {count} where its config.json says {said} ({field}): some are missing. Download it again."
            )
    net = ParallelNet(ParallelConfig(target.hidden, heads, target.layers, blocks), target.head)
    shapes: dict[str, Sequence[int]] = {name: value.shape for name, value in net.heads.state_dict().items()}
    last = {f"{head}.{blocks}.weight": target.head.shape for head in range(heads)}
    tensors = tensors_of(stored, names, {**shapes, **last}, layout.short)
    net.outputs = torch.stack([tensors.pop(name).to(target.head) for name in last])
    net.heads.load_state_dict(tensors)
    return net.to(target.head.device, target.head.dtype).eval().requires_grad_(False)


def _cross_net(layout: Layout, stored: Repository, target: Fit) -> CrossNet:
    """Read a DREAM drafter that uses the target's embedding and head. Raises ModelUnavailable naming what does not fit."""
    said = Settings(stored.name, stored.config)
    said.refuse_unknown(SIZES, layout.values)
    names = layout.names_in(stored)
    sizes = _sizes(layout, said, stored, names, target, "first")
    del sizes["target_hidden"]
    turning = said.rotary(sizes["head_size"])
    if set(turning) - {"theta", "rates"}:
        raise said.refusal("has rotary positions in a form that its authors' code does not compute")
    config = CrossConfig(
        **sizes, taps=(0, target.layers), wide=False, eps=said.get("rms_norm_eps", POSITIVE, 1e-6), entry_norm=False,
        inner_norms=True, sink=False, keep=1.0, **turning,
    )  # fmt: skip
    names.pop("embed_tokens.weight", None)
    gates = [names.pop(f"cross_attn_{part}_gate", "") for part in ("attn", "mlp")]
    if all(gates):
        names["reading.gates"] = tuple(gates)
    for part, rows in (("mlp.gate_proj", config.inner), ("self_attn.k_proj", config.kv_heads * config.head_size)):
        shaped(stored, names, f"first.{part}.weight", (rows, config.hidden))  # checked before the network is built
    net = CrossNet(config, target.embedding, target.head)
    shapes = {key: value.shape for key, value in net.state_dict().items()}
    net.load_state_dict(tensors_of(stored, names, shapes, layout.short))
    return net.to(target.head.device, target.head.dtype).eval().requires_grad_(False)


_READERS: Mapping[str, Callable[[Layout, Repository, Fit], Any]] = {
    "feature": published_eagle_head,
    "parallel": _parallel_net,
    "cross": _cross_net,
    "fill": _block_fill,
}
