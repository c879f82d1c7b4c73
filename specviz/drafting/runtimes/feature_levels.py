"""Levels of a feature drafter's round on the device; the host does not know the tokens.

The rows of a level are children in the beam; ``parents`` are rows of the level above. *Eager*: keys and values are a view of the
cache's valid columns. *Fixed*, for CUDA graphs: shapes and addresses are the same in each round. Attention covers the whole cache
under a mask, positions are computed on the device, and padding rows write after the valid columns.

Axis names: ``row``, ``hidden``, ``support``, ``column`` (of the cache), ``drafted`` (columns after the committed ones).
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.levels import Levels, Result
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.captured import captured
from specviz.engine.interfaces import Context, TargetPass
from specviz.engine.tiers import bucket, padded_width
from specviz.engine.to_device import copy_into

ROOM = 256
"""Number of columns in a fixed cache after the committed columns, for drafted rows and padding."""
FIRST_COLUMNS = 512
"""Minimum initial number of columns of a cache."""
PIECE = 512
"""Number of prompt tokens per forward; the mask has this number of rows, each as long as the prompt."""
TOGETHER = 32
"""Maximum number of committed inputs in a round's first level of fixed shape; earlier inputs run in forwards before it."""
LEAST = 8
"""Minimum number of rows for a round's inputs, enough for most rounds."""
Here = TypeVar("Here")
"""State of a level that the next level reads."""
Drafted = TypeVar("Drafted", bound=Levels)


@dataclass(frozen=True)
class _Level:
    """State of a level that the next level reads.

    ``outputs``: [row, hidden]. ``seen`` [row, drafted]: drafted columns that the rows attend to. ``committed``: number of
    committed inputs, [1] in levels of fixed shape. ``drafted``: number of drafted columns so far. ``rows``: tokens and parents.
    """

    outputs: Tensor
    seen: Tensor
    committed: Any
    drafted: int
    depth: int
    rows: tuple[Tensor, Tensor] | None = None


class CapturedLevels(Levels, Generic[Here]):
    """Levels whose steps are captured on CUDA and replayed in later rounds. A step sets ``_here``, the state for later levels."""

    cache: Any
    columns = 1 << 30
    """Number of columns of the cache; by default unlimited, for levels without a cache or with a session's."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.captures = device, device.type == "cuda"
        self._given: dict[Hashable, Tensor] = {}
        self._captured: dict[Hashable, tuple[Callable[[], None], Any, Here]] = {}
        self._shape: Hashable = 0
        """Shape of the round's inputs."""
        self.trail: list[Here] = []
        self._here: Here | None = None
        self.calls = 0
        """Number of forwards since :meth:`take_calls`."""

    def hold(self, network: Any, columns: int) -> None:
        """Prepare for steps of fixed shape that read this many columns of the cache and the network's rotary table."""
        self.cache.clear()
        network.reach(columns + ROOM)
        self._held = network.rotary  # captured steps read this table even if the network replaces its own
        self._column = torch.arange(columns, device=self._device)

    @property
    def asked(self) -> int:
        """Number of levels so far."""
        return len(self.trail)

    @property
    def steps(self) -> int:
        """Number of captured steps."""
        return len(self._captured)

    def take_calls(self) -> int:
        """Return the number of forwards since the last call."""
        made, self.calls = self.calls, 0
        return made

    def step(self, key: Hashable, work: Callable[[], Result]) -> Result:
        """Run ``work``, which computes a level; on CUDA, replay its graph.

        ``key``: distinguishes this work from other work after the same levels.
        """
        full, self.calls = (self._shape, self.asked, key), self.calls + 1
        if not self.captures:
            result = work()
            assert self._here is not None
            self.trail.append(self._here)
            return result
        if full not in self._captured:
            replay, result = captured(work, self._device)
            assert self._here is not None
            self._captured[full] = replay, result, self._here
        replay, result, level = self._captured[full]
        self.trail.append(level)
        replay()
        return result

    def ask(self, tokens: Tensor | None = None, parents: Tensor | None = None) -> Tensor:
        if tokens is None or parents is None:
            return self.step("ask", self.first)
        rows = self.given(("ask", self.asked), torch.stack((tokens, parents)).to(self._device))
        return self.step(("ask", self.asked, len(tokens)), partial(self.below, *rows))

    def given(self, name: Hashable, values: Tensor) -> Tensor:
        """Return ``values`` at the fixed address for this name and shape."""
        place = (name, values.shape)
        if place not in self._given:
            self._given[place] = torch.empty_like(values)
        return self._given[place].copy_(values)

    def padded(self, name: str, values: Tensor, rows: int) -> Tensor:
        """Return ``values`` [row, ...], padded to ``rows``, at the fixed address for this name and number of rows."""
        if (name, rows) not in self._given:
            self._given[name, rows] = values.new_zeros(rows, *values.shape[1:])
        self._given[name, rows][: len(values)] = values
        return self._given[name, rows]

    def numbers(self, values: Sequence[int]) -> Tensor:
        """Return ``values`` as int64 at the fixed address for this count of numbers."""
        place = ("numbers", len(values))
        if place not in self._given:
            self._given[place] = torch.zeros(len(values), dtype=torch.long, device=self._device)
        copy_into(self._given[place], values)
        return self._given[place]


