"""Notes on drafting: tree growth, lookup drafters, n-gram stores and block drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from specviz.trace.notes.base import Pair, Part, TypedNote
from specviz.trace.schema import one_of


class TreeDepth(Part, frozen=True):
    """Default depth of a tree, chosen from the drafter's calibration if available."""

    levels: int
    nodes: int | None = None
    tau: float | None = None
    """Predicted tokens per pass."""
    gain: float | None = None
    """Predicted speed-up over autoregressive decoding; null without a calibration."""
    forward: float | None = None
    """Cost of a drafter forward, in units of a single-token target pass."""


class GrowthNote(TypedNote, frozen=True):
    """Expansion and reranking of a dynamic tree (EAGLE-2, arXiv 2406.16858, and its successors)."""

    beams: Sequence[Sequence[int]]
    """[level, beam]: expanded nodes of each level, from the root downwards."""
    value: Sequence[float]
    """[node]: log of the drafter's path probability. For sampled tokens, log of the path's expected acceptance probability."""
    kept: int
    """Number of nodes sent to the target, including the root; these nodes come first, the pruned ones last."""
    considered: int
    """Number of drafted candidates, without the root."""
    depth: TreeDepth | None = None


class BeamMassNote(TypedNote, frozen=True):
    """Probability mass of the beam at each level, which stops tree growth (Dynamic Depth Decoding, arXiv 2409.00142)."""

    mass: Sequence[float]
    """[level]: log of the beam's probability mass, from level 1."""
    tested: Sequence[int]
    """Levels, from 1, at which the mass was compared with the threshold."""
    threshold: float
    """Log of the minimum probability mass."""
    stopped: int | None
    """Level at which the threshold stopped the growth; null if the tree reached the maximum depth."""
    limit: int
    """Maximum depth."""
    below: Sequence[float] = ()
    """[level]: fraction of beams in the calibration with a mass below the threshold."""
    forward: float | None = None
    """Cost of a drafter forward, in units of a single-token target pass, if the threshold depends on this cost."""


class Block(Part, frozen=True):
    """Nodes drafted by one forward, including pruned nodes. ``depths``: first and last level."""

    nodes: Sequence[int]
    depths: Pair


class BlocksNote(TypedNote, frozen=True):
    """Tree nodes grouped by drafter forward (Falcon, arXiv 2412.12639)."""

    blocks: Sequence[Block]
    width: int
    """Number of levels per forward."""


class Graft(Part, frozen=True):
    """``count`` tokens retrieved as the continuation of ``node`` after a match of ``matched`` tokens."""

    node: int
    source: str
    matched: int
    count: int


class MergedTreeNote(TypedNote, frozen=True):
    """Sources of a tree merged from a drafter and retrieved texts (READER, arXiv 2508.09072)."""

    sources: Sequence[str]
    """[node]: "root", or the node's sources (drafter, context, outputs), joined by plus signs."""
    value: Sequence[float]
    """[node]: estimated acceptance probability of the path from the root."""
    kept: int
    """Number of nodes sent to the target, including the root; these nodes come first, the pruned ones last."""
    considered: int
    expected: float
    """Predicted tokens per pass."""
    fitted: bool
    """Whether the tree size was chosen from the cost curve rather than by a parameter."""
    grafts: Sequence[Graft]


class Offer(Part, frozen=True):
    """The drafter's candidates at one position, most likely first."""

    tokens: Sequence[int]
    probability: Sequence[float]
    texts: Sequence[str] = ()


class FrontierNote(TypedNote, frozen=True):
    """Best-first search over a block drafter's distributions (DDTree, arXiv 2604.12989)."""

    value: Sequence[float]
    """[node]: log of the drafter's path probability."""
    kept: int
    """Number of nodes sent to the target, including the root; these nodes come first, the pruned ones last."""
    considered: int
    """Number of ranked paths, without the root."""
    reach: Sequence[float]
    """[depth]: ratio of accepted to expected nodes in earlier rounds of the run, from depth 1."""
    places: Sequence[Offer]
    """[depth]: top tokens, shared by the nodes of the level above."""


class HeadOffer(Part, frozen=True):
    """Top tokens of one Medusa head. Head 1 predicts the token after the root."""

    head: int
    tokens: Sequence[int]
    probability: Sequence[float]
    texts: Sequence[str] = ()


class HeadsNote(TypedNote, frozen=True):
    """Top tokens of parallel heads, whose Cartesian product contains the tree (Medusa, arXiv 2401.10774)."""

    heads: Sequence[HeadOffer]


