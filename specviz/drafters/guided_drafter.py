"""Feature drafter under classifier-free guidance: conditional and unconditional rows side by side in one cache.

Each input stands twice, in two neighbouring columns, once on the features of the row that read the prompt and once on
those of the row that read an empty one, and sees only its own kind; logits are mixed as the target mixes its own. So one
tree serves both rows, and a level of it is one forward. Otherwise as :mod:`specviz.drafters.feature_drafter`.
Where the empty prompt is shorter, PADDING stands before it, which no row sees; positions then count from its first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.drafters.feature_drafter import FeatureDrafter
from specviz.drafters.feature_stepper import FeatureStepper
from specviz.drafters.head_stepper import HeadStepper
from specviz.drafters.networks.feature_net import FeatureNet
from specviz.drafters.null import NullDrafter
from specviz.engine.interfaces import Context, Pick, Proposal, Round, TargetPass
from specviz.engine.to_device import to_device
from specviz.trace.schema import Note

TWO = 2
PADDING = -1
"""Stands in the empty prompt for a token that is not there."""


class GuidedDrafter(NullDrafter):
    """``unconditional`` is the prompt of the second row, ``scale`` the guidance: logits are u + scale (c - u)."""

    def __init__(self, network: FeatureStepper | FeatureNet | HeadStepper, scale: float, unconditional: Sequence[int]) -> None:
        stepper: Any = FeatureStepper(network) if isinstance(network, FeatureNet) else network
        self.support: Tensor | None = stepper.draft_ids
        self.taps = stepper.config.taps
        self._stepper, self._scale, self._silent = stepper, scale, tuple(unconditional)
        self._padding = padding(unconditional)
        self._cache: Any = None
        self._calls = 0
        self._restart()

    def _restart(self) -> None:
        self._committed = 0
        self._waiting: list[Tensor] = []
        """The target's features [input, row, hidden] of the tokens from ``_committed`` on."""
        self._end_round()

    def _end_round(self) -> None:
        self._outputs: dict[int, Tensor] = {}
        """By node: [row, hidden]."""
        self._ancestry: dict[int, tuple[int, ...]] = {}
        """By node: which of the inputs behind the committed ones are its drafted ancestors and itself."""
        self._drafted = 0
        self._root_logits: Tensor | None = None

    @torch.inference_mode()
    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._restart()
        self._cache = self._stepper.open(TWO * (len(context.ids) + max(1, context.max_depth)))
        if prefill is not None:
            self._waiting.append(self._features(prefill))
            self._commit(context.ids, context.position - 1)
        self._calls = 0  # taking in the prompt is part of the prefill

    def observe(self, finished: Round) -> None:
        path = (0, *finished.verdict.path)[: len(finished.emitted)]
        self._waiting.append(self._features(finished.target)[to_device(list(path), finished.context.device)])
        self._end_round()

    def close(self) -> None:
        self._cache = None
        self._restart()

    def calls(self) -> int:
        count, self._calls = self._calls, 0
        return count

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return ()

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        """The warped distribution after each of ``nodes``; the plain softmax at temperature 0."""
        logits = self.logits(context, tokens, parents, nodes)
        if logits is None:
            return [None] * len(nodes)
        return [Proposal(distribution, self.support) for distribution in context.warp.log_probabilities(logits).exp()]

    @torch.inference_mode()
    def logits(self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor | None:
        """Guided logits [node, support] after each of ``nodes``, whose parents were asked before; None without features."""
        if self._root_logits is None and self._waiting:
            last = self._commit(context.ids, context.position)
            self._outputs[0], self._ancestry[0] = last, ()
            self._root_logits = self._mixed(last[None])
        if list(nodes) == [0] or self._root_logits is None:
            return self._root_logits
        outputs = self._grow(context, tokens, parents, nodes)
        return self._mixed(outputs)

    def _mixed(self, outputs: Tensor) -> Tensor:
        """Outputs [node, row, hidden] to guided logits [node, support]."""
        logits = self._stepper.logits(outputs.flatten(0, 1)).view(len(outputs), TWO, -1)
        return logits[:, 1] + self._scale * (logits[:, 0] - logits[:, 1])

    def _commit(self, ids: Sequence[int], until: int) -> Tensor:
        """Run the inputs from ``_committed`` up to ``until`` over their true features. The last outputs [row, hidden]."""
        assert self._cache is not None
        features, start = torch.cat(self._waiting), self._committed
        count, device = until - start, features.device
        if not count:
            return features[:0]
        conditional = list(ids[start + 1 : until + 1])
        unconditional = [*self._silent[start + 1 : until + 1], *conditional[len(self._silent[start + 1 : until + 1]) :]]
        tokens = to_device([max(0, token) for pair in zip(conditional, unconditional, strict=True) for token in pair], device)
        places = torch.arange(start, until, device=device)
        column = torch.arange(until, device=device)
        mask = (column[None] <= places[:, None]).repeat_interleave(TWO, 0)
        outputs = self._pass(tokens, features[:count], places, start, mask)
        self._committed, self._waiting = until, [features[count:]]
        return outputs[-1]

    def _grow(self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor:
        """One forward over drafted nodes, outputs [node, row, hidden], kept for their children."""
        start, device = self._committed + self._drafted, context.device
        depths = []
        for place, node in enumerate(nodes):
            self._ancestry[node] = (*self._ancestry[parents[node]], start + place)
            depths.append(len(self._ancestry[node]))
        mask = torch.zeros(len(nodes), start + len(nodes), dtype=torch.bool)
        mask[:, : self._committed] = True
        for row, node in enumerate(nodes):
            mask[row, list(self._ancestry[node])] = True
        features = torch.stack([self._outputs[parents[node]] for node in nodes])
        twice = to_device([tokens[node] for node in nodes for _ in range(TWO)], device)
        places = to_device([context.position - 1 + depth for depth in depths], device)
        outputs = self._pass(twice, features, places, start, mask.to(device).repeat_interleave(TWO, 0))
        self._drafted += len(nodes)
        for place, node in enumerate(nodes):
            self._outputs[node] = outputs[place]
        return outputs

    def _pass(self, tokens: Tensor, features: Tensor, places: Tensor, start: int, mask: Tensor) -> Tensor:
        """The network over inputs [input, row, hidden]; ``mask`` is bool [input * row, input of the cache]."""
        assert self._cache is not None
        count, columns = len(features), mask.shape[1]
        self._cache.reserve(TWO * columns)
        self._stepper.reach(int(places.max()) + 1)
        # A row of one kind sees the columns of its own kind only.
        kind = torch.arange(TWO, device=mask.device)
        own = kind.repeat(count)[:, None] == kind.repeat(columns)[None]
        row_mask = mask.repeat_interleave(TWO, 1) & own
        flat, twice = features.flatten(0, 1), places.repeat_interleave(TWO)
        if self._padding:
            second = twice - self._padding
            absent = (torch.arange(TWO * columns, device=mask.device) // TWO < self._padding)[None] & (kind.repeat(count) > 0)[
                :, None
            ]
            alone = (
                torch.arange(TWO * columns, device=mask.device)[None]
                == TWO * start + torch.arange(TWO * count, device=mask.device)[:, None]
            )
            row_mask = row_mask & ~absent | alone  # a row that is padding itself has to see something
            twice = torch.where(kind.repeat(count) > 0, second.clamp_min(0), twice)
        self._calls += 1
        return self._stepper(tokens, flat, twice, self._cache, TWO * start, row_mask).view(count, TWO, -1)

    def _features(self, passed: TargetPass) -> Tensor:
        """What the network reads of the target's pass, [node, row, tap * hidden]."""
        taps = [passed.hidden[tap].unflatten(-1, (TWO, -1)) for tap in self.taps]
        return torch.cat(taps, dim=-1)


def padding(unconditional: Sequence[int]) -> int:
    """How many tokens of the empty prompt are not there."""
    return sum(token == PADDING for token in unconditional)


def feature_drafter(
    network: FeatureStepper | FeatureNet | HeadStepper, guidance: tuple[float, Sequence[int]] | None
) -> FeatureDrafter | GuidedDrafter:
    """The drafter that suits a target: one row, or two that are guided, (scale, the empty prompt)."""
    return FeatureDrafter(network) if guidance is None else GuidedDrafter(network, *guidance)
