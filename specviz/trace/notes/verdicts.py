"""Notes on acceptance rules: the numbers compared at each judged node, and the reward of a drafted tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from specviz.trace.notes.base import Part, TypedNote
from specviz.trace.schema import one_of


class OverlapPosition(Part, frozen=True):
    """Target and drafter after ``node``: p and q of the most important tokens, and the sum of min(p, q) over all tokens."""

    node: int
    tokens: Sequence[int]
    p: Sequence[float]
    q: Sequence[float]
    overlap: float
    texts: Sequence[str] = ()


class OverlapNote(TypedNote, frozen=True):
    """Both distributions where rejection sampling judged children, by speculative sampling (arXiv 2211.17192)."""

    positions: Sequence[OverlapPosition]


class TypicalPosition(Part, frozen=True):
    """A judged node: the target's p of its token, the threshold, and the entropy that determines it, in nats."""

    node: int
    token: int
    p: float
    threshold: float
    entropy: float
    text: str = ""


class TypicalAcceptanceNote(TypedNote, frozen=True):
    """Nodes that typical acceptance judged, by Medusa (arXiv 2401.10774, section 2.3.1)."""

    positions: Sequence[TypicalPosition]


class Visit(Part, frozen=True):
    """A node's verdict in the walk from the leaves upwards; a node that ``passed`` lies above the accepted one."""

    node: int
    start: float | None
    """Acceptance weight on entry to the node's subtree; ``weight``: that after its children failed."""
    weight: float | None
    draw: float | None
    outcome: Annotated[str, one_of("accepted", "failed", "passed")]


class TraversalNote(TypedNote, frozen=True):
    """Verdicts from leaf to root, in order, by Traversal Verification (arXiv 2505.12398)."""

    visits: Sequence[Visit]
    rescued: Sequence[int]
    """Nodes on the path that the top-down rule would not have reached."""
    top_down: int
    """Path length of the top-down rule with the same draws."""


class Branch(Part, frozen=True):
    """A leaf and the expected acceptance length of the branch that ends in it."""

    node: int
    length: float


class ReferenceTree(Part, frozen=True):
    """The tree that another drafter proposed from the same root."""

    tokens: Sequence[int]
    parents: Sequence[int]
    texts: Sequence[str] = ()


class TreeRewardNote(TypedNote, frozen=True):
    """Reward of the drafted tree, the log-sum-exp of its branches' expected lengths, by GTO (arXiv 2509.22134)."""

    reward: float
    before: float | None
    """Reward of the reference tree."""
    branches: Sequence[Branch]
    reference: ReferenceTree | None


class RelaxedJudgement(Part, frozen=True):
    """A judged code with its nearest latent codes: enough data to judge it again under another limit.

    p and q are the code's own, before relaxation. ``count`` nearest codes fit within ``limit``: their probability, ``moved`` in
    total, was added to p.
    """

    node: int
    p: float
    q: float
    limit: float
    """Maximum probability added by the nearest codes."""
    count: int
    moved: float
    near: str | Sequence[int]
    """The nearest codes, nearest first, as base64 of little-endian 16-bit numbers; older traces list the first ten."""
    mass: Sequence[float]
    """The target's probability of the first few of them."""
    sums: Sequence[tuple[int, float]]
    """[number of nearest codes, their total probability], for several such numbers."""


class RelaxedNote(TypedNote, frozen=True):
    """Codes judged with the probability of their latent neighbours, by LANTERN (arXiv 2410.03355) and LANTERN++.

    The limit is ``delta``, a total variation distance, or ``factor`` times the code's own p.
    """

    k: int
    """Number of neighbours considered."""
    form: str
    """Form of the residual: exact, aggregated, repository."""
    nodes: Sequence[RelaxedJudgement]
    delta: float | None = None
    factor: float | None = None


class LocalVerificationNote(TypedNote, frozen=True):
    """Islands of rejected codes in an image block, resampled in waves, by MuLo-SD (arXiv 2601.05149).

    Nodes count from 1 in reading order, so entry i of ``mass`` and ``waves`` is that of node i + 1.
    """

    mass: Sequence[float]
    """The target's probability of the code and its ``pool`` nearest ones; below ``tau`` the code fails."""
    tau: float
    pool: int
    radius: int
    """Rows and columns around a rejected code that are resampled with it."""
    rewritten: bool
    """Whether stale cache entries are renewed."""
    failed: Sequence[int]
    islands: Sequence[Sequence[int]]
    waves: Sequence[int]
    """The wave that resampled each code, 0 for none."""
    passes: int
    stale: Sequence[int] | None = None
    """Nodes whose stale cache entries were not renewed; missing in older traces."""
