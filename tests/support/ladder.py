"""The exactness ladder's table: which method, with which parameters, climbs in which world, and in which ways.

A new method is one row of ``ladder.toml``. Each row is compared with the target's own autoregressive run, run into the end of a
short context, started from the shortest prompts, and has its cache compared with a fresh prefill after every step.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.targets.text import TextTarget
from tests.support.tiny.text import LENGTH, Decoded, decode, int8_llama, tiny_target
from tests.support.worlds import hybrid, image, text, vision
from tests.support.worlds.foretold import foretold

Values = dict[str, Any]
Memory = dict[Any, Any]
DTYPES = {"float64": torch.float64, "float32": torch.float32}
WARPS = text.WARPS
SHORT = 40
"""Tokens of a context that is soon full."""
SHORTER = 66
"""Tokens of a run that is compared in one more way."""


@dataclass(frozen=True)
class Way:
    """How a run is made: the engine's tier, the target's number format, and the distribution that is drawn from."""

    tier: str = "eager"
    dtype: str = "float64"
    warped: str = "greedy"

    def __str__(self) -> str:
        return f"{self.tier}-{self.dtype}-{self.warped}"


GREEDY, PLAIN, NUCLEUS = Way(), Way(warped="warm"), Way(warped="nucleus")
SINGLE, SINGLE_NUCLEUS = Way(dtype="float32"), Way(dtype="float32", warped="nucleus")
GRAPH, GRAPH_WARM, GRAPH_SINGLE = Way("graph"), Way("graph", warped="warm"), Way("graph", "float32")
FAST = (
    (PLAIN, GREEDY),
    (GRAPH_SINGLE, GRAPH, GRAPH_WARM, SINGLE),
)
"""The first of each that a method climbs in is in the fast lane; of the second only with what is in ``CAPTURED``."""
CAPTURED = {("text", name) for name in ("prompt_lookup", "speculative_sampling", "eagle2", "medusa")}
REPEATED = ("granite", "experts", "pure")
"""Worlds whose every kind of layer is met in another world of the fast lane."""
EVERY_WAY = (PLAIN, GREEDY, NUCLEUS, GRAPH_WARM, GRAPH_SINGLE)


@dataclass
class Place:
    """One target of a world, and how methods are composed there."""

    target: Any
    prompt: list[int]
    compose: Callable[[str, Values, Warp, Memory], Composition]


def _text(tier: str, dtype: torch.dtype, context: int, device: str = "cpu", whole: bool = False) -> Place:
    target = tiny_target(tier, dtype, context=context or 1024, device=device)

    def compose(name: str, values: Values, warp: Warp, memory: Memory) -> Composition:
        return text.compose(name, values, target, warp, memory, whole=whole)

    return Place(target, text.PROMPT, compose)


def _int8(tier: str, dtype: torch.dtype, context: int, device: str = "cpu") -> Place:
    assert dtype == torch.float64, "between the products, whose matrices are integers"
    target = TextTarget(int8_llama(context=context or 1024), "tiny", (), tier)
    return Place(target, text.PROMPT, lambda name, values, warp, memory: text.compose(name, values, target, warp, memory))


def _state_space(kind: str) -> Callable[..., Place]:
    def opened(tier: str, dtype: torch.dtype, context: int, device: str = "cpu") -> Place:
        pair = hybrid.models(kind, dtype, context=context, device=device, tier=tier)
        return Place(pair[0], hybrid.PROMPT, lambda name, values, warp, memory: hybrid.compose(values, *pair, warp, name))

    return opened


def _vision(tier: str, dtype: torch.dtype, context: int, device: str = "cpu") -> Place:
    here = vision.world("smolvlm", tier, dtype, context=48 if context else 0, device=device)
    return Place(here.target, here.prompt, lambda name, values, warp, memory: vision.compose(name, values, here, warp))


def _image(tier: str, dtype: torch.dtype, context: int, device: str = "cpu") -> Place:
    here = image.World(2.0, 6, tier=tier, dtype=dtype, device=device)
    return Place(here.target, here.prompt, lambda name, values, warp, memory: here.compose(name, values, warp))


WORLDS: dict[str, Callable[..., Place]] = {
    "text": _text,
    "int8": _int8,
    "whole": partial(_text, whole=True),  # drafters know every token: trees too small to be right otherwise
    **{kind: _state_space(kind) for kind in hybrid.MODELS},
    "vision": _vision,
    "image": _image,
}


@dataclass(frozen=True)
class Row:
    """A method with parameters in a world.

    ``full`` are the tiers that run into the end of a context, ``audits`` the ways in which the cache is compared. Its ``ways``
    must accept ``least`` of their tokens, as a fraction, and once ``deep`` in a row, with rounds that accept fewer where that is
    more than one; ``misses`` wants a round that accepts none. A drafter may be told the text, all but every ``told``-th token.
    ``runs`` share a memory; with ``recalls`` the second needs fewer than 0.6 of the first one's rounds.
    """

    method: str
    values: Values = field(default_factory=dict)
    ways: tuple[Way, ...] = EVERY_WAY
    world: str = "text"
    full: tuple[str, ...] = ("eager", "graph")
    prompts: tuple[tuple[int, ...], ...] = ((5,), (5, 6, 7))
    audits: tuple[Way, ...] = (PLAIN, GRAPH_WARM)
    least: float = 0.001
    deep: int = 1
    misses: bool = False
    told: int = 0
    runs: int = 1
    recalls: bool = False

    def __str__(self) -> str:
        said = [f"{name}={value}" for name, value in self.values.items()]
        return "-".join([*([] if self.world == "text" else [self.world]), self.method, *said]).replace(" ", "_")

    @property
    def climbs(self) -> tuple[Way, ...]:
        """The ways that are compared: all of a method's first row in a world, of its others an eager one and a captured one."""
        if self is first(self):
            return self.ways
        orders = ((PLAIN, GREEDY), (GRAPH_SINGLE, GRAPH, SINGLE_NUCLEUS, SINGLE))
        return tuple(way for order in orders for way in [next((way for way in order if way in self.ways), None)] if way)

    def length(self, way: Way) -> int:
        """Tokens compared: over 200 in a method's first way in a world, and of a drafter that is seldom right; else fewer."""
        if (way == self.ways[0] and self is first(self)) or self.method == "language_only":
            return LENGTH
        return 100 if self.world == "vision" else SHORTER

    @property
    def ends(self) -> str:
        """The warp of the shortest prompts: warm where the text is the target's own at any temperature."""
        return "warm" if any(way.warped != "greedy" for way in self.ways) else "greedy"

    def open(self, way: Way, context: int = 0, device: str = "cpu") -> Place:
        return WORLDS[self.world](way.tier, DTYPES[way.dtype], context, device)

    def decode(self, place: Place, way: Way, expected: list[int], memory: Memory, budget: int = 0) -> Decoded:
        """A run of as many tokens as are expected, or of a smaller budget."""
        warp = WARPS[way.warped]
        if self.told:
            made = foretold(self.method, self.values, place.target, warp, expected, self.told)
        else:
            made = place.compose(self.method, self.values, warp, memory)
        return decode(place.target, made, place.prompt, budget or len(expected), warp, 7)


