"""Feature drafter (EAGLE): drafts a tree level by level from the target's hidden states.

Committed tokens enter the cache with the target's features. Drafted tokens enter with the network's own features and are dropped
after the round (Li et al., EAGLE, arXiv 2401.15077). With the root at position P, its children's distribution comes from the
feature of token P - 1 and the root's embedding. Below a child, the distribution comes from the parent's output and the child's
embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from specviz.drafting.networks.eagle_head import EagleRuntime
from specviz.drafting.runtimes.feature_levels import PIECE, TOGETHER, EagerLevels, FeatureLevels, FixedLevels, LevelsDrafter
from specviz.engine.interfaces import Context, Round, TargetPass
from specviz.engine.stop import chunks
from specviz.engine.to_device import to_device


class Runtime(Protocol):
    """Inference runtime of a network, shared between runs, which keep their own caches.

    ``config``: its ``taps`` are the target's layers that the network reads.
    """

    draft_ids: Tensor | None
    config: Any

    def open(self, capacity: int) -> Any:
        """Return an empty cache with initial room for ``capacity`` inputs."""

    def reach(self, positions: int) -> None:
        """Extend the rotary table to at least ``positions``."""

    def fuse(self, features: Tensor) -> Tensor:
        """Return the network's features [row, hidden] from the target's hidden states [row, tap * hidden]."""

    def logits(self, output: Tensor) -> Tensor:
        """Map outputs [row, hidden] to logits [row, support]."""

    def __call__(
        self, tokens: Tensor, features: Tensor, positions: Tensor, cache: Any, start: int, mask: Tensor | None,
        embedded: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        """Return outputs [row, hidden]; keys and values are written to the cache from column ``start`` on."""


class FeatureDrafter(LevelsDrafter[FeatureLevels]):
    """Drafter of one run; ``runtime`` is shared between runs.

    ``context_length``: maximum context in tokens, None for the target's limit. ``fixed``: whether levels have fixed shapes and
    addresses for CUDA graphs; by default only on CUDA.
    """

    eager, captured = EagerLevels, FixedLevels

    def __init__(self, runtime: Runtime, context_length: int | None = None, fixed: bool | None = None) -> None:
        super().__init__(runtime, fixed)
        self.taps = runtime.config.taps
        self._context_length = 1 << 40 if context_length is None else context_length

    def _restart(self) -> None:
        super()._restart()
        self._waiting: list[Tensor] = []
        """Features [row, hidden] of the tokens from ``_committed`` on, from the target's states."""
        self._end_round()

    def _end_round(self) -> None:
        self._root: Tensor | None = None
        """The network's output [1, hidden] after the root."""
        self._rows: Mapping[int, tuple[int, int]] = {}
        """Level and row of each node of the finished tree."""
        if self._levels is not None:
            self._levels.trail = []

    @torch.inference_mode()
    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._fixed = self._fixed and self._allows_fixed_shapes()
        self._open(context)
        if prefill is not None:
            self._waiting.append(self._true(self._states(prefill)))
            self._commit(context.ids, context.position - 1)
        self._calls = 0  # the prompt's forwards count as prefill

    def _acquired(self, columns: int) -> FeatureLevels:
        levels = super()._acquired(columns)
        if not self._fixed:
            levels.positions = self._places
        return levels

    def _allows_fixed_shapes(self) -> bool:
        """Whether levels may have fixed shapes and addresses; by default only in this class, not in subclasses."""
        return type(self) is FeatureDrafter and self._captures

    @property
    def _captures(self) -> bool:
        """Whether a forward needs no host synchronisation, so that it can be captured."""
        return isinstance(self.network, EagleRuntime) and self.network.config.experts is None

    @torch.inference_mode()
    def observe(self, finished: Round) -> None:
        path = (0, *finished.verdict.path)[: len(finished.emitted)]
        if finished.target.hidden:
            rows = to_device(path, finished.context.device)
            self._waiting.append(self._true(self._states(finished.target, rows)))
        else:
            self._waiting += self._drafted(finished, path)
        self._end_round()

    def _drafted(self, finished: Round, path: Sequence[int]) -> list[Tensor]:
        """Return the network's outputs after the nodes of ``path``, for target passes without hidden states.

        If no level contained the last node of the path, it is run now.
        """
        levels, tree, outputs = self._levels, finished.draft.tree, list[Tensor]()
        if levels is None or not levels.trail:
            return []
        for node in path:
            level, row = self._rows.get(node, (levels.asked, 0))
            if level < levels.asked:
                outputs.append(levels.output(level, row))
            else:
                outputs.append(levels.output_below(*self._rows[tree.shape.parents[node]], tree.host_tokens[node]))
        return outputs

    def bookmark(self) -> tuple[int, list[Tensor]]:
        """Return the state between two rounds, for :meth:`back` after provisional text."""
        return self._committed, list(self._waiting)

    def back(self, bookmark: tuple[int, list[Tensor]]) -> None:
        """Restore a state; later inputs overwrite the cache entries after it."""
        self._committed, self._waiting = bookmark[0], list(bookmark[1])
        self._end_round()

    def calls(self) -> int:
        return super().calls() + (0 if self._levels is None else self._levels.take_calls())

    @torch.inference_mode()
    def levels(self, context: Context) -> FeatureLevels | None:
        """Return this round's levels, from the root down.

        None if the context is full, or if no token has a feature yet (a prompt of one token).
        """
        deepest = 1 + self._context_length - context.position
        if isinstance(self._levels, EagerLevels):
            if (root := self._after_root(context)) is None:
                return None
            self._levels.take(root, self._committed, deepest)
            return self._levels
        if not self._knows(context) or context.position <= self._committed:
            return None
        levels: Any = self._room(context.position)
        if context.position - self._committed > TOGETHER:
            self._commit(context.ids, context.position - TOGETHER)
        start, until = self._committed, context.position
        count, features = until - start, self._waiting[0] if len(self._waiting) == 1 else torch.cat(self._waiting)
        own, rest = (features, []) if len(features) == count else (features[:count], [features[count:]])
        levels.take(self._words(context.ids, start, until), own, start, deepest)
        self._committed, self._waiting = until, rest
        return levels

    def _knows(self, context: Context) -> bool:
        """Whether every token before the root has a feature and fits the context."""
        return 0 < context.position <= min(self._context_length, self._committed + sum(map(len, self._waiting)))

    def placed(self, rows: Mapping[int, tuple[int, int]]) -> None:
        """Set the level and row of each node of the finished tree, (0, 0) for the root."""
        self._rows = rows

    def _after_root(self, context: Context) -> Tensor | None:
        """Return the output [1, hidden] after the root, once the newly committed inputs are in the cache."""
        if self._root is None and self._knows(context):
            self._root = self._commit(context.ids, context.position)
        return self._root

    def _commit(self, ids: Sequence[int], until: int) -> Tensor:
        """Run the inputs from ``_committed`` up to ``until``. Returns the last output [1, hidden]."""
        features, levels, before = torch.cat(self._waiting), self._room(until), self._committed
        device, last = features.device, features[:0]
        for first, end in chunks(until - before, PIECE):
            start, self._committed = before + first, before + end
            places = torch.arange(start, self._committed, device=device)
            mask = None if len(places) == 1 else torch.arange(self._committed, device=device)[None] <= places[:, None]
            tokens = to_device(self._words(ids, start, self._committed), device)
            more = self._visual_inputs(tokens, start + 1)
            last = self.network(tokens, features[first:end], self._places(places), levels.cache, start, mask, **more)[-1:]
            self._calls += 1
        self._waiting = [features[until - before :]]
        return last

    def _true(self, features: Tensor) -> Tensor:
        """Return the network's features from the target's states [row, tap * hidden]."""
        return self.network.fuse(features)

    def _places(self, places: Tensor) -> Tensor:
        """Return the positions [row] of rows, by default their indices in the cache."""
        return places

    def _words(self, ids: Sequence[int], start: int, until: int) -> Sequence[int]:
        """Return the tokens of the inputs from ``start`` up to ``until``, each paired with the feature before it."""
        return list(ids[start + 1 : until + 1])

    def _visual_inputs(self, tokens: Tensor, first: int) -> dict[str, Tensor]:
        """Return further arguments of the network for committed tokens from index ``first`` on.

        For example ``embedded`` [row, hidden] for image tokens.
        """
        return {}
