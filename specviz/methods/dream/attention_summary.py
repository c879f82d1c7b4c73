"""Attention entropy and image-token importance of a target, for DREAM's drafter and its note."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specviz.targets.attention_maps import entropies, importance, middle_layers, text_part
from specviz.trace.notes.images import AttentionEntropyNote

Hidden = Mapping[int, Tensor]


@dataclass(frozen=True)
class AttentionSummary:
    """Attention statistics. ``importance(hidden, places)`` [place] is the last layer's attention on visual places;
    ``entropy_note(hidden)`` is every layer's attention entropy at every place of the prompt, and the layer of least entropy."""

    importance: Callable[[Hidden, Sequence[int]], Tensor]
    entropy_note: Callable[[Hidden], AttentionEntropyNote]


def summarise_attention(target: Any) -> tuple[AttentionSummary, tuple[int, ...]]:
    """Return the summary for a vision-language target, and the hidden-state layers it requires: all of them."""
    text = text_part(target.model)
    layers = len(text.layers)

    def places_of(hidden: Hidden) -> Tensor:
        return torch.arange(len(hidden[0]), device=hidden[0].device)

    @torch.inference_mode()
    def important(hidden: Hidden, places: Sequence[int]) -> Tensor:
        return importance(text, hidden, places_of(hidden), places)

    @torch.inference_mode()
    def entropy_note(hidden: Hidden) -> AttentionEntropyNote:
        entropy = entropies(text, range(layers), hidden, places_of(hidden))
        middle = middle_layers(layers)
        chosen = entropy[list(middle)].argmin(0)
        return AttentionEntropyNote(
            looks=(),
            entropy=[[round(value, 3) for value in row] for row in entropy.tolist()],
            middle=list(middle),
            chosen=[middle[place] for place in chosen.tolist()],
        )

    return AttentionSummary(important, entropy_note), tuple(range(layers + 1))
