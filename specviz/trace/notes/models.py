"""Notes on cooperating models and drafters, shared batches, other engines, and a model's internals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from specviz.trace.notes.base import Part, TypedNote
from specviz.trace.schema import one_of


class CascadePass(Part, frozen=True):
    """One pass of the intermediate model over a draft: ``tokens`` are the accepted ones and its own token. Times are in ms."""

    drafted: int
    kept: int
    calls: int
    tokens: Sequence[int]
    drafting: float
    verifying: float
    texts: Sequence[str] = ()


class CascadeTotals(Part, frozen=True):
    """Totals of the run so far, times in ms: target rounds, tokens kept and buffered, intermediate passes, forwards."""

    rounds: int
    kept: int
    buffered: int
    passes: int
    calls: int
    drafting: float
    verifying: float


class CascadeCosts(Part, frozen=True):
    """Calibrated costs and acceptance of each level: milliseconds per pass, tokens per pass, and the two conditions."""

    target: float
    target_block: float
    middle: float
    drafter: float
    without: float
    """Tokens per target pass without the intermediate model; ``with``: with it."""
    with_: float
    below: float
    """Tokens per intermediate pass that the target accepts."""
    ratio: float
    """Cost of an intermediate pass in target passes; the published condition holds below ``bound``."""
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
    """Layers of the draft model that ran in parallel, and the repair of its cache, by EasySpec (arXiv 2502.02493)."""

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
    """Tokens of the exact pass, of which ``repaired`` had fuzzy entries; ``fuzzy`` entries remain."""
    repaired: int | None = None
    fuzzy: int | None = None
    likeness: Sequence[Sequence[float]] | None = None
    """[layer, token]: cosine between the fuzzy and the exact entry."""


class Waiting(Part, frozen=True):
    """A chain in the delay queue: its start, and the number of its positions already judged."""

    place: int
    known: int


class DrafterSelectionNote(TypedNote, frozen=True):
    """The drafter selected among several, and the expected acceptance of each, by HedgeSpec (arXiv 2510.20064).

    Fields from ``tokens`` on are known after verification; a bandit, which learns only from the selected drafter, lacks some.
    """

    names: Sequence[str]
    chances: Sequence[float]
    """[arm]: probability of being selected."""
    drafted: int
    """The arm that drafted."""
    informed: bool
    """Whether the learner receives feedback on all arms rather than only on the selected one."""
    loss: str
    ahead: int
    """Maximum chain length."""
    tokens: Sequence[int] = ()
    """Tokens emitted in this round."""
    ghosts: Sequence[Sequence[float]] = ()
    """[arm, place]: acceptance probability of each arm's chain along the emitted tokens."""
    expected: Sequence[float] = ()
    """[arm]: expected tokens per pass."""
    settled: int | None = None
    """Number of chains whose loss became known."""
    waiting: Sequence[Waiting] = ()
    after: Sequence[float] = ()
    """[arm]: ``chances`` of the next round."""
    texts: Sequence[str] = ()


class LastStateNote(TypedNote, frozen=True):
    """The half of a hybrid drafter that drafted: a suffix tree, or a network that reads one state, by OWL (arXiv 2510.07535)."""

    half: Annotated[str, one_of("suffix", "tree")]
    length: int
    """Number of tokens in the text so far."""
    score: float | None
    """Score of the suffix tree's draft; null without a suffix tree."""
    threshold: float | None
    probed: bool
    """Whether the drafter reads the state of a [SPEC] token."""


class BatchRowCache(Part, frozen=True):
    """A row's cache: the lengths of its contiguous runs of entries, and the holes between them."""

    row: int
    runs: Sequence[int]
    holes: int


class BatchCacheNote(TypedNote, frozen=True):
    """Cache of several runs in one batch, after a round of batched decoding."""

    row: int
    """The row of this run."""
    round: int
    every: int
    """Number of rounds between sweeps; 0 means never."""
    swept: bool
    rows: Sequence[BatchRowCache]


class DecayHead(Part, frozen=True):
    """A head of a state-space layer: ``fade`` [node] is the log of the carried state's remaining fraction."""

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
    """Size of one copy of the state; ``per_node_bytes``: of a copy per node; ``replay_bytes``: of the data stored for a replay
    instead."""
    per_node_bytes: int
    replay_bytes: int


Drafts = Annotated[int, Meta(ge=0, le=2047)]


class ServedNote(TypedNote, frozen=True):
    """A production engine's record of a round, which other requests may have shared."""

    batch: Annotated[int, Meta(ge=1, le=1_000_000)] | None
    """Number of requests in the target's pass; null if unknown."""
    untold: Drafts
    """Number of rejected draft tokens whose ids are unknown."""
    drafted: Drafts | None = None
    """Number of tokens drafted in this round; null if unknown."""


class CounterSample(Part, frozen=True):
    """Increase in a server's counters over the first ``ms`` milliseconds of the run."""

    ms: float
    drafts: int
    """Drafts verified."""
    accepted: Sequence[int]
    """[draft position]: drafts whose token at this position was accepted."""


class ServedCountersNote(TypedNote, frozen=True):
    """A server's counters over all its requests, sampled during this step."""

    samples: Sequence[CounterSample]
