"""Notes of image runs and of vision-language runs.

Spans are [first place, how many] of unbroken rows of places in the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from specviz.trace.notes.base import Pair, Part, TypedNote


class CanvasNote(TypedNote, frozen=True):
    """Rows of a picture that this step completed, in any image run."""

    row: int
    """First row, from 0."""
    rows: int
    codes: int
    """Number of codes generated so far."""
    png: str
    """The band, base64."""


class CoarseCodesNote(TypedNote, frozen=True):
    """Coarse codes and the fine codes drafted from them, by MuLo-SD (arXiv 2601.05149)."""

    codes: Sequence[int]
    fine: Sequence[int]


class JacobiWindowNote(TypedNote, frozen=True):
    """Window of codes resampled in each pass, by Speculative Jacobi Decoding (arXiv 2410.01699)."""

    codes: Sequence[int]
    redrawn: int
    """Number of codes at the window's start sampled from the last pass's distributions."""


class PictureNote(TypedNote, frozen=True):
    """Preprocessed picture of a prompt and the positions of its tokens, in the first step of a vision-language run."""

    png: Sequence[str]
    """Base64 in pieces, since a note's texts have at most 4096 characters."""
    size: Pair
    """Width and height in pixels."""
    grid: Pair
    """Rows and columns of patches; zeros if they form no plain grid."""
    spans: Sequence[Pair]
    prompt: int
    """Number of prompt tokens."""
    encoding_ns: int
    boxes: Sequence[Annotated[Sequence[float], Meta(min_length=4, max_length=4)]] | None = None
    """[patch]: left, top, right and bottom in fractions of the picture, if they form no plain grid."""


class VisualTokensNote(TypedNote, frozen=True):
    """Prompt as target and drafter read it: image tokens that the drafter sees, by DREAM, HiViS and visual drafters.

    ``target`` and ``drafter`` are tokens of the two prefills.
    """

    target: int
    drafter: int
    visual: Sequence[Pair]
    """Spans of image tokens."""
    kept: Sequence[Pair]
    """Spans of image tokens visible to the drafter."""
    unseen: Sequence[Pair]
    """Spans of other tokens hidden from it."""


class AttentionLook(Part, frozen=True):
    """Attention of the drafter after ``tokens``: its sum over the picture, and [position, weight] of the largest."""

    tokens: Sequence[int]
    picture: float
    at: Sequence[tuple[int, float]]
    texts: Sequence[str] = ()


class AttentionEntropyNote(TypedNote, frozen=True):
    """Attention of a drafter to the picture and, in the first step, entropy of the target's, by DREAM (arXiv 2505.19201)."""

    looks: Sequence[AttentionLook]
    entropy: Sequence[Sequence[float]] | None = None
    """[layer, position]: entropy of the target's attention."""
    middle: Sequence[int] | None = None
    """Candidate layers for the drafter's feature."""
    chosen: Sequence[int] | None = None
    """[position]: the candidate layer of least entropy."""


class StepEmbeddingsNote(TypedNote, frozen=True):
    """Step embeddings, and the acceptance of drafts with and without them, by HiViS (arXiv 2509.23928).

    Counts are of the run so far.
    """

    norms: Sequence[float]
    """[depth]: length of the learned vector."""
    reached: Sequence[int]
    """[depth]: rounds in which a child there was judged; ``kept``: those in which one was accepted."""
    kept: Sequence[int]
    asked: Sequence[int] | None = None
    """[depth]: tokens predicted by both drafters; those right ``with`` and ``without`` the vectors."""
    with_: Sequence[int] | None = None
    without: Sequence[int] | None = None
