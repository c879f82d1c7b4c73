"""Notes of drafters and of the trees they grew: expansion, memories, n-grams, denoised blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from specviz.trace.notes.base import Part, TypedNote
from specviz.trace.schema import one_of


class TreeDepth(Part, frozen=True):
    """Depth of a tree that nobody stated, and by what it was chosen (``trees.depth_profile``)."""

    levels: int
    nodes: int | None = None
    tau: float | None = None
    """Tokens a pass that the profile foretells."""
    gain: float | None = None
    """Foretold speed-up over the target alone; missing where nobody measured a profile and the depth is the usual one."""
    forward: float | None = None
    """A drafter forward in target passes of one token."""


class GrowthNote(TypedNote, frozen=True):
    """Expansion and reranking of a dynamic tree, by EAGLE-2 (arXiv 2406.16858) and all that grow as it does."""

    beams: Sequence[Sequence[int]]
    """[level, beam]: nodes that were expanded at each level, the root's first."""
    value: Sequence[float]
    """[node]: log of the drafter's probability of the whole path, pruned nodes included; of drawn tokens the log of the
    probability that the target accepts so far, as it was expected."""
    kept: int
    """Nodes that went to the target, the root included: they come first."""
    considered: int
    """Drafted candidates, the root not counted."""
    depth: TreeDepth | None = None


class BeamMassNote(TypedNote, frozen=True):
    """Beam mass by level and where it stopped the growth, by Dynamic Depth Decoding (arXiv 2409.00142)."""

    mass: Sequence[float]
    """[level]: log of the probability that the beam holds, level 1 first."""
    tested: Sequence[int]
    """Levels, from 1, whose mass was held against the threshold."""
    threshold: float
    """A logarithm, as the mass."""
    stopped: int | None
    """The level behind which growth stopped; null where nothing stopped it."""
    limit: int
    """Deepest level there was room for."""
    below: Sequence[float] = ()
    """[level]: fraction of the calibration's beams that held less than the threshold."""
    forward: float | None = None
    """A drafter forward in target passes of one token, where the threshold was chosen by what that costs."""


class Block(Part, frozen=True):
    """Nodes that one drafter forward gave, pruned ones included. ``depths`` are its first and last level."""

    nodes: Sequence[int]
    depths: Annotated[Sequence[int], Meta(min_length=2, max_length=2)]


class BlocksNote(TypedNote, frozen=True):
    """Nodes of a tree by the drafter forward that gave them, by Falcon (arXiv 2412.12639)."""

    blocks: Sequence[Block]
    width: int
    """Levels a forward."""


class Graft(Part, frozen=True):
    """A continuation out of memory that hangs from ``node``: ``matched`` tokens led to it, ``count`` tokens came."""

    node: int
    source: str
    matched: int
    count: int


class MergedTreeNote(TypedNote, frozen=True):
    """Sources of a tree that several drafters and memories share, by READER (arXiv 2508.09072)."""

    sources: Sequence[str]
    """[node]: "root", or the sources that agree on it with a plus between them: drafter, context, outputs."""
    value: Sequence[float]
    """[node]: estimated probability that the whole path is accepted."""
    kept: int
    """Nodes that went to the target, the root included: they come first."""
    considered: int
    expected: float
    """Tokens a pass that the estimates foretell."""
    fitted: bool
    """Whether the size follows the cost curve; else it was stated."""
    grafts: Sequence[Graft]


class Offer(Part, frozen=True):
    """Tokens of one place, likeliest first, with the drafter's probability of each."""

    tokens: Sequence[int]
    probability: Sequence[float]
    texts: Sequence[str] = ()


class FrontierNote(TypedNote, frozen=True):
    """Paths of a block drafter's distributions in order of probability, by DDTree (arXiv 2604.12989): the tree of n nodes is the
    first n."""

    value: Sequence[float]
    """[node]: log of the drafter's probability of the whole path, the root's first, pruned nodes last."""
    kept: int
    """Nodes that went to the target, the root included: they come first."""
    reach: Sequence[float]
    """[depth]: ratio of accepted to expected nodes in the run's earlier rounds, depth 1 first."""
    places: Sequence[Offer]
    """[depth]: top tokens, the same below every node."""


