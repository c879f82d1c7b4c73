"""Notes on cascades, drafter selection, batches, other engines, and model internals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from specviz.trace.notes.base import Part, TypedNote
from specviz.trace.schema import one_of


class CascadePass(Part, frozen=True):
    """One pass of the intermediate model over a draft, with times in ms.

    ``tokens``: accepted draft tokens, then the intermediate model's token; ``calls``: drafter forwards.
    """

    drafted: int
    kept: int
    calls: int
    tokens: Sequence[int]
    drafting: float
    verifying: float
    texts: Sequence[str] = ()


class CascadeTotals(Part, frozen=True):
    """Totals of the run so far, with times in ms. ``passes``: intermediate model; ``calls``: drafter forwards."""

    rounds: int
    kept: int
    buffered: int
    passes: int
    calls: int
    drafting: float
    verifying: float


class CascadeCosts(Part, frozen=True):
    """Measured cost of each model in ms per pass, calibrated tokens per pass, and the conditions for an intermediate model."""

    target: float
    target_block: float
    middle: float
    drafter: float
    without: float
    """Tokens per target pass without the intermediate model."""
    with_: float
    """Tokens per target pass with the intermediate model."""
    below: float
    """Tokens per intermediate pass that the target accepts."""
    ratio: float
    """Cost of an intermediate pass in target passes; the paper's condition is a ratio below ``bound``."""
    bound: float
    margin: float
    gain: float
    before: float | None = None
    """Milliseconds per token without the intermediate model; missing in older traces."""


class CascadeNote(TypedNote, frozen=True):
    """Drafter, intermediate model and target in one round (Polybasic, arXiv 2510.26527)."""

    middle: str
    """Name of the intermediate model."""
    gathered: int
    """μ: number of buffered tokens that triggers a target pass."""
    length: int
    """Number of tokens sent to the target."""
    passes: Sequence[CascadePass]
    so_far: CascadeTotals | None = None
    forecast: CascadeCosts | None = None


class LayerGroupsNote(TypedNote, frozen=True):
    """Groups of the draft model's layers that run in parallel, and the repair of the cache (EasySpec, arXiv 2502.02493)."""

    layers: int
    groups: Sequence[Sequence[int]]
    """[stage, layer]: layer numbers, from 0."""
    stages: int
    calibrated: bool
    """Whether fuzzy cache entries are repaired once per round."""
    cached: int
    drafted: int
    devices: Sequence[str]
    exact: int | None = None
    """Number of tokens in the exact pass."""
    repaired: int | None = None
    """Number of fuzzy cache entries that the exact pass replaced."""
    fuzzy: int | None = None
    """Number of fuzzy cache entries left."""
    likeness: Sequence[Sequence[float]] | None = None
    """[layer, token]: cosine similarity of the fuzzy and the exact entry."""


class Waiting(Part, frozen=True):
    """A chain in the delay queue. ``place``: start position; ``known``: number of positions already judged."""

    place: int
    known: int


class DrafterSelectionNote(TypedNote, frozen=True):
    """Online selection of a drafter (arm) by HedgeSpec (arXiv 2510.20064) or a bandit.

    Fields from ``tokens`` on are known only after verification. Bandits leave some fields empty.
    """

    names: Sequence[str]
    chances: Sequence[float]
    """[arm]: selection probability."""
    drafted: int
    """Selected arm."""
    informed: bool
    """Whether the learner receives feedback on all arms (full information) or only on the selected arm (bandit)."""
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
    """Number of chains whose loss became known in this round."""
    waiting: Sequence[Waiting] = ()
    after: Sequence[float] = ()
    """[arm]: selection probability in the next round."""
    texts: Sequence[str] = ()


class LastStateNote(TypedNote, frozen=True):
    """Draft by the suffix tree or by the network that reads the last state (OWL and HOWL, arXiv 2510.07535)."""

    half: Annotated[str, one_of("suffix", "tree")]
    length: int
    """Length of the text so far, in tokens."""
    score: float | None
    """Score of the suffix tree's draft; null without a suffix tree."""
    threshold: float | None
    with_probe: bool
    """Whether the network's input is the state of a [SPEC] token."""


class BatchRowCache(Part, frozen=True):
    """Cache of one row. ``runs``: alternating lengths of kept slots and holes, kept first; ``holes``: number of holes."""

    row: int
    runs: Sequence[int]
    holes: int


class BatchCacheNote(TypedNote, frozen=True):
    """Shared cache of a batch after a round."""

    row: int
    """Row of this run."""
    round: int
    every: int
    """Number of rounds between compactions of the cache; 0 means never."""
    swept: bool
    rows: Sequence[BatchRowCache]


class DecayHead(Part, frozen=True):
    """A head of a state-space layer. ``fade`` [node]: log of the fraction of the root's state that remains at the node."""

    name: str
    layer: int
    head: int
    fade: Sequence[float]


class DecayMaskNote(TypedNote, frozen=True):
    """Decay along every path of a tree in a state-space target (STree, arXiv 2505.14969)."""

    heads: Sequence[DecayHead]
    taps: int
    """Width of the convolution."""
    layers: Sequence[str]
    """[layer]: "state" or "attention"."""
    state_bytes: int
    """Size of one copy of the state."""
    per_node_bytes: int
    """Size of a separate state for every node."""
    replay_bytes: int
    """Size of the data stored to recompute the state instead."""


Drafts = Annotated[int, Meta(ge=0, le=2047)]


class ServedNote(TypedNote, frozen=True):
    """A serving engine's data on a round. The round may include other requests."""

    batch: Annotated[int, Meta(ge=1, le=1_000_000)] | None
    """Number of requests in the target's pass; null if unknown."""
    untold: Drafts
    """Number of rejected draft tokens with unknown ids."""
    drafted: Drafts | None = None
    """Number of draft tokens; null if unknown."""


class CounterSample(Part, frozen=True):
    """Increase in a server's counters in the first ``ms`` milliseconds of the run."""

    ms: float
    drafts: int
    """Number of verified drafts."""
    accepted: Sequence[int]
    """[draft position]: number of accepted tokens."""


class ServedCountersNote(TypedNote, frozen=True):
    """Samples of a server's counters during this step. The counters cover all requests to the server."""

    samples: Sequence[CounterSample]
