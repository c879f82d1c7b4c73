"""Feature drafter under classifier-free guidance: conditional and unconditional rows side by side in one cache.

Each input stands twice, in two neighbouring columns, once on the features of the row that read the prompt and once on
those of the row that read an empty one, and sees only its own kind; logits are mixed as the target mixes its own. So one
tree serves both rows, and a level of it is one forward. Otherwise as :mod:`specviz.drafters.feature_drafter`.
Where the empty prompt is shorter, PADDING stands before it, which no row sees; positions then count from its first token.
Axis names: ``input``, ``row`` (conditional, unconditional), ``column`` (of inputs in the cache), ``hidden``, ``support``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.feature_drafter import FeatureDrafter, TapsLayers
from specviz.drafters.feature_stepper import FeatureStepper
from specviz.drafters.head_stepper import HeadStepper
from specviz.drafters.networks.feature_net import FeatureNet
from specviz.engine.interfaces import TargetPass
from specviz.engine.to_device import to_device

TWO = 2
PADDING = -1
"""Stands in the empty prompt for a token that is not there."""


@dataclass
class GuidedCache:
    """A network's cache whose inputs take two columns each."""

    columns: Any

    def reserve(self, inputs: int) -> None:
        """Make room for this many inputs."""
        self.columns.reserve(TWO * inputs)


class GuidedStepper:
    """A network over inputs of two rows. ``scale`` is the guidance: logits are u + scale (c - u). ``padding`` inputs at the
    start of the unconditional row are not there."""

    def __init__(self, network: FeatureStepper | HeadStepper, scale: float, padding: int) -> None:
        self._network: Any = network
        self._scale, self._padding = scale, padding
        self.draft_ids: Tensor | None = network.draft_ids

    @property
    def config(self) -> TapsLayers:
        """What the network was trained with."""
        config: TapsLayers = self._network.config
        return config

    @property
    def embedding(self) -> Tensor:
        """The network's, [vocab, hidden]."""
        embedding: Tensor = self._network.embedding
        return embedding

    def open(self, capacity: int) -> GuidedCache:
        """An empty cache with room for ``capacity`` inputs at first."""
        return GuidedCache(self._network.open(TWO * capacity))

    def reach(self, positions: int) -> None:
        """Make the rotary table at least this long."""
        self._network.reach(positions)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's hidden states [input, row, tap * hidden] to what the network takes, [input, row, hidden]."""
        fused: Tensor = self._network.fuse(features)
        return fused

    def logits(self, output: Tensor) -> Tensor:
        """Outputs [input, row, hidden] to guided logits [input, support]."""
        logits = self._network.logits(output.flatten(0, 1)).view(len(output), TWO, -1)
        guided: Tensor = logits[:, 1] + self._scale * (logits[:, 0] - logits[:, 1])
        return guided

    def __call__(
        self, tokens: Tensor, features: Tensor, positions: Tensor, cache: GuidedCache, start: int, mask: Tensor | None,
        embedded: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Outputs [input, row, hidden] of ``tokens`` [input] over ``features`` [input, row, hidden].

        ``mask`` is bool [input, column], None where every input sees them all. ``embedded`` [input, row, hidden] stands for the
        tokens where those of the two rows differ.
        """
        count, device = len(tokens), tokens.device
        columns = start + count
        if mask is None:
            mask = torch.ones(count, columns, dtype=torch.bool, device=device)
        seen, places = mask[:, None], positions.repeat_interleave(TWO)
        if self._padding:
            column = torch.arange(columns, device=device)
            own = column == column[start:, None]  # an input that is padding itself has to see something
            seen = torch.stack((mask, mask & (column >= self._padding) | own), dim=1)
            places = torch.stack((positions, (positions - self._padding).clamp_min(0)), dim=1).flatten()
        # A row of one kind sees the columns of its own kind only.
        kind = torch.eye(TWO, dtype=torch.bool, device=device)[:, None]
        both = (seen[..., None] & kind).reshape(TWO * count, TWO * columns)
        words = tokens.repeat_interleave(TWO)
        more = {} if embedded is None else {"embedded": embedded.flatten(0, 1)}
        outputs = self._network(words, features.flatten(0, 1), places, cache.columns, TWO * start, both, **more)
        rows: Tensor = outputs.view(count, TWO, -1)
        return rows


class GuidedDrafter(FeatureDrafter[GuidedCache]):
    """``unconditional`` is the prompt of the second row, ``scale`` the guidance."""

    def __init__(self, network: FeatureStepper | FeatureNet | HeadStepper, scale: float, unconditional: Sequence[int]) -> None:
        stepper = FeatureStepper(network) if isinstance(network, FeatureNet) else network
        self._guided = GuidedStepper(stepper, scale, padding(unconditional))
        self._unconditional = tuple(unconditional)
        super().__init__(self._guided)

    def _beside(self, tokens: Tensor, first: int) -> dict[str, Tensor]:
        """Embeddings [input, row, hidden] of committed tokens as long as the second row reads a prompt of its own."""
        silent = [max(0, token) for token in self._unconditional[first : first + len(tokens)]]
        if not silent:
            return {}
        other = torch.cat((to_device(silent, tokens.device), tokens[len(silent) :]))
        return {"embedded": F.embedding(torch.stack((tokens, other), dim=1), self._guided.embedding)}

    def _features(self, passed: TargetPass, rows: Tensor | None) -> Tensor:
        """What the network reads of the target's pass, of these nodes or of all: [node, row, hidden]."""
        states = [passed.hidden[tap] if rows is None else passed.hidden[tap][rows] for tap in self.taps]
        return self._true(torch.cat([state.unflatten(-1, (TWO, -1)) for state in states], dim=-1))


def padding(unconditional: Sequence[int]) -> int:
    """How many tokens of the empty prompt are not there."""
    return sum(token == PADDING for token in unconditional)


def feature_drafter(
    network: FeatureStepper | FeatureNet | HeadStepper, guidance: tuple[float, Sequence[int]] | None
) -> FeatureDrafter[Any]:
    """The drafter that suits a target: one row, or two that are guided, (scale, the empty prompt)."""
    return FeatureDrafter(network) if guidance is None else GuidedDrafter(network, *guidance)
