"""Parts of published heads common to all dialects: sizes, embedding, head, draft vocabulary, tensors by name and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.head_config import HeadConfig, HeadConventions
from specviz.errors import ModelUnavailable
from specviz.models.heads.head_settings import OURS, positive, whole_number
from specviz.models.hub.published import Fit, Repository, refuse_strangers, shaped

_BESIDE = frozenset({"lm_head.weight", "d2t", "t2d", "embed_tokens.weight"})
_ROUTER = ("mlp.gate.weight", "mlp.gate.e_score_correction_bias")
"""Tensors of the expert router, which keep float32: differences beyond half precision decide."""
_OF_THE_TARGET = frozenset({"verifier_lm_head.weight", "verifier_norm.weight"})
"""Tensors of the target that some trainers store beside the head; drafting does not read them."""


def head_sizes(
    stored: Repository, target: Fit, names: Mapping[str, str], settings: Mapping[str, Any], kind: str, narrower: bool
) -> dict[str, Any]:
    """Sizes of :class:`HeadConfig`, from the settings and the first layer's queries. ``narrower`` allows heads narrower than the
    target if they have their own embedding and head. Raises ModelUnavailable where sizes do not fit each other or the target."""
    name = stored.name
    hidden = whole_number(name, settings, "hidden_size")
    heads = whole_number(name, settings, "num_attention_heads")
    target_hidden = whole_number(name, settings, "target_hidden_size", hidden)
    own = {"embed_tokens.weight", "lm_head.weight"} <= set(names)
    if target_hidden != target.hidden or not (hidden == target_hidden or (narrower and own)):
        raise ModelUnavailable(
            f"{name} was made for hidden states {target_hidden} wide and is {hidden} wide itself, and those of "
            f"{target.name} are {target.hidden}: choose the target it was trained for."
        )
    queries = names.get("layers.0.self_attn.q_proj.weight")
    if queries is None:
        raise ModelUnavailable(f"{name} lacks the first layer's self_attn.q_proj.weight: these are no {kind} heads.")
    kv_heads = whole_number(name, settings, "num_key_value_heads", heads)
    # Often not hidden / heads, and then not always in the config.
    rows = len(stored.tensor(queries))
    size = whole_number(name, settings, "head_dim", max(1, rows // heads))
    if heads % kv_heads or size % 2 or size * heads > rows:
        raise ModelUnavailable(f"{name} has {heads} heads of {size} on {kv_heads}, which its config.json has wrong.")
    inner = whole_number(name, settings, "intermediate_size")
    sizes = {"vocab_size": target.embedding.shape[0], "hidden": hidden, "target_hidden": target_hidden, "inner": inner}
    return {**sizes, "heads": heads, "kv_heads": kv_heads, "head_size": size}


def fitting_taps(name: str, taps: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Return the ``taps`` of a head. Raises ModelUnavailable where the target lacks such hidden states."""
    if not taps or not all(0 <= tap <= layers for tap in taps):
        raise ModelUnavailable(f"{name} reads hidden states {list(taps)} of a target with {layers} layers. {OURS}")
    return taps