class CopyNote(TypedNote, frozen=True):
    """Matched suffix and copied continuation (prompt lookup decoding). ``length`` is 0 without a match."""

    suffix_start: int
    suffix_length: int
    source: int
    """Position of the first copied token."""
    length: int
    """Number of copied tokens."""


class SuffixRow(Part, frozen=True):
    """Continuations of a node with ``counts`` in memory. ``count``: total; ``others``: number of continuations not listed."""

    node: int
    count: int
    tokens: Sequence[int]
    counts: Sequence[int]
    others: int
    texts: Sequence[str] = ()


class SuffixTrial(Part, frozen=True):
    """Score of the draft for a match of ``length`` tokens. ``limit``: maximum draft length for this match."""

    length: int
    limit: int
    score: float


class SuffixNote(TypedNote, frozen=True):
    """The best match in the suffix trees (SuffixDecoding, arXiv 2411.04975)."""

    source: Annotated[str, one_of("context", "outputs", "none")]
    suffix_start: int
    suffix_length: int
    occurrences: int
    limit: int
    """Maximum draft length for a match of this length."""
    score: float
    """Expected number of accepted tokens, estimated from the counts in the suffix tree."""
    threshold: float | None
    used: bool
    scores: Mapping[str, float]
    """Best score by memory."""
    tried: Sequence[SuffixTrial]
    rows: Sequence[SuffixRow]
    remembered: int
    """Number of tokens of earlier outputs in memory."""


class NgramRow(Part, frozen=True):
    """A row of the n-gram store, from which a node's children were sampled without replacement.

    ``order``: n of the n-gram; ``probability``: warped distribution; ``perturbed``: log-probabilities plus Gumbel noise, empty at
    temperature 0; ``order_taken``: entries in the order sampled, of which the first ``picked`` became children.
    """

    node: int
    order: int
    tokens: Sequence[int]
    probability: Sequence[float]
    perturbed: Sequence[float]
    picked: int
    order_taken: Sequence[int] = ()
    texts: Sequence[str] = ()


class NgramRowsNote(TypedNote, frozen=True):
    """Rows of the n-gram store from which a tree was sampled (STAND, arXiv 2506.04708)."""

    rows: Sequence[NgramRow]
    entries: int
    """Number of n-grams in the store."""


class SuccessorRow(Part, frozen=True):
    """Successors of a node's token in the adjacency matrix. The first ``used`` became children."""

    node: int
    token: int
    tokens: Sequence[int]
    used: int
    text: str = ""
    texts: Sequence[str] = ()


class SuccessorsNote(TypedNote, frozen=True):
    """Rows of the adjacency matrix used in the tree (Token Recycling, arXiv 2408.08696)."""

    rows: Sequence[SuccessorRow]
    updated: int
    """Number of rows updated after the previous pass."""


class DenoisedNote(TypedNote, frozen=True):
    """Block drafted in one forward (DEER, arXiv 2512.15176; DFlash, arXiv 2602.06036; DSpark, arXiv 2607.05147)."""

    places: Sequence[Offer]
    given: Sequence[Sequence[float]] = ()
    """[place]: probabilities of the tokens in ``places`` given the previous token; empty if independent of the previous token."""
    rates: Sequence[float] = ()
    """[place]: predicted acceptance rate, which determines the length of the draft."""
    considered: int | None = None
    """Number of drafted tokens; null if all were sent to the target."""


class LatticeColumn(Part, frozen=True):
    """The top tokens at one position of the block. The beam search considered ``size`` tokens."""

    tokens: Sequence[int]
    probability: Sequence[float]
    size: int
    texts: Sequence[str] = ()


class LatticeBeams(Part, frozen=True):
    """The best beams after one position, best first. ``parents``: beams of the position before; ``picks``: rows of the column."""

    parents: Sequence[int]
    picks: Sequence[int]
    score: Sequence[float]


class DraftLength(Part, frozen=True):
    """Block length, the bounds on the length, and the running means that determine the next length."""

    length: int
    shortest: int
    longest: int
    drafted: float
    accepted: float
    adaptive: bool


class LatticeNote(TypedNote, frozen=True):
    """Beam search over the tokens of a block (DiffuSpec, arXiv 2510.02358). ``gauge``: next draft length."""

    columns: Sequence[LatticeColumn]
    beams: Sequence[LatticeBeams]
    fence: int | None
    """Number of positions up to a likely end of text, where the search stops; null without a likely end."""
    gauge: DraftLength
    weight: float
    """Weight of the drafter's log-probability in a score; the n-gram model has weight 1 - ``weight``."""
    ended: bool | None = None
    """Whether the best path ends the text; missing in older traces."""
