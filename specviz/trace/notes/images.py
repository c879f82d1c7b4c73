"""Notes on image runs and vision-language runs.

A span is [first position, length] of consecutive prompt tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from specviz.trace.notes.base import Pair, Part, TypedNote


class CanvasNote(TypedNote, frozen=True):
    """Image rows to redraw after this step."""

    row: int
    """First of the rows, from 0."""
    rows: int
    codes: int
    """Number of codes generated so far."""
    png: str
    """The rows as a base64-encoded PNG."""


class CoarseCodesNote(TypedNote, frozen=True):
    """Coarse codes and the fine codes drafted from them (MuLo-SD, arXiv 2601.05149)."""

    codes: Sequence[int]
    fine: Sequence[int]


class JacobiWindowNote(TypedNote, frozen=True):
    """Window of draft codes, resampled in each pass (Speculative Jacobi Decoding, arXiv 2410.01699)."""

    codes: Sequence[int]
    redrawn: int
    """Number of codes, from the start of the window, that were sampled from the previous pass's distributions."""


class PictureNote(TypedNote, frozen=True):
    """The preprocessed image of a prompt and the positions of the image tokens, in the first step of a vision-language run."""

    png: Sequence[str]
    """Base64-encoded PNG, split into strings of at most 4096 characters."""
    size: Pair
    """Width and height in pixels."""
    grid: Pair
    """Rows and columns of patches; zeros without a regular grid."""
    spans: Sequence[Pair]
    prompt: int
    """Number of prompt tokens."""
    encoding_ns: int
    boxes: Sequence[Annotated[Sequence[float], Meta(min_length=4, max_length=4)]] | None = None
    """[patch]: left, top, right and bottom edges as fractions of the image, if the patches do not form a regular grid."""


class VisualTokensNote(TypedNote, frozen=True):
    """Prompt tokens visible to the drafter (DREAM, HiViS and other drafters with visual context).

    ``target``, ``drafter``: prefill lengths of the two models.
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
    """The drafter's attention after ``tokens``. ``picture``: weight on the image; ``at``: largest [position, weight] pairs."""

    tokens: Sequence[int]
    picture: float
    at: Sequence[tuple[int, float]]
    texts: Sequence[str] = ()


class AttentionEntropyNote(TypedNote, frozen=True):
    """The drafter's attention to the image and, in the first step, the entropy of the target's attention (DREAM, arXiv
    2505.19201).
    """

    looks: Sequence[AttentionLook]
    entropy: Sequence[Sequence[float]] | None = None
    """[layer, position]: entropy of the target's attention."""
    middle: Sequence[int] | None = None
    """Candidate target layers for the drafter's input features."""
    chosen: Sequence[int] | None = None
    """[position]: the candidate layer with the lowest entropy."""


class StepEmbeddingsNote(TypedNote, frozen=True):
    """Step embeddings of the drafter, with counts over the run so far (HiViS, arXiv 2509.23928)."""

    norms: Sequence[float]
    """[depth]: norm of the step embedding."""
    reached: Sequence[int]
    """[depth]: number of rounds in which a node was judged."""
    kept: Sequence[int]
    """[depth]: number of rounds in which a node was accepted."""
    asked: Sequence[int] | None = None
    """[depth]: number of tokens predicted both with and without step embeddings."""
    with_: Sequence[int] | None = None
    """[depth]: number of correct predictions with step embeddings."""
    without: Sequence[int] | None = None
    """[depth]: number of correct predictions without step embeddings."""
