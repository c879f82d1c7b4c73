"""Alternative readings of a head: the same weights under every convention that published heads or engines differ in."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.networks.block_fill import BlockFill
from specviz.drafting.networks.head_config import EACH, TOGETHER
from specviz.inspection.forced import Reading
from specviz.models.hub.published import Fit

_SWITCHES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


@dataclass(frozen=True)
class Alternative:
    """A reading under one changed convention. ``name`` completes "with …"; ``blame`` is the cause if this reading is right."""

    name: str
    blame: str
    reading: Reading


def alternatives(
    reading: Reading, target: Fit, theta: float | None = None, sections: tuple[int, ...] | None = None
) -> Iterator[Alternative]:
    """Yield every reading one convention away from ``reading``. ``theta`` is the target's rotary base. ``sections`` counts the
    target's rotary rates for time, height and width: () if a token has one position, None without a picture."""
    if isinstance(reading.head, BlockFill):
        yield from _blocks(reading, reading.head)
    yield from _switched(reading, sections is not None)
    yield from _taps(reading, target.layers)
    yield from _norms(reading)
    yield from _positions(reading, theta)
    if not isinstance(reading.head, BlockFill):
        yield from _shifted(reading)
    if sections is not None:
        yield from _pictures(reading, sections)
    yield from _vocabularies(reading, target)


def required_layers(taps: tuple[int, ...], layers: int, rounds: int) -> tuple[int, ...]:
    """Return the hidden states that readings up to ``rounds`` conventions away may use."""
    near = {tap + step for tap in taps for step in range(-rounds, rounds + 1)}
    return tuple(sorted(tap for tap in near if 0 <= tap <= layers))


def _changed(reading: Reading, **conventions: Any) -> Reading:
    return replace(reading, head=reading.head.read_as(**conventions))


def _switched(reading: Reading, with_picture: bool) -> Iterator[Alternative]:
    """Yield the readings that turn one convention on or off."""
    config, how = reading.head.config, reading.head.config.how
    applies = {
        "normed_residual": config.wide,
        "feeds_normed": config.wide or config.paired,
        "embedding_first": not isinstance(reading.head, BlockFill),
        "rotary_pairs": True,
        "pictured": with_picture,
        "direct": with_picture and how.pictured and not config.wide,
        "sections_woven": with_picture and how.sections,
    }
    for convention in filter(applies.get, applies):
        value = not getattr(how, convention)
        name, blame = _SWITCHES[convention]["on" if value else "off"]
        others = {"direct": False} if convention == "pictured" else {}
        yield Alternative(name, blame, _changed(reading, **{convention: value}, **others))


def _taps(reading: Reading, layers: int) -> Iterator[Alternative]:
    taps = reading.head.config.taps
    for step, word in ((-1, "lower"), (1, "higher")):
        moved = tuple(tap + step for tap in taps)
        if all(0 <= tap <= layers for tap in moved):
            what = "taps" if len(taps) > 1 else "its tap"
            yield Alternative(f"{what} one {word}", "the configuration names the wrong layers, or numbers them differently",
                        _changed(reading, taps=moved))  # fmt: skip
    if len(taps) > 1 and taps != taps[::-1]:
        yield Alternative(
            "taps in reverse order", "the configuration names the layers in the wrong order", _changed(reading, taps=taps[::-1])
        )


def _norms(reading: Reading) -> Iterator[Alternative]:
    config, how = reading.head.config, reading.head.config.how
    if config.wide or config.paired:
        # Without the norm an output is fed back unchanged, even with norm_output.
        yield Alternative("no norm before the head", "the final norm is not the head's own, or was folded into it",
                          _changed(reading, head_norm=not how.head_norm, feeds_normed=False))  # fmt: skip
    if how.entry_norm in (TOGETHER, EACH):
        yield Alternative("no norm before the projection", "the hidden states must not be normalised before fc",
                          _changed(reading, entry_norm=""))  # fmt: skip
    # Norms' weights are factors, or differences from one: converters shift them once, twice or in part.
    entry, rest = {"centred_entry": not how.centred_entry}, {"centred": not how.centred}
    for name, changed in (("all", entry | rest), ("entry", entry), ("layer", rest)) if config.paired else ():
        shifted = next(iter(changed.values()))
        form, truth = ("plus one", "their difference from one") if shifted else ("unchanged", "factors")
        blame = f"they are stored as {truth}: the checkpoint's converter shifted the wrong norms"
        yield Alternative(f"{name} norms' weights {form}", blame, _changed(reading, **changed))