def assembled(
    stored: Repository, target: Fit, names: Mapping[str, str], config: HeadConfig, kind: str, notes: tuple[str, ...] = (),
    shorter: bool = False,
) -> FeatureHead:  # fmt: skip
    """Build the head in the target's number format, checking its tensors one by one. ``shorter`` allows an embedding with fewer
    rows than the target's, which supplies the rest.

    Raises ModelUnavailable naming the tensor that is missing, of another shape, or without a place in this dialect.
    """
    shapes = config.shapes()
    for name, shape in shapes.items():  # before any conversion: a wrong config must not allocate memory
        shaped(stored, names, name, shape)
    refuse_strangers(stored, {name: own for name, own in names.items() if name not in _OF_THE_TARGET}, {*shapes, *_BESIDE}, kind)
    embedding = _embedding(stored, target, names, config.hidden, shorter)
    head, ids = _head_and_ids(stored, target, names, config.hidden)
    like, exact = target.head, torch.promote_types(target.head.dtype, torch.float32)
    tensors = {
        name: shaped(stored, names, name, shape).to(like.device, exact if name.endswith(_ROUTER) else like.dtype)
        for name, shape in shapes.items()
    }
    for name, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise ModelUnavailable(f"{names[name]} of {stored.name} holds values that are no numbers. Get the heads anew.")
    if target.layers in config.taps and not config.paired:  # every engine gives MTP layers that state
        last = f"reads hidden state {target.layers}, the last: here it is the state after the final norm"
        notes = (*notes, f"It {last}, in engines often the one before it.")
    unused = tuple(
        f"{names[name]} is the target's, and nothing of drafting reads it." for name in sorted(_OF_THE_TARGET & set(names))
    )
    return FeatureHead(config, tensors, embedding, head, ids, kind, (*notes, *unused))


def conventions(name: str, taps: tuple[int, ...], settings: Mapping[str, Any], **more: Any) -> HeadConventions:
    """Conventions with the norms' epsilon from the settings, 1e-6 by default."""
    return HeadConventions(taps=taps, eps=positive(name, settings, "rms_norm_eps", 1e-6), **more)


def _embedding(stored: Repository, target: Fit, names: Mapping[str, str], hidden: int, shorter: bool) -> Tensor:
    """The heads' own embedding, which may have been trained; the target's if they have none or the same."""
    if "embed_tokens.weight" not in names:
        return target.embedding
    rows = target.embedding.shape[0]
    if shorter:  # a later release of the target appended tokens for pictures
        rows = min(rows, len(stored.tensor(names["embed_tokens.weight"])))
    own = shaped(stored, names, "embed_tokens.weight", (rows, hidden)).to(target.embedding)
    own = torch.cat((own, target.embedding[rows:])) if rows < len(target.embedding) else own
    return target.embedding if torch.equal(own, target.embedding) else own


def _head_and_ids(stored: Repository, target: Fit, names: Mapping[str, str], hidden: int) -> tuple[Tensor, Tensor | None]:
    """The head's rows and the token of each (None: every token, in order)."""
    vocab = target.embedding.shape[0]
    ids = _draft_ids(stored, names, vocab) if "d2t" in names else None
    if "lm_head.weight" not in names:
        return (target.head if ids is None else target.head[ids.to(target.head.device)]), ids
    rows = vocab if ids is None else len(ids)
    return shaped(stored, names, "lm_head.weight", (rows, hidden)).to(target.head), ids


def _draft_ids(stored: Repository, names: Mapping[str, str], vocab: int) -> Tensor:
    """Token of each row of the head, from ``d2t``: the offset of each token from its row's number.

    Raises ModelUnavailable unless the tokens are the target's and agree with ``t2d``.
    """
    offsets = stored.tensor(names["d2t"]).long()
    ids = offsets + torch.arange(len(offsets))
    known = stored.tensor(names["t2d"]).bool() if "t2d" in names else None
    if not _is_vocabulary(ids, vocab, known):
        why = f"is not one of the target's {vocab} tokens: choose the target these heads were trained for"
        if _is_vocabulary(offsets, vocab, known):
            why = "holds the tokens themselves where every engine reads how far each lies from its row: subtract the row's number"
        raise ModelUnavailable(f"The draft vocabulary of {stored.name} (d2t, t2d) {why}.")
    return ids


def _is_vocabulary(ids: Tensor, vocab: int, known: Tensor | None) -> bool:
    good = ids.ndim == 1 and bool((ids >= 0).all()) and bool((ids < vocab).all()) and len(ids.unique()) == len(ids)
    if good and known is not None:
        good = len(known) <= vocab and int(known.sum()) == len(ids) and bool(known[ids.clamp(max=len(known) - 1)].all())
    return good
