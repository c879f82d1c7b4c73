"""The exactness ladder's table: which method, with which parameters, climbs in which world, and in which ways.

A new method is one row. Each row is compared with the target's own autoregressive run, run into the end of a short
context, started from the shortest prompts, and has its cache compared with a fresh prefill after every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch

from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from tests.support.tiny.text import LENGTH, Decoded, decode, tiny_target
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
BOTH_TIERS = (PLAIN, GRAPH_WARM, GRAPH_SINGLE)
GREEDY_WAYS = (GREEDY, GRAPH, GRAPH_SINGLE)
GREEDY_PLAIN = (GREEDY, GRAPH_SINGLE)
VISION_WAYS = (PLAIN, GRAPH, SINGLE)
GRAPH_TOO = (PLAIN, GRAPH, GRAPH_SINGLE)
STATE_WAYS = (PLAIN, GREEDY, SINGLE_NUCLEUS)


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


def _state_space(kind: str) -> Callable[..., Place]:
    def opened(tier: str, dtype: torch.dtype, context: int, device: str = "cpu") -> Place:
        pair = hybrid.models(kind, dtype, context=context, device=device)
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
BEAM: Values = {"depth": 3, "width": 8, "nodes": 32}
"""The same over the larger vocabulary of the picture world."""
ROWS: list[Row] = [
    Row("prompt_lookup"),
    Row("prompt_lookup", {"occurrence": "latest", "partial": True}),
    Row("token_recycling", {"tree": "published"}),
    Row("token_recycling", {"tree": "fitted"}),
    Row("stand", {"rule": "match", "nodes": 40}),
    Row("stand", {"nodes": 40}, GREEDY_WAYS),
    Row("speculative_sampling", {"gamma": 4}, GREEDY_WAYS),
    # Drafts that are looked up, with an empty and with a full memory.
    Row("suffix_decoding", runs=2, recalls=True),
    Row("suffix_decoding", {"shape": "path", "factor": 2.0, "offset": 1.0}, BOTH_TIERS, runs=2, recalls=True),
    Row("reader", {"drafter": "recycling"}, runs=2, recalls=True),
    *(
        Row("reader", values, BOTH_TIERS, runs=2, recalls=True)
        for values in (
            {"drafter": "none"},
            {"drafter": "recycling", "nodes": 12, "deepened": 0},
            {"drafter": "small_draft", "nodes": 40},
            {"drafter": "eagle3", "nodes": 30},
        )
    ),
    # Drafters that read the target's hidden states.
    Row("eagle", {"tree": "published"}, GREEDY_WAYS),
    Row("eagle", {"tree": "published", "rule": "match"}, BOTH_TIERS),
    *(Row(name, {**TREE, "rule": "match"}) for name in ("eagle2", "eagle3")),
    *(Row(name, TREE, GREEDY_WAYS) for name in ("eagle2", "eagle3")),
    Row("ddd", {**TREE, "threshold": "own", "log_mass": -1.2}, BOTH_TIERS),
    Row("ddd", {**TREE, "threshold": "paper", "levels": "published", "drafter": "eagle", "depth": 7}, GREEDY_PLAIN),
    Row("gto", TREE),
    Row("gto", {**TREE, "compare": True}, (PLAIN,), audits=()),  # its two caches: test_gto.py
    *(
        Row("traversal", values, GREEDY_WAYS, "whole")
        for values in (
            {"shape": "sparse"},
            {"shape": "binary", "depth": 3},
            {"shape": "chain", "depth": 4},
            {"shape": "chain", "depth": 4, "drafter": "draft_model"},
        )
    ),
    Row("medusa", {"tree": "published", "rule": "match"}, EVERY_WAY, least=0.05),
    Row("medusa", {"tree": "published", "rule": "typical"}, GREEDY_PLAIN, least=0.05),
    Row("ddtree", {"nodes": 24}, least=0.05),
    # Drafters of blocks and of states, told most of the text to come.
    Row("falcon", {"tree": "fitted", "nodes": 20}, told=4, deep=2),
    *(
        Row("falcon", values, (GREEDY, PLAIN), told=4, deep=2)
        for values in ({"tree": "fitted", "nodes": 60, "width": 12, "forwards": 4}, {"tree": "published"})
    ),
    Row("falcon", {"tree": "fitted"}, (PLAIN,), told=4, deep=2),  # as many nodes as pay
    Row("falcon", {"tree": "drawn"}, GREEDY_PLAIN, told=4, deep=2),
    Row("deer", {"block": 6}, GREEDY_WAYS, told=5, deep=4),
    *(Row("ddtree", {"drafter": name}, BOTH_TIERS, told=4, deep=2) for name in ("falcon", "deer")),
    Row("dflash", {"rule": "match", "nodes": 4}, told=4, deep=2),
    Row("dflash", {}, GREEDY_WAYS, told=5, deep=3),  # as long as pays
    Row("dflash", {"tree": "best_first"}, BOTH_TIERS, told=4, deep=2),
    Row("dflash", {"tree": "dynamic", "nodes": 12}, GREEDY_PLAIN, told=4, deep=2),
    Row("dspark", {"rule": "match", "threshold": 0.4}, BOTH_TIERS, told=4, deep=2),
    Row("dspark", {}, GREEDY_WAYS, told=5, deep=3),
    Row("dspark", {"tree": "best_first"}, GREEDY_PLAIN, told=4, deep=2),
    Row("dspark", {"tree": "dynamic", "rule": "match"}, BOTH_TIERS, told=4, deep=2),
    Row("diffuspec", {"longest": 9, "shortest": 3}, told=5, deep=2),
    Row("diffuspec", {"longest": 6, "adaptive": False, "weight": 1.0}, told=5, deep=2),
    Row("owl", TREE),
    Row("owl", {**TREE, "probe": False}, BOTH_TIERS),
    Row("howl", TREE, runs=2),
    Row("howl", {**TREE, "bar": "fixed", "threshold": 1.0}, runs=2),
    Row("howl", {**TREE, "bar": "fixed", "threshold": 0.0, "most": 8}, BOTH_TIERS, runs=2),
    # Several drafters or models in one run: exact in distribution, and so token for token where the text is greedy.
    Row("not_a_bandit", {"gamma": 4}, GREEDY_WAYS),
    Row("not_a_bandit", {"gamma": 3, "loss": "acceptance", "keep": 1.0}, GREEDY_PLAIN),
    Row("not_a_bandit", {"gamma": 4, "arm": "copy"}, GREEDY_PLAIN),
    Row("bandit_ucb", {"gamma": 4}, GREEDY_PLAIN),
    Row("bandit_exp3", {"gamma": 4}, GREEDY_PLAIN),
    Row("polybasic", {"middle": "plain_copy", "gathered": 6, "nodes": 5}, GREEDY_WAYS, least=0.5),
    Row("polybasic", {"middle": "int8", "gathered": 8, "depth": 3, "nodes": 6}, GREEDY_PLAIN, least=0.5),
    Row("polybasic", {"middle": "draft", "gathered": 4, "drafter": "eagle3", "depth": 3, "nodes": 4}, GREEDY_PLAIN, least=0.4),
    Row("polybasic", {"middle": "draft", "gathered": 5, "drafter": "copy"}, GREEDY_PLAIN, least=0.4),
    Row("polybasic", {"middle": "small_draft", "gathered": 3, "depth": 2}, GREEDY_PLAIN, least=0),
    *(
        Row("easyspec", values, GREEDY_PLAIN, least=0)
        for values in (
            {"group": 2},
            {"group": 1},
            {"group": 4},
            {"group": 2, "calibrated": False},
            {"drafter": "draft", "group": 3},
            {"drafter": "draft", "group": 4, "calibrated": False, "gamma": 3},
        )
    ),
    # State-space targets, whose cache, window and state together are compared in test_stree.py.
    *(
        Row(
            "stree",
            values,
            STATE_WAYS[:1] if kind in REPEATED else STATE_WAYS,
            kind,
            () if kind == "pure" else ("eager",),
            audits=(),
            deep=2,
            misses=True,
        )
        for (kind, _), values in hybrid.LADDER.items()
    ),
    # Vision-language targets. Their prompts are never short: a picture stands in them.
    *(
        Row(name, values, ways, "vision", prompts=(), audits=(PLAIN,))
        for name, values, ways in (
            ("prompt_lookup", {"shortest": 1}, GRAPH_TOO),
            ("token_recycling", {"tree": "published"}, GRAPH_TOO),
            ("stand", {"rule": "match", "nodes": 40}, GRAPH_TOO),
            ("suffix_decoding", {}, GRAPH_TOO),
            ("eagle2", {**BEAM, "rule": "match"}, VISION_WAYS),
            ("hivis", BEAM, VISION_WAYS),
            ("language_only", {"gamma": 3}, VISION_WAYS),
            ("dream", {**BEAM, "keep": 0.5}, VISION_WAYS),
        )
    ),
]


PICTURES: list[Row] = [
    Row(name, values, world="image")
    for name, values in (
        ("eagle", {"tree": "published"}),
        ("eagle2", {"nodes": 12}),
        ("eagle2", {"nodes": 12, "rule": "match"}),
        ("lantern", {"delta": 0.3, "nodes": 20}),
        ("lantern_pp", {"factor": 3.0, "tree": "57"}),
        ("speculative_jacobi", {"window": 8}),
        ("mulo_sd", {"tau": 0.3, "pool": 4}),
    )
]
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