def _positions(reading: Reading, theta: float | None) -> Iterator[Alternative]:
    how = reading.head.config.how
    bases = {10000.0: "the default, which some trainers use regardless of rope_theta"}
    if theta is not None:
        bases.setdefault(theta, "the target's own")
    for base, whose in bases.items():
        if (base, ()) != (how.theta, how.rates):
            yield Alternative(f"rotary base {base:g}", f"rope_theta is wrong: {base:g} is {whose}",
                        _changed(reading, theta=base, rates=(), rotary_scale=1.0))  # fmt: skip
    if any(how.windows):
        yield Alternative("the whole text instead of a window", "the head was not trained with this sliding window",
                          _changed(reading, windows=()))  # fmt: skip


def _shifted(reading: Reading) -> Iterator[Alternative]:
    """Yield the readings whose tokens and states are paired otherwise."""
    for step, word in ((-1, "lower"), (1, "higher")):
        yield Alternative(f"drafted positions one {word}", "drafted tokens have positions off by one",
                          replace(reading, shift=reading.shift + step))  # fmt: skip
    for step, word in ((-1, "later"), (1, "earlier")):
        if reading.lag + step >= 0:
            yield Alternative(f"states of one token {word}", "states and tokens are paired off by one",
                        replace(reading, lag=reading.lag + step))  # fmt: skip


def _blocks(reading: Reading, network: BlockFill) -> Iterator[Alternative]:
    """Yield the readings of a block drafter that swap what its rows predict, or what they see."""
    config = network.config
    name, blame = _SWITCHES["from_anchor"]["off" if config.from_anchor else "on"]
    yield Alternative(name, blame, replace(reading, head=network.read_as({"from_anchor": not config.from_anchor})))
    for causal in ((), (True,) * config.layers):
        if any(causal) != any(config.causal) or (any(causal) and not all(config.causal)):
            name, blame = _SWITCHES["causal"]["on" if causal else "off"]
            yield Alternative(name, blame, replace(reading, head=network.read_as({"causal": causal})))


def _pictures(reading: Reading, sections: tuple[int, ...]) -> Iterator[Alternative]:
    config, how = reading.head.config, reading.head.config.how
    if how.sections:
        yield Alternative("one position per token", "the head was trained on text positions, not on time, height and width",
                          _changed(reading, sections=(), sections_woven=False))  # fmt: skip
    elif sum(sections) == (len(how.rates) or config.head_size // 2):
        yield Alternative(
            "the target's three positions per token",
            "the head was trained with mrope, which its configuration omits",
            _changed(reading, sections=sections),
        )


def _vocabularies(reading: Reading, target: Fit) -> Iterator[Alternative]:
    head, fits = reading.head, reading.head.config.hidden == target.embedding.shape[1]
    ids, embedding = head.draft_ids, target.embedding.to(head.embedding)
    if fits and not _same(head.embedding, embedding):
        yield Alternative("the target's embedding", "the head's own embedding is not the one it was trained on",
                          _with_ends(reading, embedding=embedding))  # fmt: skip
    own = (target.head if ids is None else target.head[ids]).to(head.head)
    if fits and not _same(head.head, own):
        yield Alternative("the target's own head", "the head's own lm_head belongs to another model",
                          _with_ends(reading, head=own))  # fmt: skip
    if ids is not None:
        for step, word in ((-1, "lower"), (1, "higher")):
            moved = (ids + step).clamp(0, head.config.vocab_size - 1)
            yield Alternative(f"draft tokens one {word}", "d2t is off by one", _with_ends(reading, draft_ids=moved))


def _with_ends(reading: Reading, **ends: Tensor) -> Reading:
    """The reading of the same weights with another embedding, head or draft vocabulary."""
    head = reading.head
    return replace(reading, head=head.with_ends(**ends) if isinstance(head, BlockFill) else replace(head, **ends))  # type: ignore[arg-type]


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool(torch.equal(first, second))
