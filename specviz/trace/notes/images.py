"""Notes of runs that draw a picture and of runs that read one.

Spans are [first place, how many] of unbroken rows of places in the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from specviz.trace.notes.base import TypedNote
from specviz.trace.schema import Limit

Span = Annotated[Sequence[int], Limit(2, 2)]


@dataclass(frozen=True)
class CanvasNote(TypedNote):
    """Rows of a picture that this step completed, in any image run."""

    type: ClassVar[str] = "canvas"
    row: int
    """The first of them, from 0."""
    rows: int
    codes: int
    """Codes drawn so far."""
    png: str
    """The band, base64."""


@dataclass(frozen=True)
class CoarseCodesNote(TypedNote):
    """Coarse codes and the finer ones that were made of them, by MuLo-SD (arXiv 2601.05149)."""

    type: ClassVar[str] = "coarse"
    codes: Sequence[int]
    fine: Sequence[int]


@dataclass(frozen=True)
class JacobiWindowNote(TypedNote):
    """Window of codes that the target keeps renewing, by Speculative Jacobi Decoding (arXiv 2410.01699)."""

    type: ClassVar[str] = "window"
    codes: Sequence[int]
    redrawn: int
    """Codes, first ones of the window, that were drawn from the last pass's distributions."""


@dataclass(frozen=True)
class PictureNote(TypedNote):
    """Picture of a prompt as the model sees it and where its tokens stand, in the first step of a vision-language run."""

    type: ClassVar[str] = "picture"
    png: Sequence[str]
    """Base64 in pieces, as no text in a note is longer than 4096 characters."""
    size: Annotated[Sequence[int], Limit(2, 2)]
    """Width and height in pixels."""
    grid: Annotated[Sequence[int], Limit(2, 2)]
    """Rows and columns of patches; 0 and 0 where they are no plain grid."""
    spans: Sequence[Span]
    prompt: int
    """Tokens of the prompt."""
    encoding_ns: int
    boxes: Sequence[Annotated[Sequence[float], Limit(4, 4)]] | None = None
    """[patch]: left, top, right and bottom in fractions of the picture, where they are no plain grid."""


@dataclass(frozen=True)
class VisualTokensNote(TypedNote):
    """Prompt as target and drafter read it: image tokens that the drafter sees, by DREAM, HiViS and visual drafters.

    ``target`` and ``drafter`` are tokens of the two prefills.
    """

    type: ClassVar[str] = "visual_tokens"
    target: int
    drafter: int
    visual: Sequence[Span]
    """Spans of image tokens."""
    kept: Sequence[Span]
    """Spans of those that the drafter sees too."""
    unseen: Sequence[Span]
    """Spans of other places that it does not see."""


@dataclass(frozen=True)
class AttentionLook:
    """Attention of the drafter after ``tokens``: its sum over the picture, and [place, weight] of the largest."""

    tokens: Sequence[int]
    picture: float
    at: Sequence[tuple[int, float]]
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class AttentionEntropyNote(TypedNote):
    """Attention of a drafter in the picture and, in the first step, entropy of the target's, by DREAM (arXiv 2505.19201)."""

    type: ClassVar[str] = "entropy_map"
    looks: Sequence[AttentionLook]
    entropy: Sequence[Sequence[float]] | None = None
    """[layer, place]: entropy of the target's attention."""
    middle: Sequence[int] | None = None
    """Layers among which the drafter's feature is chosen."""
    chosen: Sequence[int] | None = None
    """[place]: the middle layer of least entropy."""


@dataclass(frozen=True)
class StepEmbeddingsNote(TypedNote):
    """Step embeddings and how far drafts came with and without them, by HiViS (arXiv 2509.23928).

    Counts are of the run so far.
    """

    type: ClassVar[str] = "residuals"
    norms: Sequence[float]
    """[depth]: length of the learned vector."""
    reached: Sequence[int]
    """[depth]: rounds in which the target judged a child there, and ``kept`` those in which it took one."""
    kept: Sequence[int]
    asked: Sequence[int] | None = None
    """[depth]: tokens that both drafters were asked to foretell; those right ``with`` and ``without`` the vectors."""
    with_: Sequence[int] | None = None
    without: Sequence[int] | None = None


NOTES: tuple[type[TypedNote], ...] = (
    CanvasNote,
    CoarseCodesNote,
    JacobiWindowNote,
    PictureNote,
    VisualTokensNote,
    AttentionEntropyNote,
    StepEmbeddingsNote,
)
