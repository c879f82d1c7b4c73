"""Notes of cooperating models and drafters, of shared batches, of other engines, and of a model's internals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from specviz.trace.notes.base import Part, TypedNote
from specviz.trace.schema import one_of


class CascadePass(Part, frozen=True):
    """One pass of the intermediate model over a draft: ``tokens`` are the accepted ones and its own. Times in ms."""

    drafted: int
    kept: int
    calls: int
    tokens: Sequence[int]
    drafting: float
    verifying: float
    texts: Sequence[str] = ()


class CascadeTotals(Part, frozen=True):
    """Counts and milliseconds of the run so far: target rounds, tokens kept and buffered, intermediate passes, forwards."""

    rounds: int
    kept: int
    buffered: int
    passes: int
    calls: int
    drafting: float
    verifying: float


class CascadeCosts(Part, frozen=True):
    """Calibrated cost and acceptance of each level: milliseconds per pass, tokens per pass, and the two conditions."""

    target: float
    target_block: float
    middle: float
    drafter: float
    without: float
    """Tokens per target pass without the intermediate model; ``with``: with it."""
    with_: float
    below: float
    """Tokens of an intermediate pass that the target accepts."""
    ratio: float
    """Cost of an intermediate pass in target passes; below ``bound`` the published condition holds."""
    bound: float
    margin: float
    gain: float
    before: float | None = None
    """Milliseconds per token without the intermediate model; missing in older traces."""


class CascadeNote(TypedNote, frozen=True):
    """Drafter, intermediate model and target in one round, by Polybasic (arXiv 2510.26527)."""

    middle: str
    """The intermediate model."""
    gathered: int
    """μ: number of buffered tokens that triggers a target pass."""
    length: int
    """Number of tokens sent to the target."""
    passes: Sequence[CascadePass]
    so_far: CascadeTotals | None = None
    forecast: CascadeCosts | None = None


class LayerGroupsNote(TypedNote, frozen=True):
    """Layers of the draft model that ran side by side, and the cache that was repaired, by EasySpec (arXiv 2502.02493)."""

    layers: int
    groups: Sequence[Sequence[int]]
    """[stage, layer]: layers, from 0, of each stage."""
    stages: int
    calibrated: bool
    """Whether fuzzy cache entries are repaired once a round."""
    cached: int
    drafted: int
    devices: Sequence[str]
    exact: int | None = None
    """Tokens of the exact pass, of which ``repaired`` had fuzzy entries; ``fuzzy`` remain."""
    repaired: int | None = None
    fuzzy: int | None = None
    likeness: Sequence[Sequence[float]] | None = None
    """[layer, token]: cosine between the fuzzy and the exact entry."""


class Waiting(Part, frozen=True):
    """A chain in the delay queue: its start, and the number of its positions already judged."""

    place: int
    known: int


class DrafterSelectionNote(TypedNote, frozen=True):
    """Drafter selected among several, and the expected acceptance of each, by HedgeSpec (arXiv 2510.20064).

    Fields from ``tokens`` on are known after verification; a bandit, which learns from the selected drafter alone, lacks some.
    """

    names: Sequence[str]
    chances: Sequence[float]
    """[arm]: probability of drafting."""
    drafted: int
    """The arm that drafted."""
    informed: bool
    """Whether the learner receives feedback on all arms, or on the selected one alone."""
    loss: str
    ahead: int
    """Longest chain."""
    tokens: Sequence[int] = ()
    """Tokens that the round emitted."""
    ghosts: Sequence[Sequence[float]] = ()
    """[arm, place]: acceptance probability of each arm's chain along the emitted tokens."""
    expected: Sequence[float] = ()
    """[arm]: expected tokens per pass."""
    settled: int | None = None
    """Chains whose loss became known."""
    waiting: Sequence[Waiting] = ()
    after: Sequence[float] = ()
    """[arm]: ``chances`` of the next round."""
    texts: Sequence[str] = ()


class LastStateNote(TypedNote, frozen=True):
    """Half of a hybrid that drafted, a suffix tree or a network that reads one state, by OWL (arXiv 2510.07535)."""

    half: Annotated[str, one_of("suffix", "tree")]
    length: int
    """Tokens of text so far."""
    score: float | None
    """Score of the suffix tree's draft; null without a suffix tree."""
    threshold: float | None
    probed: bool
    """Whether the drafter reads the state of a [SPEC] token."""


class BatchRowCache(Part, frozen=True):
    """A row's cache: lengths of its unbroken runs of entries, and the holes between them."""

    row: int
    runs: Sequence[int]
    holes: int


class BatchCacheNote(TypedNote, frozen=True):
    """Cache of several runs in one batch, after a round of batched decoding."""

    row: int
    """The row of this run."""
    round: int
    every: int
    """Number of rounds between sweeps; 0: never."""
    swept: bool
    rows: Sequence[BatchRowCache]


class DecayHead(Part, frozen=True):
    """A head of a state-space layer: ``fade`` [node] is the log of what remains of the carried state."""

    name: str
    layer: int
    head: int
    fade: Sequence[float]


class DecayMaskNote(TypedNote, frozen=True):
    """Decay along every path of a tree in a state-space target, by STree (arXiv 2505.14969)."""

    heads: Sequence[DecayHead]
    taps: int
    """Width of the convolution."""
    layers: Sequence[str]
    """[layer]: "state" or "attention"."""
    state_bytes: int
    """Size of one state copy; ``per_node_bytes``: of one per node, ``replay_bytes``: of what a replay stores instead."""
    per_node_bytes: int
    replay_bytes: int


Drafts = Annotated[int, Meta(ge=0, le=2047)]


class ServedNote(TypedNote, frozen=True):
    """A production engine's record of a round, which other requests may share."""

    batch: Annotated[int, Meta(ge=1, le=1_000_000)] | None
    """Requests in the target's pass; null if unknown."""
    untold: Drafts
    """Number of rejected draft tokens without ids."""
    drafted: Drafts | None = None
    """Tokens drafted in this round; null if unknown."""


class CounterSample(Part, frozen=True):
    """Increase of a server's counters in the first ``ms`` milliseconds of the run."""

    ms: float
    drafts: int
    """Drafts verified."""
    accepted: Sequence[int]
    """[draft position]: drafts whose token there was accepted."""


class ServedCountersNote(TypedNote, frozen=True):
    """A server's counters over all its requests, sampled during this step."""

    samples: Sequence[CounterSample]
