"""Batched decoding loop. In each round every row drafts, one target pass scores all trees, and every row judges and commits.

Each row is a :class:`~specviz.engine.loop.RunState` and yields the text that it would yield alone. Random draws depend only
on the row's seed and positions, and rows do not attend to each other.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specviz.engine.batch_cache import RowCache
from specviz.engine.clock import Stopwatch, Untimed
from specviz.engine.interfaces import TargetPass
from specviz.engine.loop import RunState
from specviz.engine.stop import Interrupted
from specviz.engine.tree import DraftTree
from specviz.errors import BadInput
from specviz.trace.notes.models import BatchCacheNote, BatchRowCache
from specviz.trace.schema import Step


class Batch(Protocol):
    """Interface of a target to a batch: prefill rows, and score one tree per row."""

    cache: RowCache

    def prefill(self, row: int, ids: Sequence[int]) -> TargetPass:
        """Prefill an empty row with ``ids``, as :meth:`RunCache.prefill` does."""

    def score(self, trees: Sequence[DraftTree]) -> list[TargetPass]:
        """Score one tree per row in one pass."""


@dataclass(eq=False)
class BatchRow:
    """One run of the batch. ``number``: fixed index among the requested runs. ``row``: current index in the batch."""

    run: RunState
    batch: Batch
    number: int
    row: int

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        return self.batch.prefill(self.row, ids)

    def keep(self, path: Sequence[int]) -> None:
        self.batch.cache.keep(self.row, path)


class BatchDecoding:
    """Decoding of ``runs`` on one batch, whose cache is compacted every ``every`` rounds (0: never).

    Iterate :meth:`rounds`; the results are in each run's ``outcome``.
    """

    def __init__(self, runs: Sequence[RunState], batch: Batch, every: int = 8) -> None:
        if every < 0:
            raise BadInput(f"The cache cannot be compacted every {every} rounds; give 0 (never) or more.")
        if len(runs) != len(batch.cache):
            raise BadInput(f"{len(runs)} runs cannot share a batch of {len(batch.cache)} rows; give each run its row.")
        for run in runs:
            if run.composition.opener:
                raise BadInput(run.composition.opener.unshared)
        self.batch = batch
        self.every = every
        self.running = [BatchRow(run, batch, number, number) for number, run in enumerate(runs)]
        self._round = 0
        self._recording_ns = 0

    def rounds(self) -> Generator[list[tuple[int, Step]], None, None]:
        """Yield, for each round, the number and the step of every running row."""
        try:
            for row in self.running:
                row.run.prefill(row)
            untimed = Untimed(self.batch.cache.device)
            for row in self.running:
                row.run.untimed = untimed
            while self.running:
                with untimed.here():
                    played = self._play(untimed)
                yield played
                self._release([row for row in self.running if row.run.cancel.is_set()])
        except Interrupted:
            return  # raised while a drafter read a prompt; the rows are cancelled below
        except Exception as error:  # a fault in one row or in the shared pass ends all rows, but their steps survive
            for row in self.running:
                row.run.note_fault(error)
                row.run.composition.controller.close()
            self.running = []
        finally:
            self._release(list(self.running))

    def _play(self, untimed: Untimed) -> list[tuple[int, Step]]:
        rows, clock = self.running, Stopwatch(self.batch.cache.device, untimed)
        clock.start(self._recording_ns)
        contexts = [row.run.context(clock.mark) for row in rows]
        drafts = [row.run.composition.controller.draft(context) for row, context in zip(rows, contexts, strict=True)]
        trees = [draft.tree for draft in drafts]
        clock.mark("draft")
        scored = self.batch.score(trees)
        clock.mark("verify")
        settled = [
            row.run.commit_round(row, context, draft, target_pass, clock)
            for row, context, draft, target_pass in zip(rows, contexts, drafts, scored, strict=True)
        ]
        cache_note = None
        cache = self.batch.cache
        if any(row.run.recorder.record_notes for row in rows):  # the cache before any compaction
            layout = [BatchRowCache(row.number, cache.runs(row.row), cache.holes(row.row)) for row in rows]
            cache_note = BatchCacheNote(row=0, round=self._round, every=self.every, swept=False, rows=layout)
        self._round += 1
        if self.every and self._round % self.every == 0:
            cache.compact()
            cache_note = cache_note.replace(swept=True) if cache_note else None
        clock.mark("commit")
        clock.stop()
        padded, steps = max(map(len, trees)), []
        started = time.perf_counter_ns()
        for row, outcome in zip(rows, settled, strict=True):
            finished = outcome.finished
            if cache_note and row.run.recorder.record_notes:
                notes = (*finished.draft.notes, cache_note.replace(row=row.number).to_note())
                finished = replace(finished, draft=replace(finished.draft, notes=notes))
            step = row.run.recorder.push(finished, outcome.cut, clock, padded)  # the rows share the round's times
            assert step, "a row's steps are never deferred"
            steps.append((row.number, step))
        self._recording_ns = time.perf_counter_ns() - started
        for stop in {outcome.stop for outcome in settled if outcome.stop}:
            self._release([row for row, outcome in zip(rows, settled, strict=True) if outcome.stop == stop], stop)
        return steps

    def _release(self, leaving: Sequence[BatchRow], reason: str = "") -> None:
        """End rows, for ``reason`` or because they were stopped."""
        if not leaving:
            return
        self.running = [row for row in self.running if row not in leaving]
        for row in leaving:
            if reason:
                row.run.outcome.reason = reason
            else:
                row.run.stopped()
            row.run.composition.controller.close()
        if self.running:
            self.batch.cache.select([row.row for row in self.running])
        for place, row in enumerate(self.running):
            row.row = place