class HeadOffer(Part, frozen=True):
    """What one Medusa head said: head 1 speaks of the token after the root."""

    head: int
    tokens: Sequence[int]
    probability: Sequence[float]
    texts: Sequence[str] = ()


class HeadsNote(TypedNote, frozen=True):
    """Offers of parallel heads, whose Cartesian product is the tree, by Medusa (arXiv 2401.10774)."""

    heads: Sequence[HeadOffer]


class CopyNote(TypedNote, frozen=True):
    """Suffix that occurred before and what followed it, by prompt lookup decoding. A length of 0: nothing occurred."""

    suffix_start: int
    suffix_length: int
    source: int
    """Place of the first token copied."""
    length: int
    """Tokens copied."""


class SuffixRow(Part, frozen=True):
    """What followed where a draft token was chosen: ``counts`` of each token, of ``count`` in all; ``others`` are not shown."""

    node: int
    count: int
    tokens: Sequence[int]
    counts: Sequence[int]
    others: int
    texts: Sequence[str] = ()


class SuffixTrial(Part, frozen=True):
    """Score of the draft that a match of ``length`` tokens gives; ``limit`` is the longest draft it allows."""

    length: int
    limit: int
    score: float


class SuffixNote(TypedNote, frozen=True):
    """Best match in the suffix trees and its score, by SuffixDecoding (arXiv 2411.04975)."""

    source: Annotated[str, one_of("context", "outputs", "none")]
    suffix_start: int
    suffix_length: int
    occurrences: int
    limit: int
    """Most tokens that a match of this length may draft."""
    score: float
    """Expected accepted tokens, by counts in the tree."""
    threshold: float | None
    used: bool
    scores: Mapping[str, float]
    """Best score of each memory."""
    tried: Sequence[SuffixTrial]
    rows: Sequence[SuffixRow]
    remembered: int
    """Tokens in the memory of earlier outputs."""


class NgramRow(Part, frozen=True):
    """A row of the store and the children drawn of it without replacement.

    ``order`` is the n of the n-gram, ``probability`` the warped distribution, ``perturbed`` its logarithm with Gumbel noise
    (empty at temperature 0), ``order_taken`` the entries by that; the first ``picked`` became children.
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
    """Rows of the n-gram store that a tree was drawn of, by STAND (arXiv 2506.04708)."""

    rows: Sequence[NgramRow]
    entries: int
    """n-grams in the store."""


class SuccessorRow(Part, frozen=True):
    """The matrix row of a node's token; its first ``used`` successors became children."""

    node: int
    token: int
    tokens: Sequence[int]
    used: int
    text: str = ""
    texts: Sequence[str] = ()


class SuccessorsNote(TypedNote, frozen=True):
    """Rows of the adjacency matrix that a tree was unfolded from, by Token Recycling (arXiv 2408.08696)."""

    rows: Sequence[SuccessorRow]
    updated: int
    """Rows that the last pass wrote anew."""


class DenoisedNote(TypedNote, frozen=True):
    """Distributions of a block of masks that one forward resolved, by DEER (arXiv 2512.15176)."""

    places: Sequence[Offer]


class LatticeColumn(Part, frozen=True):
    """Candidates of one place of the block, of ``size`` that the search considered."""

    tokens: Sequence[int]
    probability: Sequence[float]
    size: int
    texts: Sequence[str] = ()


class LatticeBeams(Part, frozen=True):
    """Best beams after one place, best first: the beam before that each goes on, its row in the column, its score."""

    parents: Sequence[int]
    picks: Sequence[int]
    score: Sequence[float]


class DraftLength(Part, frozen=True):
    """How many masks stand in the block now, its bounds, and the running means that the next length follows."""

    length: int
    shortest: int
    longest: int
    drafted: float
    accepted: float
    adaptive: bool


class LatticeNote(TypedNote, frozen=True):
    """Beam search through a block's candidates and the next draft length, by DiffuSpec (arXiv 2510.02358)."""

    columns: Sequence[LatticeColumn]
    beams: Sequence[LatticeBeams]
    fence: int | None
    """Places before an end of the text that is likely everywhere; null where there is none."""
    gauge: DraftLength
    weight: float
    """Fraction of a score that is the drafter's log-probability; the rest is an n-gram model's."""
    ended: bool | None = None
    """Whether the path takes the end of the text; missing in older traces."""
