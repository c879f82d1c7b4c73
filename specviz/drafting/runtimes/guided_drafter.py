"""Feature drafter under classifier-free guidance: conditional and unconditional rows side by side in one cache.

Each input occupies two neighbouring columns: one on the features of the row that read the prompt, one on those of the row that
read an empty prompt. Each sees only its own kind; logits are mixed as the target mixes its own. One tree serves both rows, and
a level of it is one forward. Otherwise as :mod:`specviz.drafting.runtimes.feature_drafter`.
Where the empty prompt is shorter, PADDING stands before it, which no row sees; positions then count from its first token.
Axis names: ``input``, ``row`` (conditional, unconditional), ``column`` (of inputs in the cache), ``hidden``, ``support``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.networks.feature_head import FeatureRuntime
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter, TapsLayers
from specviz.engine.interfaces import TargetPass

TWO = 2
PADDING = -1
"""Stands in the empty prompt for a token that is not there."""
_LAST = "_guided"
"""A network's own attribute: the two rows that a run has drafted with last."""


@dataclass
class GuidedCache:
    """A network's cache whose inputs take two columns each."""

    columns: Any

    def reserve(self, inputs: int) -> None:
        """Make room for this many inputs."""
        self.columns.reserve(TWO * inputs)

    def copy(self, other: GuidedCache, inputs: int) -> None:
        """Take over the first inputs of another cache."""
        self.columns.copy(other.columns, TWO * inputs)

    def clear(self) -> None:
        """As the network's own cache."""
        self.columns.clear()


class GuidedStepper:
    """A network over inputs of two rows. ``scale`` is the guidance: logits are u + scale (c - u). ``padding`` inputs at the
    start of the unconditional row are not there."""

    def __init__(self, network: FeatureRuntime, scale: float, padding: int) -> None:
        self.network: Any = network
        self.scale, self.padding = scale, padding
        self.draft_ids: Tensor | None = network.draft_ids

    @property
    def config(self) -> TapsLayers:
        """What the network was trained with."""
        config: TapsLayers = self.network.config
        return config

    @property
    def embedding(self) -> Tensor:
        """The network's, [vocab, hidden]: every state has its device and its kind of numbers."""
        embedding: Tensor = self.network.embedding
        return embedding

    @property
    def rotary(self) -> Tensor:
        """The network's table as far as it reaches now."""
        table: Tensor = self.network.rotary
        return table

    def open(self, capacity: int) -> GuidedCache:
        """An empty cache with room for ``capacity`` inputs at first."""
        return GuidedCache(self.network.open(TWO * capacity))

    def reach(self, positions: int) -> None:
        """Make the rotary table at least this long."""
        self.network.reach(positions)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's hidden states [input, row, tap * hidden] to what the network takes, [input, row, hidden]."""
        fused: Tensor = self.network.fuse(features)
        return fused

    def logits(self, output: Tensor) -> Tensor:
        """Outputs [input, row, hidden] to guided logits [input, support]."""
        logits = self.network.logits(output.flatten(0, 1)).view(len(output), TWO, -1)
        guided: Tensor = logits[:, 1] + self.scale * (logits[:, 0] - logits[:, 1])
        return guided

    def __call__(
        self, tokens: Tensor, features: Tensor, positions: Tensor, cache: GuidedCache, start: int | Tensor, mask: Tensor | None
    ) -> Tensor:  # fmt: skip
        """Outputs [input, row, hidden] of ``tokens`` [input], or [input * row] where those of the two rows differ, over
        ``features`` [input, row, hidden].

        Keys and values go into the cache from input ``start`` on, or to these inputs [input] of it; ``mask`` is bool [input,
        column], None where every input sees them all.
        """
        count, device = len(features), features.device
        words = tokens if len(tokens) == TWO * count else tokens.repeat_interleave(TWO)
        if mask is None:
            assert isinstance(start, int)
            mask = torch.ones(count, start + count, dtype=torch.bool, device=device)
        seen, places = mask[:, None], positions.repeat_interleave(TWO)
        if self.padding:
            column = torch.arange(mask.shape[1], device=device)
            own = column == column[start:, None]  # an input that is padding itself has to see something
            seen = torch.stack((mask, mask & (column >= self.padding) | own), dim=1)
            places = torch.stack((positions, (positions - self.padding).clamp_min(0)), dim=1).flatten()
        # A row of one kind sees the columns of its own kind only.
        kind = torch.eye(TWO, dtype=torch.bool, device=device)[:, None]
        both = (seen[..., None] & kind).reshape(TWO * count, -1)
        at = TWO * start
        if isinstance(at, Tensor):
            at = torch.stack((at, at + 1), dim=1).flatten()
        outputs = self.network(words, features.flatten(0, 1), places, cache.columns, at, both)
        rows: Tensor = outputs.view(count, TWO, -1)
        return rows


def _guided(network: FeatureRuntime, scale: float, padding: int) -> GuidedStepper:
    """The two rows of ``network``, those of the last run where they were alike: what was captured over them serves again."""
    last: GuidedStepper | None = vars(network).get(_LAST)
    if last is None or (last.scale, last.padding) != (scale, padding):
        last = GuidedStepper(network, scale, padding)
        setattr(network, _LAST, last)
    return last


class GuidedDrafter(FeatureDrafter[GuidedCache]):
    """``unconditional`` is the prompt of the second row, ``scale`` the guidance."""

    def __init__(self, network: FeatureRuntime, scale: float, unconditional: Sequence[int]) -> None:
        stepper: Any = _guided(network, scale, padding(unconditional))
        super().__init__(stepper)
        self._unconditional = tuple(unconditional)

    def _fixable(self) -> bool:
        stepper: Any = self._stepper
        return stepper.network.captures and not stepper.padding

    def _words(self, ids: Sequence[int], start: int, until: int) -> Sequence[int]:
        """Two tokens an input: the second row reads the empty prompt where the first reads the prompt."""
        other = [max(0, token) for token in self._unconditional[start + 1 : until + 1]]
        pairs = zip(ids[start + 1 : until + 1], [*other, *ids[start + 1 + len(other) : until + 1]], strict=True)
        return [token for pair in pairs for token in pair]

    def _features(self, passed: TargetPass, rows: Tensor | None) -> Tensor:
        """What the network reads of the target's pass, of these nodes or of all: [node, row, hidden]."""
        states = [passed.hidden[tap] if rows is None else passed.hidden[tap][rows] for tap in self.taps]
        return self._true(torch.cat([state.unflatten(-1, (TWO, -1)) for state in states], dim=-1))


def padding(unconditional: Sequence[int]) -> int:
    """How many tokens of the empty prompt are not there."""
    return sum(token == PADDING for token in unconditional)


def feature_drafter(network: FeatureRuntime, guidance: tuple[float, Sequence[int]] | None) -> FeatureDrafter[Any]:
    """The drafter that suits a target: one row, or two that are guided, (scale, the empty prompt)."""
    return FeatureDrafter(network) if guidance is None else GuidedDrafter(network, *guidance)
