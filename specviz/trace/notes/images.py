"""Notes of runs that draw a picture and of runs that read one.

Spans are [first place, how many] of unbroken rows of places in the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from specviz.trace.notes.base import Part, TypedNote

Span = Annotated[Sequence[int], Meta(min_length=2, max_length=2)]


class CanvasNote(TypedNote, frozen=True):
    """Rows of a picture that this step completed, in any image run."""

    row: int
    """The first of them, from 0."""
    rows: int
    codes: int
    """Codes drawn so far."""
    png: str
    """The band, base64."""


class CoarseCodesNote(TypedNote, frozen=True):
    """Coarse codes and the finer ones that were made of them, by MuLo-SD (arXiv 2601.05149)."""

    codes: Sequence[int]
    fine: Sequence[int]


class JacobiWindowNote(TypedNote, frozen=True):
    """Window of codes that the target keeps renewing, by Speculative Jacobi Decoding (arXiv 2410.01699)."""

    codes: Sequence[int]
    redrawn: int
    """Codes, first ones of the window, that were drawn from the last pass's distributions."""


class PictureNote(TypedNote, frozen=True):
    """Picture of a prompt as the model sees it and where its tokens stand, in the first step of a vision-language run."""

    png: Sequence[str]
    """Base64 in pieces, as no text in a note is longer than 4096 characters."""
    size: Annotated[Sequence[int], Meta(min_length=2, max_length=2)]
    """Width and height in pixels."""
    grid: Annotated[Sequence[int], Meta(min_length=2, max_length=2)]
    """Rows and columns of patches; 0 and 0 where they are no plain grid."""
    spans: Sequence[Span]
    prompt: int
    """Tokens of the prompt."""
    encoding_ns: int
    boxes: Sequence[Annotated[Sequence[float], Meta(min_length=4, max_length=4)]] | None = None
    """[patch]: left, top, right and bottom in fractions of the picture, where they are no plain grid."""


class VisualTokensNote(TypedNote, frozen=True):
    """Prompt as target and drafter read it: image tokens that the drafter sees, by DREAM, HiViS and visual drafters.

    ``target`` and ``drafter`` are tokens of the two prefills.
    """

    target: int
    drafter: int
    visual: Sequence[Span]
    """Spans of image tokens."""
    kept: Sequence[Span]
    """Spans of those that the drafter sees too."""
    unseen: Sequence[Span]
    """Spans of other places that it does not see."""


class AttentionLook(Part, frozen=True):
    """Attention of the drafter after ``tokens``: its sum over the picture, and [place, weight] of the largest."""

    tokens: Sequence[int]
    picture: float
    at: Sequence[tuple[int, float]]
    texts: Sequence[str] = ()


class AttentionEntropyNote(TypedNote, frozen=True):
    """Attention of a drafter in the picture and, in the first step, entropy of the target's, by DREAM (arXiv 2505.19201)."""

    looks: Sequence[AttentionLook]
    entropy: Sequence[Sequence[float]] | None = None
    """[layer, place]: entropy of the target's attention."""
    middle: Sequence[int] | None = None
    """Layers among which the drafter's feature is chosen."""
    chosen: Sequence[int] | None = None
    """[place]: the middle layer of least entropy."""


class StepEmbeddingsNote(TypedNote, frozen=True):
    """Step embeddings and how far drafts came with and without them, by HiViS (arXiv 2509.23928).

    Counts are of the run so far.
    """

    norms: Sequence[float]
    """[depth]: length of the learned vector."""
    reached: Sequence[int]
    """[depth]: rounds in which the target judged a child there, and ``kept`` those in which it took one."""
    kept: Sequence[int]
    asked: Sequence[int] | None = None
    """[depth]: tokens that both drafters were asked to foretell; those right ``with`` and ``without`` the vectors."""
    with_: Sequence[int] | None = None
    without: Sequence[int] | None = None
