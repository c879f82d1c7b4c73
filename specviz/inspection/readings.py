"""Alternative readings of a head: the same weights under the conventions in which published heads and engines differ."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specviz.drafting.networks.block_fill import BlockFill
from specviz.drafting.networks.eagle_head import PublishedEagleHead
from specviz.drafting.networks.head_config import EACH, TOGETHER
from specviz.inspection.forced import Reading
from specviz.models.hub.published import Fit

Head = PublishedEagleHead | BlockFill
Change = tuple[str, str, dict[str, Any]]
"""Name, probable cause and changed conventions of an alternative."""

NEIGHBOURS = ((-1, "lower"), (1, "higher"))
_SWITCHES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


@dataclass(frozen=True)
class Alternative:
    """A reading with one convention changed. ``name`` completes "with …"; ``blame``: cause to report if this reading is
    better.
    """

    name: str
    blame: str
    reading: Reading


def alternatives(
    reading: Reading, target: Fit, theta: float | None = None, sections: tuple[int, ...] | None = None
) -> Iterator[Alternative]:
    """Yield the readings that differ from ``reading`` in one convention.

    ``theta``: the target's rotary base. ``sections``: numbers of the target's rotary frequencies for time, height and width; ()
    for one-dimensional positions, None without an image.
    """
    head = reading.head
    for name, blame, conventions in _conventions(head, target.layers, theta, sections):
        yield Alternative(name, blame, replace(reading, head=head.read_as(**conventions)))
    if isinstance(head, BlockFill):  # predicted positions and attention mask
        name, blame = _SWITCHES["from_anchor"]["off" if head.config.from_anchor else "on"]
        yield Alternative(name, blame, replace(reading, head=head.read_as({"from_anchor": not head.config.from_anchor})))
        own = head.config.causal
        for causal in ((), (True,) * head.config.layers):
            if any(causal) != any(own) or (any(causal) and not all(own)):
                name, blame = _SWITCHES["causal"]["on" if causal else "off"]
                yield Alternative(name, blame, replace(reading, head=head.read_as({"causal": causal})))
    else:  # alignment of tokens and states
        for step, word in NEIGHBOURS:
            other = replace(reading, shift=reading.shift + step)
            yield Alternative(f"drafted positions one {word}", "drafted tokens have positions off by one", other)
        for step, word in ((-1, "later"), (1, "earlier")):
            if reading.lag + step >= 0:
                other = replace(reading, lag=reading.lag + step)
                yield Alternative(f"states of one token {word}", "states and tokens are paired off by one", other)
    for name, blame, ends in _ends(head, target):
        changed = head.with_ends(**ends) if isinstance(head, BlockFill) else replace(head, **ends)
        yield Alternative(name, blame, replace(reading, head=changed))


def required_layers(taps: tuple[int, ...], layers: int, rounds: int) -> tuple[int, ...]:
    """Return the layers whose states may be needed after ``rounds`` changes of convention."""
    near = {tap + step for tap in taps for step in range(-rounds, rounds + 1)}
    return tuple(sorted(tap for tap in near if 0 <= tap <= layers))


def _conventions(head: Head, layers: int, theta: float | None, sections: tuple[int, ...] | None) -> Iterator[Change]:
    """Yield changes of one convention in the configuration."""
    config, how, with_picture = head.config, head.config.how, sections is not None
    applies = {
        "normed_residual": config.wide,
        "feeds_normed": config.wide or config.paired,
        "embedding_first": not isinstance(head, BlockFill),
        "rotary_pairs": True,
        "pictured": with_picture,
        "direct": with_picture and how.pictured and not config.wide,
        "sections_woven": with_picture and how.sections,
    }
    for convention in filter(applies.get, applies):
        value = not getattr(how, convention)
        name, blame = _SWITCHES[convention]["on" if value else "off"]
        yield name, blame, {convention: value, **({"direct": False} if convention == "pictured" else {})}

    taps, what = config.taps, "taps" if len(config.taps) > 1 else "its tap"
    for step, word in NEIGHBOURS:
        moved = tuple(tap + step for tap in taps)
        if all(0 <= tap <= layers for tap in moved):
            yield f"{what} one {word}", "the configuration names the wrong layers, or numbers them differently", {"taps": moved}
    if taps != taps[::-1]:
        yield "taps in reverse order", "the configuration names the layers in the wrong order", {"taps": taps[::-1]}

    if config.wide or config.paired:
        # Without the norm, the plain output is fed back whatever norm_output is.
        unnormed = {"head_norm": not how.head_norm, "feeds_normed": False}
        yield "no norm before the head", "the final norm is not the head's own, or was folded into it", unnormed
    if how.entry_norm in (TOGETHER, EACH):
        yield "no norm before the projection", "the hidden states must not be normalised before fc", {"entry_norm": ""}
    # Norm weights are stored as factors or as offsets from one, and converters may shift the wrong ones.
    entry, rest = {"centred_entry": not how.centred_entry}, {"centred": not how.centred}
    for name, changed in (("all", entry | rest), ("entry", entry), ("layer", rest)) if config.paired else ():
        shifted = next(iter(changed.values()))
        form, truth = ("plus one", "their difference from one") if shifted else ("unchanged", "factors")
        blame = f"they are stored as {truth}: the checkpoint's converter shifted the wrong norms"
        yield f"{name} norms' weights {form}", blame, changed

    bases = {10000.0: "the default, which some trainers use regardless of rope_theta"}
    if theta is not None:
        bases.setdefault(theta, "the target's own")
    for base, whose in bases.items():
        if (base, ()) != (how.theta, how.rates):
            blame = f"rope_theta is wrong: {base:g} is {whose}"
            yield f"rotary base {base:g}", blame, {"theta": base, "rates": (), "rotary_scale": 1.0}
    if any(how.windows):
        yield "the whole text instead of a window", "the head was not trained with this sliding window", {"windows": ()}
    if sections is not None and how.sections:
        plain = {"sections": (), "sections_woven": False}
        yield "one position per token", "the head was trained on text positions, not on time, height and width", plain
    elif sections is not None and sum(sections) == (len(how.rates) or config.head_size // 2):
        missing = "the head was trained with mrope, which its configuration omits"
        yield "the target's three positions per token", missing, {"sections": sections}


def _ends(head: Head, target: Fit) -> Iterator[Change]:
    """Yield changes of the embedding, the output head or the draft vocabulary."""
    ids, embedding = head.draft_ids, target.embedding.to(head.embedding)
    own = (target.head if ids is None else target.head[ids]).to(head.head)
    fits = head.config.hidden == target.embedding.shape[1]
    if fits and not torch.equal(head.embedding, embedding):
        yield "the target's embedding", "the head's own embedding is not the one it was trained on", {"embedding": embedding}
    if fits and not torch.equal(head.head, own):
        yield "the target's own head", "the head's own lm_head belongs to another model", {"head": own}
    if ids is not None:
        for step, word in NEIGHBOURS:
            moved = (ids + step).clamp(0, head.config.vocab_size - 1)
            yield f"draft tokens one {word}", "d2t is off by one", {"draft_ids": moved}
