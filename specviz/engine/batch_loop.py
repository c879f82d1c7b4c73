"""Batched decoding loop: each round every row drafts, one pass scores all trees, then every row judges and commits.

A row uses the same :class:`~specviz.engine.run_state.RunState` as a run with its own session, and its text equals that run's:
its draws depend on its own seed and positions, and no row attends to another's keys.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specviz.engine.batch_cache import RowCache
from specviz.engine.clock import Stopwatch, Untimed
from specviz.engine.interfaces import TargetPass
from specviz.engine.run_state import RunState
from specviz.engine.stop import Interrupted
from specviz.engine.tree import DraftTree
from specviz.errors import BadInput
from specviz.trace.notes.models import BatchCacheNote, BatchRowCache
from specviz.trace.schema import Step


class Batch(Protocol):
    """The rows' shared handle on the target."""

    cache: RowCache

    def prefill(self, row: int, ids: Sequence[int]) -> TargetPass:
        """Prefill an empty row with ``ids``, as :meth:`RunCache.prefill`."""

    def score(self, trees: Sequence[DraftTree]) -> list[TargetPass]:
        """Score one tree per row in one pass."""


@dataclass
class RowView:
    """A run's handle on its row. ``row`` changes when earlier rows leave."""

    batch: Batch
    row: int

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        return self.batch.prefill(self.row, ids)

    def keep(self, path: Sequence[int]) -> None:
        self.batch.cache.keep(self.row, path)


class BatchRow(RunState):
    """One run of the batch. ``number`` is its fixed index among the requested runs."""

    number: int
    session: RowView

    @classmethod
    def of(cls, alone: RunState) -> BatchRow:
        """Turn a run built for its own session into a row, which updates the run's ``outcome``."""
        settings = (alone.prompt, alone.warp, alone.noise, alone.budget, alone.recorder, alone.cancel)
        return cls(alone.target, alone.composition, *settings, outcome=alone.outcome)


class BatchDecoding:
    """Decodes ``rows`` on one batch, compacting its cache every ``every`` rounds (0: never).

    Iterate :meth:`rounds`; each row's ``outcome`` holds its result.
    """

    def __init__(self, rows: Sequence[BatchRow], batch: Batch, every: int = 8) -> None:
        if every < 0:
            raise BadInput(f"The cache cannot be compacted every {every} rounds; give 0 (never) or more.")
        if not rows or len(rows) != len(batch.cache):
            raise BadInput(f"{len(rows)} runs cannot share a batch of {len(batch.cache)} rows; give each run its row.")
        for row in rows:
            if row.composition.opener is not None:
                raise BadInput(row.composition.opener.unshared)
        self.batch = batch
        self.every = every
        self.running = list(rows)
        self._round = 0
        self._recording_ns = 0

    def rounds(self) -> Generator[list[tuple[int, Step]], None, None]:
        """Yield each round's steps of all running rows, each with its row's number."""
        try:
            for number, row in enumerate(self.running):
                row.number, row.session = number, RowView(self.batch, number)
                row.prefill(row.session)
            while self.running:
                yield self._play()
                self._release([row for row in self.running if row.cancel.is_set()], "cancelled")
        except Interrupted:
            return  # raised while a drafter read a row's prompt: all rows are cancelled below
        except Exception as error:  # a fault in one row or in the shared pass ends all rows; the steps so far survive
            for row in self.running:
                row.note_fault(error)
                row.composition.controller.close()
            self.running = []
        finally:
            self._release(list(self.running), "cancelled")

    def _play(self) -> list[tuple[int, Step]]:
        device = self.batch.cache.device
        rows, clock = self.running, Stopwatch(device, Untimed(device))
        clock.start(self._recording_ns)
        contexts = [row.context(clock.mark) for row in rows]
        drafts = [row.composition.controller.draft(context) for row, context in zip(rows, contexts, strict=True)]
        trees = [draft.tree for draft in drafts]
        clock.mark("draft")
        scored = self.batch.score(trees)
        clock.mark("verify")
        settled = [
            row.commit_round(row.session, context, draft, target_pass, clock)
            for row, context, draft, target_pass in zip(rows, contexts, drafts, scored, strict=True)
        ]
        cache_note = None
        cache = self.batch.cache
        if any(row.recorder.record_notes for row in rows):  # the cache after this round, before any sweep
            layout = [BatchRowCache(row.number, cache.runs(place), cache.holes(place)) for place, row in enumerate(self.running)]
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
            if cache_note and row.recorder.record_notes:
                notes = (*finished.draft.notes, cache_note.replace(row=row.number).to_note())
                finished = replace(finished, draft=replace(finished.draft, notes=notes))
            step = row.recorder.push(finished, outcome.cut, clock, padded)  # the round's times are every row's
            assert step is not None, "a row's steps are never deferred"
            steps.append((row.number, step))
        self._recording_ns = time.perf_counter_ns() - started
        for stop in {outcome.stop for outcome in settled if outcome.stop}:
            self._release([row for row, outcome in zip(rows, settled, strict=True) if outcome.stop == stop], stop)
        return steps

    def _release(self, leaving: Sequence[BatchRow], reason: str) -> None:
        """End these rows and remove them from the batch."""
        if not leaving:
            return
        left = {row.number for row in leaving}
        staying = [place for place, row in enumerate(self.running) if row.number not in left]
        self.running = [self.running[place] for place in staying]
        for row in leaving:
            row.outcome.reason = reason
            row.composition.controller.close()
        if staying:
            self.batch.cache.select(staying)
        for place, row in enumerate(self.running):
            row.session.row = place
