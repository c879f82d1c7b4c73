"""Notes on drafters and the trees they grow: expansion, memories, n-grams, denoised blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from specviz.trace.notes.base import Pair, Part, TypedNote
from specviz.trace.schema import one_of


class TreeDepth(Part, frozen=True):
    """A tree's default depth, chosen from the calibration in ``trees.depth_profile`` if there is one."""

    levels: int
    nodes: int | None = None
    tau: float | None = None
    """Predicted tokens per pass."""
    gain: float | None = None
    """Predicted speed-up over the target without drafts; null without a calibration."""
    forward: float | None = None
    """Cost of a drafter forward, in target passes of one token."""


class GrowthNote(TypedNote, frozen=True):
    """Expansion and reranking of a dynamic tree, by EAGLE-2 (arXiv 2406.16858) and its successors."""

    beams: Sequence[Sequence[int]]
    """[level, beam]: nodes expanded at each level, starting with the root's."""
    value: Sequence[float]
    """[node]: log of the drafter's probability of the whole path, pruned nodes included; for sampled tokens, log of the
    expected probability that the path is accepted."""
    kept: int
    """Number of nodes sent to the target, root included; they come before the pruned ones."""
    considered: int
    """Number of drafted candidates, without the root."""
    depth: TreeDepth | None = None


class BeamMassNote(TypedNote, frozen=True):
    """Beam mass by level, and the level at which it stopped the growth, by Dynamic Depth Decoding (arXiv 2409.00142)."""

    mass: Sequence[float]
    """[level]: log of the beam's probability mass, level 1 first."""
    tested: Sequence[int]
    """Levels, from 1, whose mass was compared with the threshold."""
    threshold: float
    """Log of a probability mass."""
    stopped: int | None
    """Last level, if the threshold stopped the growth."""
    limit: int
    """Deepest possible level."""
    below: Sequence[float] = ()
    """[level]: fraction of the calibration's beams below the threshold."""
    forward: float | None = None
    """Cost of a drafter forward, in target passes of one token, if the threshold was derived from it."""


class Block(Part, frozen=True):
    """Nodes drafted by one forward, pruned ones included. ``depths`` are the first and last level."""

    nodes: Sequence[int]
    depths: Pair


class BlocksNote(TypedNote, frozen=True):
    """Tree nodes, grouped by the drafter forward that proposed them, by Falcon (arXiv 2412.12639)."""

    blocks: Sequence[Block]
    width: int
    """Levels per forward."""


class Graft(Part, frozen=True):
    """A continuation of ``count`` tokens retrieved for ``node``, after a match of ``matched`` tokens."""

    node: int
    source: str
    matched: int
    count: int


class MergedTreeNote(TypedNote, frozen=True):
    """Sources of a tree merged from several drafters and memories, by READER (arXiv 2508.09072)."""

    sources: Sequence[str]
    """[node]: "root", or its sources joined by plus signs: drafter, context, outputs."""
    value: Sequence[float]
    """[node]: estimated probability that the whole path is accepted."""
    kept: int
    """Number of nodes sent to the target, root included; they come before the pruned ones."""
    considered: int
    expected: float
    """Predicted tokens per pass."""
    fitted: bool
    """Whether the tree size was fitted to the cost curve; if not, it is a parameter."""
    grafts: Sequence[Graft]


class Offer(Part, frozen=True):
    """Tokens of one position, most likely first, with the drafter's probability of each."""

    tokens: Sequence[int]
    probability: Sequence[float]
    texts: Sequence[str] = ()


class FrontierNote(TypedNote, frozen=True):
    """Paths through a block drafter's distributions, most probable first, by DDTree (arXiv 2604.12989): the first n form the tree
    of n nodes."""

    value: Sequence[float]
    """[node]: log of the drafter's probability of the whole path, the root's first, pruned nodes last."""
    kept: int
    """Number of nodes sent to the target, root included; they come before the pruned ones."""
    considered: int
    """Number of ranked paths, without the root."""
    reach: Sequence[float]
    """[depth]: ratio of accepted to expected nodes in the run's earlier rounds, depth 1 first."""
    places: Sequence[Offer]
    """[depth]: top tokens, the same under every node."""


class HeadOffer(Part, frozen=True):
    """Predictions of one Medusa head; head 1 predicts the token after the root."""

    head: int
    tokens: Sequence[int]
    probability: Sequence[float]
    texts: Sequence[str] = ()