class FeatureLevels(CapturedLevels[_Level]):
    """Cache and rounds of one run of a feature drafter, level by level."""

    positions: Callable[[Tensor], Tensor] = staticmethod(lambda places: places)
    """Function from indices of rows in the cache [row] to positions."""
    own: Callable[[Tensor, int], Tensor] = staticmethod(lambda outputs, depth: outputs)
    """Function from the outputs [row, hidden] of drafted nodes' parents, and the depth, to the nodes' features."""
    beside: Mapping[str, Tensor] = {}
    """Further arguments of the network for drafted tokens."""

    def __init__(self, runtime: Any, columns: int) -> None:
        super().__init__(runtime.embedding.device)
        self.columns, self.cache, self._runtime = columns, runtime.open(columns), runtime

    @property
    def rows(self) -> list[tuple[Tensor, Tensor]]:
        """Tokens [row] and parents [row] of each level below the root's; valid until the next round."""
        return [level.rows for level in self.trail if level.rows]

    def output(self, level: int, row: int) -> Tensor:
        """Return the network's output [1, hidden] after row ``row`` of level ``level``; valid until the next round.

        Level 0 is the root's.
        """
        return self.trail[level].outputs[row : row + 1]

    def output_below(self, level: int, row: int, token: int) -> Tensor:
        """Run a token below this row that no level contains, as the round's last forward. Returns the output [1, hidden]."""
        below = self.numbers([token, row])
        # The step reads this round's levels at their addresses, which differ between kinds of trees.
        key = ("below", id(self.trail[level]), id(self.trail[-1]))
        self.step(key, partial(self.below, below[:1], below[1:], level))
        return self.output(-1, 0)

    def below(self, tokens: Tensor, parents: Tensor, level: int = -1) -> Tensor:
        """Return raw logits [row, support] after ``tokens`` [row].

        ``parents`` [row] are rows of ``level``, by default the last level.
        """
        above, drafted, rows = self.trail[level], self.trail[-1].drafted, len(tokens)
        depth, seen = above.depth + 1, above.seen[parents]
        seen = F.pad(seen, (0, max(0, drafted + rows - seen.shape[1])))
        seen.diagonal(drafted)[:rows].fill_(True)
        # The drafted columns follow the committed ones; a row attends to its ancestors and itself among them.
        places, start, mask = self._places(above.committed, drafted, depth, seen)
        features = self.own(above.outputs[parents], depth)
        outputs = self._runtime(tokens, features, self.positions(places), self.cache, start, mask, **self.beside)
        self._here = _Level(outputs, seen, above.committed, drafted + rows, depth, (tokens, parents))
        return self._runtime.logits(outputs)

    @abstractmethod
    def _places(self, committed: Any, drafted: int, depth: int, seen: Tensor) -> tuple[Tensor, int | Tensor, Tensor]:
        """Return the indices [row] of rows at this depth, the columns to write to, and the mask over all columns.

        ``seen`` [row, drafted]: mask over the drafted columns, those of the rows included.
        """


class EagerLevels(FeatureLevels):
    """Levels with unpadded rows."""

    def __init__(self, runtime: Any, columns: int) -> None:
        super().__init__(runtime, columns)
        self.captures = False

    def take(self, root: Tensor, committed: int, deepest: int) -> None:
        """Set this round's output after the root, ``root`` [1, hidden], and the number of committed inputs."""
        self.trail, self.deepest = [], deepest
        self._root = _Level(root, torch.ones(1, 0, dtype=torch.bool, device=self._device), committed, 0, 0)

    def first(self) -> Tensor:
        """Return raw logits [1, support] after the root."""
        self.calls -= 1  # the root's forward, which the drafter has counted
        self._here = self._root
        return self._runtime.logits(self._root.outputs)

    def _places(self, committed: int, drafted: int, depth: int, seen: Tensor) -> tuple[Tensor, int | Tensor, Tensor]:
        start = committed + drafted
        self.cache.reserve(start + len(seen))
        places = torch.full((len(seen),), committed + depth - 1, device=self._device)
        return places, start, F.pad(seen, (committed, 0), value=True)