@cache
def baseline(
    world: str, way: Way, budget: int = 0, prompt: tuple[int, ...] = (), context: int = 0, seed: int = 7
) -> tuple[list[int], str]:
    """The target's own autoregressive run and why it ended, decoded once for all rows that compare with it."""
    place, warp = WORLDS[world](way.tier, DTYPES[way.dtype], context), WARPS[way.warped]
    # About a picture a drafter without sight is right so seldom that a third of a run might not show it.
    budget = budget or (max(LENGTH, 110) if world == "vision" else text.tokens(way.tier, DTYPES[way.dtype]))
    made = place.compose("autoregressive", {}, warp, {})
    run = decode(place.target, made, list(prompt) or place.prompt, budget, warp, seed)
    return run.ids, run.outcome.reason


TREE: Values = {"depth": 3, "width": 6, "nodes": 24}
"""Wide enough that an untrained network hits now and then."""


def _rows(name: str) -> list[Row]:
    def ways(group: str) -> tuple[Way, ...]:
        return tuple(Way(*way.split()) for way in _TABLE["ways"][group])

    read = {"ways": ways, "audits": ways, "full": tuple, "prompts": tuple}
    return [
        Row(**{key: read[key](value) if key in read else value for key, value in row.items()}) for row in _TABLE["rows"][name]
    ]


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
ROWS = _rows("ladder")
PICTURES = _rows("pictures")
"""Of image targets, whose rungs are in ``test_image_methods.py``: most of these methods are relaxed."""


def first(row: Row) -> Row:
    """The first row of a row's method in its world."""
    return next(one for one in ROWS if (one.world, one.method) == (row.world, row.method))


def fast(row: Row, climbed: tuple[Way, ...]) -> set[Way]:
    """Of ``climbed`` what is in the fast lane: a way or two of each method's first row in a world."""
    if row is not first(row) or row.world in REPEATED:
        return set()
    orders = FAST if (row.world, row.method) in CAPTURED else FAST[:1]
    return {way for order in orders for way in [next((way for way in order if way in climbed), None)] if way}
