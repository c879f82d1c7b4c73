"""Attention entropy and image-token importance of a target, for DREAM's drafter and its note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.targets.attention_maps import entropies, importance, middle_layers, text_part
from specviz.trace.notes.images import AttentionEntropyNote

Hidden = Mapping[int, Tensor]


class AttentionSummary:
    """Attention statistics of a vision-language target, computed from the hidden states of all its layers (``taps``)."""

    def __init__(self, target: Any) -> None:
        self._text = text_part(target.model)
        self.taps = tuple(range(len(self._text.layers) + 1))

    @torch.inference_mode()
    def importance(self, hidden: Hidden, places: Sequence[int]) -> Tensor:
        """Return the last layer's attention to the visual tokens at ``places``, [place]."""
        return importance(self._text, hidden, _places(hidden), places)

    @torch.inference_mode()
    def entropy_note(self, hidden: Hidden) -> AttentionEntropyNote:
        """Return every layer's attention entropy at every prompt position, and each position's middle layer of minimum
        entropy."""
        layers = len(self._text.layers)
        entropy = entropies(self._text, range(layers), hidden, _places(hidden))
        middle = middle_layers(layers)
        chosen = entropy[list(middle)].argmin(0)
        return AttentionEntropyNote(
            looks=(),
            entropy=[[round(value, 3) for value in row] for row in entropy.tolist()],
            middle=list(middle),
            chosen=[middle[place] for place in chosen.tolist()],
        )


def _places(hidden: Hidden) -> Tensor:
    return torch.arange(len(hidden[0]), device=hidden[0].device)