class FixedLevels(FeatureLevels):
    """Tensors of one run at fixed addresses, the cache included, and the steps captured over them."""

    def __init__(self, runtime: Any, columns: int) -> None:
        super().__init__(runtime, columns)
        self.count: int
        """Number of committed inputs of the round."""
        self.hold(runtime, columns)
        self._inputs: Tensor
        """Tokens of the padded rows, the number of committed inputs before them, and the number of valid rows."""
        self._features: Tensor

    def take(self, tokens: Sequence[int], features: Tensor, start: int, deepest: int) -> None:
        """Set this round's committed inputs, the root last, which run with the first level.

        For a network with several rows per input, each input has one token per row.
        """
        count = self.count = len(features)
        rows, each = max(LEAST, padded_width(count)), len(tokens) // count
        self._shape, self.trail, self.deepest = rows, [], deepest
        self._inputs = self.numbers([*tokens, *[0] * (each * (rows - count)), start, count])
        self._features = self.padded("features", features, rows)

    def again(self, runtime: Any) -> None:
        """Run this round's levels again with another runtime over the same cache."""
        own, self._runtime, trail, self.trail = self._runtime, runtime, self.trail, []
        for level in trail:
            self.below(*level.rows) if level.rows else self.first()
            self.trail.append(level)
        self._runtime = own

    def first(self) -> Tensor:
        """Return raw logits [1, support] after the root; runs the round's committed inputs."""
        start, count = self._inputs[-2:].split(1)
        places = start + self._column[: len(self._features)]
        mask = self._column <= places[:, None]
        outputs = self._runtime(self._inputs[:-2], self._features, self.positions(places), self.cache, places, mask)
        root = outputs.index_select(0, count - 1)
        seen = torch.zeros(1, ROOM, dtype=torch.bool, device=self._device)
        self._here = _Level(root, seen, start + count, 0, 0)
        return self._runtime.logits(root)

    def _places(self, committed: Tensor, drafted: int, depth: int, seen: Tensor) -> tuple[Tensor, int | Tensor, Tensor]:
        mask = (self._column < committed).repeat(len(seen), 1)
        mask.scatter_(1, (committed + self._column[:ROOM]).expand(len(seen), -1), seen)
        return (committed + (depth - 1)).expand(len(seen)), committed + (drafted + self._column[: len(seen)]), mask


class LevelsDrafter(NullDrafter, Generic[Drafted]):
    """Drafter of one run whose levels hold the cache: of the class ``eager``, or ``captured`` at fixed shapes and addresses.

    ``fixed``: whether levels have fixed shapes and addresses for CUDA graphs; by default only on CUDA.
    """

    eager: Callable[[Any, int], Drafted]
    captured: Callable[[Any, int], Drafted]
    taps: tuple[int, ...] = ()
    """The target's hidden states that the network reads."""

    def __init__(self, network: Any, fixed: bool | None = None) -> None:
        self.network = network
        self.support: Tensor | None = network.draft_ids
        self._fixed = network.embedding.device.type == "cuda" if fixed is None else fixed
        self._restart()

    def _restart(self) -> None:
        """Forget the last run."""
        self._levels: Drafted | None = None
        self._committed = self._calls = 0

    def _acquired(self, columns: int) -> Drafted:
        """Return levels with a cache of this many columns."""
        return acquire(self.network, columns, self.captured) if self._fixed else self.eager(self.network, columns)

    def _open(self, context: Context) -> None:
        """Begin a run with a cache for twice the text's length."""
        self.close()
        self._levels = self._acquired(max(FIRST_COLUMNS, 2 * len(context.ids)))

    def _room(self, columns: int) -> Drafted:
        """Return the levels, with room for this many committed columns."""
        levels: Any = self._levels
        if self._fixed and columns + ROOM > levels.columns:
            smaller, levels = levels, self._acquired(2 * columns)
            levels.cache.copy(smaller.cache, self._committed)
            self._levels = levels
        levels.cache.reserve(columns + ROOM)
        self.network.reach(columns + ROOM)
        return levels

    def _states(self, passed: TargetPass, rows: Tensor | None = None) -> Tensor:
        """Return a target pass's hidden states [row, tap * hidden], at these rows or at all."""
        return torch.cat([passed.hidden[tap] if rows is None else passed.hidden[tap][rows] for tap in self.taps], dim=-1)

    def close(self) -> None:
        if self._fixed and self._levels is not None:
            release(self.network, self._levels)
        self._restart()

    def levels(self, context: Context) -> Drafted | None:
        """Return this round's levels, from the root down, or None if nothing can be drafted."""
        raise LookupError(f"{type(self).__name__} does not implement levels()")

    @torch.inference_mode()
    def marginals(self, context: Context) -> Tensor | None:
        """Return raw logits [depth, support] of the root's block, or None if nothing can be drafted."""
        levels: Any = self.levels(context)
        return None if levels is None else levels.marginals()


MOST_STEPS = 128
"""Maximum number of captured steps with which a finished run's tensors are reused; temperatures and tree shapes add steps."""
_SPARE = "_spare_levels"
"""Attribute of a runtime that holds its spare levels; a dict keyed by runtime would keep runtimes alive."""
_LOCK = threading.Lock()


def acquire(runtime: Any, inputs: int, kind: Callable[[Any, int], Any] = FixedLevels) -> Any:
    """Return fixed tensors of this ``kind`` for this many committed inputs.

    The last run's tensors are reused if they are large enough and have few captured steps.
    """
    with _LOCK:
        spare = vars(runtime).pop(_SPARE, None)
    columns = bucket(inputs + ROOM)
    fits = spare is not None and spare.columns >= columns and spare.steps <= MOST_STEPS
    return spare if fits else kind(runtime, columns)


def release(runtime: Any, levels: Any) -> None:
    """Keep a finished run's tensors for the next run."""
    with _LOCK:
        setattr(runtime, _SPARE, levels)
