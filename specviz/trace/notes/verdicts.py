"""Notes on acceptance rules, and the reward of a draft tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from specviz.trace.notes.base import Part, TypedNote
from specviz.trace.schema import one_of


class OverlapPosition(Part, frozen=True):
    """Distributions after ``node``: p and q of the most likely tokens, and the sum of min(p, q) over the vocabulary."""

    node: int
    tokens: Sequence[int]
    p: Sequence[float]
    q: Sequence[float]
    overlap: float
    texts: Sequence[str] = ()


class OverlapNote(TypedNote, frozen=True):
    """Target and draft distributions at the nodes whose children were judged (speculative sampling, arXiv 2211.17192)."""

    positions: Sequence[OverlapPosition]


class TypicalPosition(Part, frozen=True):
    """A judged node: the target's p of the node's token, the threshold, and the entropy in nats that determines the threshold."""

    node: int
    token: int
    p: float
    threshold: float
    entropy: float
    text: str = ""


class TypicalAcceptanceNote(TypedNote, frozen=True):
    """Nodes judged by typical acceptance (Medusa, arXiv 2401.10774, section 2.3.1)."""

    positions: Sequence[TypicalPosition]


class Visit(Part, frozen=True):
    """Verdict on a node in bottom-up order. ``outcome`` is "passed" for the ancestors of the accepted node."""

    node: int
    start: float | None
    """Acceptance weight before the node's subtree is judged."""
    weight: float | None
    """Acceptance weight after the node's children are rejected."""
    draw: float | None
    outcome: Annotated[str, one_of("accepted", "failed", "passed")]


class TraversalNote(TypedNote, frozen=True):
    """Verdicts in bottom-up order (Traversal Verification, arXiv 2505.12398)."""

    visits: Sequence[Visit]
    rescued: Sequence[int]
    """Nodes on the path that the top-down rule would not have accepted."""
    top_down: int
    """Path length of the top-down rule with the same draws."""


class Branch(Part, frozen=True):
    """A leaf ``node`` with the expected acceptance length of the path from the root."""

    node: int
    length: float


class ReferenceTree(Part, frozen=True):
    """The tree of the reference drafter from the same root."""

    tokens: Sequence[int]
    parents: Sequence[int]
    texts: Sequence[str] = ()


class TreeRewardNote(TypedNote, frozen=True):
    """Reward of a draft tree: log-sum-exp of the expected lengths of the branches (GTO, arXiv 2509.22134)."""

    reward: float
    before: float | None
    """Reward of the reference tree."""
    branches: Sequence[Branch]
    reference: ReferenceTree | None


class RelaxedJudgement(Part, frozen=True):
    """A judged code and the nearest latent codes, with enough data to repeat the judgement under another limit.

    ``p`` and ``q`` are the code's probabilities before relaxation. ``count`` is the number of nearest codes within ``limit``, and
    ``moved`` the total probability of these codes, added to ``p``.
    """

    node: int
    p: float
    q: float
    limit: float
    """Maximum probability added by the nearest codes."""
    count: int
    moved: float
    near: str | Sequence[int]
    """Nearest codes, nearest first, as base64 of little-endian 16-bit integers; a list of ten codes in older traces."""
    mass: Sequence[float]
    """The target's probabilities of the first codes in ``near``."""
    sums: Sequence[tuple[int, float]]
    """Pairs of n and the total probability of the n nearest codes."""


class RelaxedNote(TypedNote, frozen=True):
    """Codes judged with the added probability of the nearest latent codes (LANTERN, arXiv 2410.03355, and LANTERN++).

    ``delta`` limits the added probability, or ``factor`` limits the sum to a multiple of the code's probability.
    """

    k: int
    """Number of nearest codes considered."""
    form: str
    """Form of the residual: exact, aggregated or repository."""
    nodes: Sequence[RelaxedJudgement]
    delta: float | None = None
    factor: float | None = None


class LocalVerificationNote(TypedNote, frozen=True):
    """Islands of rejected codes in a block of an image, resampled in waves (MuLo-SD, arXiv 2601.05149).

    Nodes are numbered from 1 in reading order: entry i of ``mass`` and ``waves`` belongs to node i + 1.
    """

    mass: Sequence[float]
    """Total probability of a code and the ``pool`` nearest codes; a code fails below ``tau``."""
    tau: float
    pool: int
    radius: int
    """Number of rows and columns around a rejected code that are resampled too."""
    rewritten: bool
    """Whether stale cache entries are recomputed."""
    failed: Sequence[int]
    islands: Sequence[Sequence[int]]
    waves: Sequence[int]
    """Wave in which each code was resampled, 0 for none."""
    passes: int
    stale: Sequence[int] | None = None
    """Nodes whose stale cache entries were not recomputed; missing in older traces."""
