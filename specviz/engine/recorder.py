"""Recorder of judged rounds as trace steps.

On CUDA the numbers for the screen are gathered on the device and copied once, asynchronously, into pinned memory. The step is
built during the next pass. On a CPU it is built at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specviz.engine.clock import Stopwatch
from specviz.engine.interfaces import Round, TokenText
from specviz.engine.to_device import to_device
from specviz.errors import BadInput, ModelUnavailable
from specviz.trace.schema import (
    PRUNED,
    Bonus,
    Candidate,
    Node,
    Note,
    Step,
    TargetRow,
)

LEVELS = ("off", "path", "tree")
TOP = 3


@dataclass
class Pending:
    """Round whose step is not built yet.

    ``numbers``: the TOP log-probabilities [visited, TOP], their token ids, and log-probabilities of children [visited, child].
    Below level "tree", only the largest logit of each visited row.
    """

    round: Round
    cut: str | None
    clock: Stopwatch
    padded: int
    numbers: tuple[Tensor, ...]
    ready: torch.cuda.Event | None = None


@dataclass
class Recorder:
    """Recorder of a run's steps. ``level``: "off" records counts and times, "path" the accepted path too, "tree" everything.

    ``grid``: (rows, columns) of an image, whose cells are the output tokens in reading order. ``ends``: tokens that are emitted
    with empty text. ``deferred``: whether a step is built during the next round's pass, when its tokens join ``output_ids``.
    ``spent_ns``: time spent recording the last round; it counts as host time of the current round.
    """

    text: TokenText
    level: str = "tree"
    grid: tuple[int, int] | None = None
    ends: frozenset[int] = frozenset()
    output_ids: list[int] = field(default_factory=list)
    deferred: bool = False
    spent_ns: int = 0
    _waiting: Pending | None = None
    _step: Step | None = None
    _index: int = 0

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise BadInput(f"There is no recording level {self.level!r}; choose one of {', '.join(LEVELS)}.")

    @property
    def record_notes(self) -> bool:
        """Whether to record notes that are costly to compute."""
        return self.level == "tree"

    def push(self, finished: Round, cut: str | None, clock: Stopwatch, padded: int) -> Step | None:
        """Record a judged round. Returns its step, or None if ``deferred``."""
        started = time.perf_counter_ns()
        self._waiting = self._capture(finished, cut, clock, padded)
        self.spent_ns = time.perf_counter_ns() - started
        return None if self.deferred else self.pop()

    def make(self) -> None:
        """Build the step of the pending round, if any. Raises ModelUnavailable for infinite or NaN values."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        started = time.perf_counter_ns()
        self._step = self._finish(waiting)
        self.output_ids.extend(self._step.emitted)
        self.spent_ns += time.perf_counter_ns() - started

    def report_times(self, step: Step, learn: Callable[[Step], None] | None) -> None:
        """Pass a step's times to ``learn``; this counts as host time of the next round."""
        if learn is not None:
            started = time.perf_counter_ns()
            learn(step)
            self.spent_ns += time.perf_counter_ns() - started

    def pop(self) -> Step | None:
        """Return the step that is built but not yet taken, else the pending round's step, else None."""
        if self._step is None:
            self.make()
        step, self._step = self._step, None
        return step

    def _capture(self, finished: Round, cut: str | None, clock: Stopwatch, padded: int) -> Pending:
        """Copy the step's numbers off the device without synchronizing."""
        numbers = self._numbers(finished)
        pending = Pending(finished, cut, clock, padded, numbers)
        device = finished.context.device
        if device.type == "cuda":
            pinned = [torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for part in numbers]
            pending.numbers = tuple(host.copy_(part, non_blocking=True) for host, part in zip(pinned, numbers, strict=True))
            pending.ready = torch.cuda.Event()
            pending.ready.record(torch.cuda.current_stream(device))
        return pending

    def _numbers(self, finished: Round) -> tuple[Tensor, ...]:
        """Return the visited rows' top log-probabilities and ids, and log-probabilities of their children and the bonus token."""
        visited = finished.verdict.visited
        logits = finished.target.logits.index_select(0, to_device(visited, finished.target.logits.device))
        if self.level != "tree":
            return (logits.amax(-1).float(),)
        rows = finished.context.warp.log_probabilities(logits)
        best = rows.topk(min(TOP, rows.shape[-1]), dim=-1)
        tree, last = finished.draft.tree, finished.verdict.bonus or 0
        child_ids = [[*(tree.host_tokens[child] for child in tree.shape.children[node]), last] for node in visited]
        width = max(len(row) for row in child_ids)
        ids = to_device([row + [0] * (width - len(row)) for row in child_ids], rows.device)
        return best.values.float(), best.indices, rows.gather(-1, ids).float()

    def _finish(self, pending: Pending) -> Step:
        """Build the step, after waiting for a pending copy."""
        if pending.ready is not None:
            pending.ready.synchronize()
        finished, verdict = pending.round, pending.round.verdict
        _refuse_bad_numbers(pending)
        rows, p_of, bonus_p = self._read(pending)
        emitted, bonus = tuple(finished.emitted), None
        if verdict.bonus is not None and len(emitted) > len(verdict.path):
            end = verdict.visited[-1]
            parent = end if self.level == "tree" else len(verdict.path)
            cell = self._cell(finished, finished.draft.tree.shape.depths[end] + 1)
            bonus = Bonus(parent, verdict.bonus, self.text.of(verdict.bonus), bonus_p, verdict.source, cell)
        step = Step(
            index=self._index,
            position=finished.context.position,
            nodes=self._nodes(finished, p_of),
            path=verdict.path if self.level == "tree" else tuple(range(1, len(verdict.path) + 1)),
            bonus=bonus,
            emitted=emitted,
            pieces=written(self.text, self.output_ids, emitted, self.ends) if self.level != "off" else ("",) * len(emitted),
            rule=verdict.rule if len(finished.draft.tree) > 1 else "none",
            time=pending.clock.read(),
            cut=pending.cut,
            draft_calls=finished.draft.calls,
            verified=len(finished.draft.tree) - 1,
            padded=pending.padded,
            rows=rows,
            notes=self._notes(finished) if self.record_notes else (),
            passes=verdict.passes,
            certain=verdict.certain and len(finished.draft.tree) > 1,
        )
        self._index += 1
        return step

    def _read(self, pending: Pending) -> tuple[tuple[TargetRow, ...], dict[int, float], float | None]:
        """Return the target's rows, p of each judged node, and p of the bonus token, from the numbers on the host."""
        if self.level != "tree":
            return (), {}, None
        best, ids = pending.numbers[0].exp().tolist(), pending.numbers[1].tolist()
        child_p = pending.numbers[2].exp().tolist()
        verdict, children = pending.round.verdict, pending.round.draft.tree.shape.children
        rows: list[TargetRow] = []
        p_of: dict[int, float] = {}
        for place, node in enumerate(verdict.visited):
            top = tuple(Candidate(i, self.text.of(i), p) for i, p in zip(ids[place], best[place], strict=True) if p > 0)
            rows.append(TargetRow(node, top))
            p_of.update(zip(children[node], child_p[place], strict=False))
        end = verdict.visited[-1]
        return tuple(rows), p_of, child_p[-1][len(children[end])]

    def _nodes(self, finished: Round, p_of: Mapping[int, float]) -> tuple[Node, ...]:
        draft, verdict = finished.draft, finished.verdict
        tree = draft.tree
        if self.level == "tree":
            indices: Sequence[int] = range(len(tree))
            parents: Sequence[int] = tree.shape.parents
        else:
            indices = (0, *verdict.path)
            parents = range(-1, len(verdict.path))
        nodes = []
        for node, parent in zip(indices, parents, strict=True):
            token = verdict.replaced.get(node, tree.host_tokens[node])
            nodes.append(
                Node(
                    parent=parent,
                    token=token,
                    text=self.text.of(token),
                    q=draft.confidence[node] if node < len(draft.confidence) else None,
                    p=p_of.get(node) if node not in verdict.replaced else None,  # p of the drafted token, not of its replacement
                    status=verdict.statuses[node],
                    threshold=verdict.thresholds.get(node),
                    draw=verdict.draws.get(node),
                    grid=self._cell(finished, tree.shape.depths[node]),
                )
            )
        if self.level == "tree":
            depths = list(tree.shape.depths)
            for up, token, q in draft.pruned:
                depths.append(depths[up] + 1)
                cell = self._cell(finished, depths[-1])
                nodes.append(Node(up, token, self.text.of(token), q, None, PRUNED, grid=cell))
        return tuple(nodes)

    def _cell(self, finished: Round, depth: int) -> tuple[int, int] | None:
        """Row and column of the image cell of a node at this depth; None outside an image."""
        if self.grid is None:
            return None
        cell = finished.context.position + depth - finished.context.prompt_length
        rows, columns = self.grid
        return divmod(cell, columns) if 0 <= cell < rows * columns else None

    def _notes(self, finished: Round) -> tuple[Note, ...]:
        notes = (*finished.draft.notes, *finished.target.notes(), *finished.verdict.notes)
        return tuple(Note(note.type, self._texts(note.data)) for note in notes)

    def _texts(self, data: Any) -> Any:
        """Add the text of each token id in a note; drafters know only ids."""
        if isinstance(data, Mapping):
            entry = {key: self._texts(value) for key, value in data.items()}
            if "token" in data:
                entry["text"] = self.text.of(data["token"])
            if "tokens" in data:
                entry["texts"] = [self.text.of(token) for token in data["tokens"]]
            return entry
        if isinstance(data, list | tuple) and data and isinstance(data[0], Mapping):
            return [self._texts(value) for value in data]
        return data


def _refuse_bad_numbers(pending: Pending) -> None:
    """Raise ModelUnavailable if target rows, thresholds or the drafter's confidences are infinite or NaN.

    The largest logit of a row suffices: it is infinite or NaN if any logit is.
    """
    finished, verdict = pending.round, pending.round.verdict
    largest = pending.numbers[0].reshape(len(verdict.visited), -1)[:, 0]
    drafted = (*verdict.thresholds.values(), *(q for q in finished.draft.confidence if q is not None))
    whose = "" if all(map(math.isfinite, drafted)) else "drafter"
    if not bool(largest.isfinite().all()):
        whose = "target"
    if whose:
        raise ModelUnavailable(
            f"The {whose}'s output for token {finished.context.position + 2} of the text is infinite or NaN: the "
            "weights are damaged, or too large for the number format. Download the model again, or choose a wider format."
        )


def written(text: TokenText, ids: Sequence[int], more: Sequence[int], ends: frozenset[int]) -> tuple[str, ...]:
    """Return the text that each token of ``more`` adds after ``ids``, "" for ``ends``."""
    pieces = text.pieces(ids, more)
    return tuple("" if token in ends else piece for token, piece in zip(more, pieces, strict=True))
