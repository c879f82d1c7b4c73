"""Feature drafter under classifier-free guidance: conditional and unconditional rows in one cache.

Each input occupies two adjacent columns: one for the row with the prompt, one for the row with an empty prompt. A row attends
only to columns of its own kind, and logits are mixed as in the target. One tree serves both rows, and a level is one forward. A
shorter empty prompt is preceded by PADDING, which no other input attends to; its positions start after the padding.

Axis names: ``input``, ``row`` (conditional, unconditional), ``column`` (of inputs in the cache), ``hidden``, ``support``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.networks.eagle_head import EagleRuntime, HeadCache
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter

TWO = 2
PADDING = -1
"""Placeholder for a missing token of the empty prompt."""
_LAST = "_guided"
"""Attribute of a network that holds the :class:`GuidedRuntime` of its last run."""


class GuidedRuntime:
    """Network over inputs of two rows.

    ``scale``: guidance; logits are u + scale (c - u). ``padding``: number of leading inputs that the unconditional row lacks.
    """

    def __init__(self, network: EagleRuntime, scale: float, padding: int) -> None:
        self.network, self.scale, self.padding = network, scale, padding
        self.draft_ids, self.config, self.embedding = network.draft_ids, network.config, network.embedding
        self.reach, self.fuse = network.reach, network.fuse

    @property
    def rotary(self) -> Tensor:
        """The network's rotary table of the current length."""
        return self.network.rotary

    def open(self, capacity: int) -> HeadCache:
        """Return an empty cache with two columns per input."""
        return self.network.open(capacity, TWO)

    def logits(self, output: Tensor) -> Tensor:
        """Map outputs [input, row, hidden] to guided logits [input, support]."""
        logits = self.network.logits(output.flatten(0, 1)).view(len(output), TWO, -1)
        return logits[:, 1] + self.scale * (logits[:, 0] - logits[:, 1])

    def __call__(
        self, tokens: Tensor, features: Tensor, positions: Tensor, cache: HeadCache, start: int | Tensor, mask: Tensor | None
    ) -> Tensor:  # fmt: skip
        """Return outputs [input, row, hidden] over ``features`` [input, row, hidden].

        ``tokens``: [input], or [input * row] if the two rows differ. ``start``: cache index of the first input, or of all
        [input]. ``mask``: bool [input, column], None if each input attends to all columns.
        """
        count, device = len(features), features.device
        words = tokens if len(tokens) == TWO * count else tokens.repeat_interleave(TWO)
        if mask is None:
            assert isinstance(start, int)
            mask = torch.ones(count, start + count, dtype=torch.bool, device=device)
        seen, places = mask[:, None], positions.repeat_interleave(TWO)
        if self.padding:
            column = torch.arange(mask.shape[1], device=device)
            own = column == column[start:, None]  # a padding input must attend at least to itself
            seen = torch.stack((mask, mask & (column >= self.padding) | own), dim=1)
            places = torch.stack((positions, (positions - self.padding).clamp_min(0)), dim=1).flatten()
        # A row attends only to columns of its own kind.
        kind = torch.eye(TWO, dtype=torch.bool, device=device)[:, None]
        both = (seen[..., None] & kind).reshape(TWO * count, -1)
        at = TWO * start
        if isinstance(at, Tensor):
            at = torch.stack((at, at + 1), dim=1).flatten()
        return self.network(words, features.flatten(0, 1), places, cache, at, both).view(count, TWO, -1)


class GuidedDrafter(FeatureDrafter):
    """Feature drafter over two rows. ``unconditional``: prompt of the second row. ``scale``: guidance."""

    def __init__(self, network: EagleRuntime, scale: float, unconditional: Sequence[int]) -> None:
        # Reuse the last run's runtime and its captured steps if the settings are the same.
        runtime: Any = vars(network).get(_LAST)
        if runtime is None or (runtime.scale, runtime.padding) != (scale, padding(unconditional)):
            runtime = GuidedRuntime(network, scale, padding(unconditional))
            setattr(network, _LAST, runtime)
        super().__init__(runtime)
        self._unconditional = tuple(unconditional)

    def _allows_fixed_shapes(self) -> bool:
        return self.network.config.experts is None and not self.network.padding

    def _words(self, ids: Sequence[int], start: int, until: int) -> Sequence[int]:
        """Return two tokens per input; the second row reads the empty prompt in place of the prompt."""
        other = [max(0, token) for token in self._unconditional[start + 1 : until + 1]]
        pairs = zip(ids[start + 1 : until + 1], [*other, *ids[start + 1 + len(other) : until + 1]], strict=True)
        return [token for pair in pairs for token in pair]

    def _true(self, features: Tensor) -> Tensor:
        """Return the network's features [node, row, hidden] from the target's states [node, tap * row * hidden]."""
        return super()._true(features.unflatten(-1, (len(self.taps), TWO, -1)).transpose(-3, -2).flatten(-2))


def padding(unconditional: Sequence[int]) -> int:
    """Return the number of missing tokens of the empty prompt."""
    return sum(token == PADDING for token in unconditional)


def feature_drafter(network: EagleRuntime, guidance: tuple[float, Sequence[int]] | None) -> FeatureDrafter:
    """Return the drafter for a target: one row, or two with ``guidance`` (scale, empty prompt)."""
    return FeatureDrafter(network) if guidance is None else GuidedDrafter(network, *guidance)
