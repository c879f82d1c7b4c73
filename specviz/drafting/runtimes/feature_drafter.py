"""Feature drafter (EAGLE): drafts a tree level by level from the target's hidden states.

Committed tokens enter the cache with the target's features. Drafted tokens enter with the network's own features and are dropped
after the round (Li et al., EAGLE, arXiv 2401.15077). With the root at position P, its children's distribution comes from the
feature of token P - 1 and the root's embedding. Below a child, the distribution comes from the parent's output and the child's
embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from specviz.drafting.networks.feature_head import FeatureRuntime
from specviz.drafting.runtimes.feature_levels import (
    FIRST_COLUMNS,
    PIECE,
    ROOM,
    TOGETHER,
    EagerLevels,
    FixedLevels,
    acquire,
    release,
)  # fmt: skip
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Round, TargetPass
from specviz.engine.stop import chunks
from specviz.engine.to_device import to_device


class Stepper(Protocol):
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
        embedded: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return outputs [row, hidden]; keys and values are written to the cache from column ``start`` on."""


class FeatureDrafter(NullDrafter):
    """Drafter of one run; ``stepper`` is shared between runs.

    ``context_length``: maximum context in tokens, None for the target's limit. ``fixed``: whether levels have fixed shapes and
    addresses for CUDA graphs; by default only on CUDA.
    """

    def __init__(self, stepper: Stepper, context_length: int | None = None, fixed: bool | None = None) -> None:
        self.support: Tensor | None = stepper.draft_ids
        self.taps: tuple[int, ...] = stepper.config.taps
        self._stepper = stepper
        self._context_length = 1 << 40 if context_length is None else context_length
        self._cache: Any = None
        self._wants_fixed = fixed
        self._fixed: FixedLevels | None = None
        self._restart()

    def _restart(self) -> None:
        self._committed = 0
        """Number of inputs in the cache with the target's features."""
        self._waiting: list[Tensor] = []
        """Features [row, hidden] of the tokens from ``_committed`` on, from the target's states."""
        self._end_round()

    def _end_round(self) -> None:
        self._root: Tensor | None = None
        """The network's output [1, hidden] after the root."""
        self._levels: EagerLevels | FixedLevels | None = None
        self._rows: Mapping[int, tuple[int, int]] = {}
        """Level and row of each node of the finished tree."""

    @torch.inference_mode()
    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._restart()
        self._open_cache(context)
        self._opened(self._cache)
        if prefill is not None:
            self._waiting.append(self._features(prefill, None))
            self._commit(context.ids, context.position - 1)
        self._calls = 0  # the prompt's forwards count as prefill

    def _open_cache(self, context: Context) -> None:
        columns = max(FIRST_COLUMNS, 2 * len(context.ids))
        fixed = context.device.type == "cuda" if self._wants_fixed is None else self._wants_fixed
        if fixed and self._allows_fixed_shapes():
            self._acquire(columns)
        else:
            self._cache = self._stepper.open(columns)

    def _acquire(self, columns: int) -> None:
        """Acquire levels of fixed shape with a cache of this many columns."""
        self._fixed = acquire(self._stepper, columns)
        self._fixed.own = self._own_at(self._fixed)
        self._cache = self._fixed.cache

    def _allows_fixed_shapes(self) -> bool:
        """Whether levels may have fixed shapes and addresses; by default only in this class, not in subclasses."""
        return type(self) is FeatureDrafter and self._captures

    @property
    def _captures(self) -> bool:
        """Whether a forward needs no host synchronisation, so that it can be captured."""
        return isinstance(self._stepper, FeatureRuntime) and self._stepper.config.experts is None

    def _room(self, columns: int) -> None:
        """Extend the cache to this many columns."""
        if self._fixed is not None and columns + ROOM > self._fixed.columns:
            smaller = self._fixed
            self._acquire(2 * columns)
            self._fixed.cache.copy(smaller.cache, self._committed)
        self._cache.reserve(columns)

    @torch.inference_mode()
    def observe(self, finished: Round) -> None:
        path = (0, *finished.verdict.path)[: len(finished.emitted)]
        if finished.target.hidden:
            rows = to_device(list(path), finished.context.device)
            self._waiting.append(self._features(finished.target, rows))
        else:
            self._waiting += self._drafted(finished, path)
        self._end_round()

    def _drafted(self, finished: Round, path: Sequence[int]) -> list[Tensor]:
        """Return the network's outputs after the nodes of ``path``, for target passes without hidden states.

        If no level contained the last node of the path, it is run now.
        """
        levels, tree, outputs = self._levels, finished.draft.tree, list[Tensor]()
        if levels is None:
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

    def close(self) -> None:
        if self._fixed is not None:
            release(self._stepper, self._fixed)
        self._cache = self._fixed = None
        self._restart()

    def calls(self) -> int:
        return super().calls() + (0 if self._fixed is None else self._fixed.take_calls())

    @torch.inference_mode()
    def levels(self, context: Context) -> EagerLevels | FixedLevels | None:
        """Return this round's levels, from the root down.

        None if the context is full, or if no token has a feature yet (a prompt of one token).
        """
        deepest = 1 + self._context_length - context.position
        if self._fixed is None:
            root = self._after_root(context)
            if root is not None:
                self._levels = EagerLevels(partial(self.extend, context), self._stepper.logits, root, self._committed, deepest)
            return self._levels
        known = self._committed + sum(map(len, self._waiting))
        if not 0 < context.position <= min(self._context_length, known) or context.position <= self._committed:
            return None
        self._room(context.position)
        if context.position - self._committed > TOGETHER:
            self._commit(context.ids, context.position - TOGETHER)
        fixed, start, until = self._fixed, self._committed, context.position
        features = self._waiting[0] if len(self._waiting) == 1 else torch.cat(self._waiting)
        count = until - start
        own, rest = (features, []) if len(features) == count else (features[:count], [features[count:]])
        fixed.take(self._words(context.ids, start, until), own, start, deepest)
        self._committed, self._waiting = until, rest
        self._levels = fixed
        return fixed

    def placed(self, rows: Mapping[int, tuple[int, int]]) -> None:
        """Set the level and row of each node of the finished tree, (0, 0) for the root."""
        self._rows = rows

    def extend(self, context: Context, tokens: Tensor, features: Tensor, depth: int, start: int, mask: Tensor) -> Tensor:
        """Return outputs [row, hidden] after drafted ``tokens`` [row] of one depth, written to the cache from column ``start``
        on.

        ``features`` [row, hidden]: outputs of the tokens' parents.
        """
        rows = len(tokens)
        self._room(start + rows)
        self._stepper.reach(context.position + depth)
        places = torch.full((rows,), context.position - 1 + depth, device=tokens.device)
        own = self._own(features, depth)
        outputs = self._stepper(tokens, own, self._places(places), self._cache, start, mask, **self._beside_drafted())
        self._calls += 1
        return outputs

    def _after_root(self, context: Context) -> Tensor | None:
        """Return the output [1, hidden] after the root, once the newly committed inputs are in the cache."""
        known = self._committed + sum(map(len, self._waiting))
        if self._root is None and 0 < context.position <= min(self._context_length, known):
            self._root = self._commit(context.ids, context.position)
        return self._root

    def _commit(self, ids: Sequence[int], until: int) -> Tensor:
        """Run the inputs from ``_committed`` up to ``until``. Returns the last output [1, hidden]."""
        features = torch.cat(self._waiting)
        device, last = features.device, features[:0]
        done = 0
        self._room(until)
        self._stepper.reach(until)
        before = self._committed
        for piece_start, piece_end in chunks(until - before, PIECE):
            start, end = before + piece_start, before + piece_end
            rows = features[done : done + end - start]
            places = torch.arange(start, end, device=device)
            mask = None if end - start == 1 else torch.arange(end, device=device)[None] <= places[:, None]
            tokens = to_device(self._words(ids, start, end), device)
            more = self._beside(tokens, start + 1)
            last = self._stepper(tokens, rows, self._places(places), self._cache, start, mask, **more)[-1:]
            done, self._committed = done + end - start, end
            self._calls += 1
        self._waiting = [features[done:]]
        return last

    def _true(self, features: Tensor) -> Tensor:
        """Return the network's features from the target's states [row, tap * hidden]."""
        return self._stepper.fuse(features)

    def _own(self, outputs: Tensor, depth: int) -> Tensor:
        """Return the features [row, hidden] of drafted nodes at this depth, from their parents' outputs."""
        return outputs

    def _own_at(self, levels: FixedLevels) -> Callable[[Tensor, int], Tensor]:
        """Return :meth:`_own` as a function over tensors of ``levels``, which outlive this drafter."""
        return lambda outputs, depth: outputs

    def _opened(self, cache: Any) -> None:
        """Fill a fresh cache before the first row; by default, do nothing."""

    def _places(self, places: Tensor) -> Tensor:
        """Return the positions [row] of rows, by default their indices in the cache."""
        return places

    def _words(self, ids: Sequence[int], start: int, until: int) -> Sequence[int]:
        """Return the tokens of the inputs from ``start`` up to ``until``, each paired with the feature before it."""
        return list(ids[start + 1 : until + 1])

    def _beside(self, tokens: Tensor, first: int) -> dict[str, Tensor]:
        """Return further arguments of the network for committed tokens from index ``first`` on.

        For example ``embedded`` [row, hidden] for image tokens.
        """
        return {}

    def _beside_drafted(self) -> dict[str, Tensor]:
        """Return further arguments of the network for drafted tokens."""
        return {}

    def _features(self, passed: TargetPass, rows: Tensor | None) -> Tensor:
        """Return the network's features [row, hidden] from a target pass, for these rows or for all."""
        states = [passed.hidden[tap] if rows is None else passed.hidden[tap][rows] for tap in self.taps]
        return self._true(torch.cat(states, dim=-1))
