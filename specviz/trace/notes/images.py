"""Notes on image runs and vision-language runs.

A span is [first place, length] of consecutive places in the prompt.
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
    """These rows as a base64-encoded PNG."""


class CoarseCodesNote(TypedNote, frozen=True):
    """Coarse codes and the fine codes drafted from them, by MuLo-SD (arXiv 2601.05149)."""

    codes: Sequence[int]
    fine: Sequence[int]


class JacobiWindowNote(TypedNote, frozen=True):
    """Window of codes resampled in each pass, by Speculative Jacobi Decoding (arXiv 2410.01699)."""

    codes: Sequence[int]
    redrawn: int
    """Number of codes, from the window's start, that were sampled from the last pass's distributions."""


class PictureNote(TypedNote, frozen=True):
    """A prompt's preprocessed picture and the positions of its tokens, in the first step of a vision-language run."""

    png: Sequence[str]
    """Base64, split into pieces because a note's texts have at most 4096 characters."""
    size: Pair
    """Width and height in pixels."""
    grid: Pair
    """Rows and columns of patches; zeros if they do not form a regular grid."""
    spans: Sequence[Pair]
    prompt: int
    """Number of prompt tokens."""
    encoding_ns: int
    boxes: Sequence[Annotated[Sequence[float], Meta(min_length=4, max_length=4)]] | None = None
    """[patch]: left, top, right and bottom as fractions of the picture, if the patches do not form a regular grid."""


class VisualTokensNote(TypedNote, frozen=True):
    """The prompt as target and drafter read it, with the image tokens that the drafter sees, by DREAM, HiViS and visual drafters.

    ``target`` and ``drafter`` are the numbers of tokens in the two prefills.
    """

    target: int
    drafter: int
    visual: Sequence[Pair]
    """Spans of image tokens."""
    kept: Sequence[Pair]
    """Spans of image tokens visible to the drafter."""
    unseen: Sequence[Pair]
    """Spans of other tokens hidden from the drafter."""


class AttentionLook(Part, frozen=True):
    """The drafter's attention after ``tokens``: its sum over the picture, and the largest weights as [position, weight]."""

    tokens: Sequence[int]
    picture: float
    at: Sequence[tuple[int, float]]
    texts: Sequence[str] = ()


class AttentionEntropyNote(TypedNote, frozen=True):
    """A drafter's attention to the picture and, in the first step, the entropy of the target's, by DREAM (arXiv 2505.19201)."""

    looks: Sequence[AttentionLook]
    entropy: Sequence[Sequence[float]] | None = None
    """[layer, position]: entropy of the target's attention."""
    middle: Sequence[int] | None = None
    """Candidate layers for the drafter's feature."""
    chosen: Sequence[int] | None = None
    """[position]: the candidate layer with the lowest entropy."""


class StepEmbeddingsNote(TypedNote, frozen=True):
    """Step embeddings, and the acceptance of drafts with and without them, by HiViS (arXiv 2509.23928).

    Counts cover the run so far.
    """

    norms: Sequence[float]
    """[depth]: norm of the learned vector."""
    reached: Sequence[int]
    """[depth]: rounds in which a node at this depth was judged; ``kept``: those in which one was accepted."""
    kept: Sequence[int]
    asked: Sequence[int] | None = None
    """[depth]: tokens that both drafters predicted; ``with`` and ``without`` count the correct ones with and without the
    vectors."""
    with_: Sequence[int] | None = None
    without: Sequence[int] | None = None