class HeadsNote(TypedNote, frozen=True):
    """Predictions of parallel heads, from whose Cartesian product the tree is taken, by Medusa (arXiv 2401.10774)."""

    heads: Sequence[HeadOffer]


class CopyNote(TypedNote, frozen=True):
    """Matched suffix and copied continuation, by prompt lookup decoding. A length of 0 means no match."""

    suffix_start: int
    suffix_length: int
    source: int
    """Position of the first copied token."""
    length: int
    """Number of copied tokens."""


class SuffixRow(Part, frozen=True):
    """Continuations counted at a node: ``counts`` by token, ``count`` in total, ``others`` not listed."""

    node: int
    count: int
    tokens: Sequence[int]
    counts: Sequence[int]
    others: int
    texts: Sequence[str] = ()


class SuffixTrial(Part, frozen=True):
    """Score of the draft after a match of ``length`` tokens; ``limit`` is its maximum length."""

    length: int
    limit: int
    score: float


class SuffixNote(TypedNote, frozen=True):
    """The best match in the suffix trees, and its score, by SuffixDecoding (arXiv 2411.04975)."""

    source: Annotated[str, one_of("context", "outputs", "none")]
    suffix_start: int
    suffix_length: int
    occurrences: int
    limit: int
    """Maximum draft length for a match of this length."""
    score: float
    """Expected number of accepted tokens, estimated from the tree's counts."""
    threshold: float | None
    used: bool
    scores: Mapping[str, float]
    """Best score of each memory."""
    tried: Sequence[SuffixTrial]
    rows: Sequence[SuffixRow]
    remembered: int
    """Number of stored tokens of earlier outputs."""


class NgramRow(Part, frozen=True):
    """A row of the store and the children sampled from it without replacement.

    ``order`` is the n of the n-gram, ``probability`` the warped distribution, ``perturbed`` its logarithm plus Gumbel noise
    (empty at temperature 0), ``order_taken`` the entries sorted by that; the first ``picked`` became children.
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
    """Rows of the n-gram store that a tree was sampled from, by STAND (arXiv 2506.04708)."""

    rows: Sequence[NgramRow]
    entries: int
    """Number of n-grams in the store."""


class SuccessorRow(Part, frozen=True):
    """The matrix row of a node's token; its first ``used`` successors became children."""

    node: int
    token: int
    tokens: Sequence[int]
    used: int
    text: str = ""
    texts: Sequence[str] = ()


class SuccessorsNote(TypedNote, frozen=True):
    """Rows of the adjacency matrix that the tree was built from, by Token Recycling (arXiv 2408.08696)."""

    rows: Sequence[SuccessorRow]
    updated: int
    """Number of rows that the last pass updated."""


class DenoisedNote(TypedNote, frozen=True):
    """Distributions of a block of masks after one forward, by DEER (arXiv 2512.15176), DFlash (arXiv 2602.06036) and DSpark
    (arXiv 2607.05147)."""

    places: Sequence[Offer]
    given: Sequence[Sequence[float]] = ()
    """[place]: probabilities of the same tokens given the previous token; empty if a place does not depend on it."""
    rates: Sequence[float] = ()
    """[place]: predicted acceptance rate, from which the block's length was chosen."""
    considered: int | None = None
    """Number of drafted tokens, if only the first of them were sent to the target; null if all were."""


class LatticeColumn(Part, frozen=True):
    """The top candidates at one position of the block; the search considered ``size`` of them."""

    tokens: Sequence[int]
    probability: Sequence[float]
    size: int
    texts: Sequence[str] = ()


class LatticeBeams(Part, frozen=True):
    """The best beams after one position, best first: each beam's parent, row in the column, and score."""

    parents: Sequence[int]
    picks: Sequence[int]
    score: Sequence[float]


class DraftLength(Part, frozen=True):
    """Number of masks in the block, its bounds, and the running means that determine the next length."""

    length: int
    shortest: int
    longest: int
    drafted: float
    accepted: float
    adaptive: bool


class LatticeNote(TypedNote, frozen=True):
    """Beam search through a block's candidates, and the next draft length, by DiffuSpec (arXiv 2510.02358)."""

    columns: Sequence[LatticeColumn]
    beams: Sequence[LatticeBeams]
    fence: int | None
    """Number of positions up to a likely end of text, where the lattice stops; null without one."""
    gauge: DraftLength
    weight: float
    """Weight of the drafter's log-probability in a score; the n-gram model has the rest."""
    ended: bool | None = None
    """Whether the path ends the text; missing in older traces."""
