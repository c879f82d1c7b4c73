"""The target's hidden states on its own answers about pictures, as the recipes of feature drafters read them.

Computed on first use and kept in memory as float16: a few hundred megabytes. Same face as ``features.FeatureStore``.
Axis names: ``token``, ``tap``, ``hidden``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specviz.targets.attention_maps import (
    entropies,
    importance,
    middle_layers,
    most_looked_at,
)
from specviz.training.common import parallel
from specviz.training.common.features import DialogueFeatures
from specviz.training.vision.picture_dialogues import PictureDialogues, visual_tokens_of
from specviz.training.vision.scene_batches import Writer
from specviz.training.vision.scenes_model import Learner

WORDS, ALL, COMPRESSED = "words", "all", "compressed"
"""What a drafter is shown of a prompt: its words, everything, or its words and the visual tokens looked at most."""
MIDDLE = -1
"""Stands for the hidden state whose layer looks least scattered, chosen for every token."""


@dataclass(frozen=True)
class PictureDialogueFeatures(DialogueFeatures):
    """``tokens`` may hold places of a picture, whose embedding is tap 0; ``positions`` [token] are the target's where the
    drafter keeps them, else counted anew."""

    positions: Tensor


class PictureStore:
    """Hidden states ``taps`` (transformers' numbering, or ``MIDDLE``) of a ``view`` of each dialogue."""

    keeps = True

    def __init__(
        self,
        learner: Learner,
        writer: Writer,
        spoken: PictureDialogues,
        taps: Sequence[int],
        view: str,
        keep: float = 1.0,
    ) -> None:
        self.taps, self.view, self.keep = tuple(taps), view, keep
        self.dialogues, self.spoken, self.writer = spoken.dialogues, spoken, writer
        self.device = learner.model.device
        self._learner = learner
        self._features: dict[int, tuple[Tensor, Tensor, Tensor, int]] = {}

    def has(self, number: int) -> bool:
        """Whether this dialogue has been read already."""
        return number in self._features

    def known(self, number: int) -> bool:
        """The same: all that was read is kept."""
        return self.has(number)

    def get(self, numbers: Sequence[int]) -> list[DialogueFeatures]:
        """The dialogues with their features; what is missing is computed first."""
        for number in numbers:
            if number not in self._features:
                self._features[number] = self._compute(number)
        dialogues: list[DialogueFeatures] = []
        for number in numbers:
            tokens, features, positions, first = self._features[number]
            dialogues.append(PictureDialogueFeatures(tokens, features.float(), first, positions))
        return dialogues

    @torch.no_grad()
    def _compute(self, number: int) -> tuple[Tensor, Tensor, Tensor, int]:
        text = self._learner.model.model.text_model
        with parallel.arithmetic(self.device):
            visual = visual_tokens_of(self._learner, [int(self.spoken.scene[number])])
        pictured = visual.shape[1]
        ids = [self.writer.user, *[self.writer.image] * pictured, *self.dialogues.of(number).tolist()]
        tokens = torch.tensor(ids, device=self.device)
        embedded = text.embed_tokens(tokens)
        embedded[1 : 1 + pictured] = visual[0].float()
        places = torch.arange(len(ids), device=self.device)
        with parallel.arithmetic(self.device):
            passed = text(inputs_embeds=embedded[None], position_ids=places[None], use_cache=False, output_hidden_states=True)
        hidden = {layer: states[0].float() for layer, states in enumerate(passed.hidden_states)}
        prefill = pictured + int(self.dialogues.prompt[number])
        chosen = self._chosen(hidden, places, pictured, prefill)
        features = torch.stack([self._tap(tap, hidden, places) for tap in self.taps], dim=1)
        dropped = len(ids) - len(chosen)
        first = 1 + pictured + int(self.dialogues.prompt[number]) - dropped
        positions = places[chosen] if self.view == COMPRESSED else places[: len(chosen)]
        return tokens[chosen], features[chosen].clamp(-65504, 65504).half(), positions, first

    def _chosen(self, hidden: dict[int, Tensor], places: Tensor, pictured: int, prefill: int) -> Tensor:
        """Places the drafter is shown. ``prefill`` tokens, the prompt but its last, are all there is when it is chosen."""
        keep = np.ones(len(places), dtype=bool)
        if self.view == WORDS:
            keep[1 : 1 + pictured] = False
        elif self.view == COMPRESSED:
            prompt = {layer: states[:prefill] for layer, states in hidden.items()}
            text = self._learner.model.model.text_model
            weights = importance(text, prompt, places[:prefill], range(1, 1 + pictured))
            keep[1 : 1 + pictured] = False
            keep[[1 + place for place in most_looked_at(weights, self.keep)]] = True
        return places[torch.from_numpy(keep).to(places.device)]

    def _tap(self, tap: int, hidden: dict[int, Tensor], places: Tensor) -> Tensor:
        if tap != MIDDLE:
            return hidden[tap]
        layers = middle_layers(len(hidden) - 1)
        best = entropies(self._learner.model.model.text_model, layers, hidden, places).argmin(0)
        return torch.stack([hidden[layer] for layer in layers])[best, places]
