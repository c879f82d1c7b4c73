"""The batch suite: several prompts decoded in one batch, against one run after another."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Sequence
from functools import partial

from specviz.bench.kit.measure import Bencher, median_ratio, range_text
from specviz.bench.kit.prompts import GROUNDED, SUMMARY
from specviz.bench.kit.report import Report, Row
from specviz.engine.batch_cache import shared
from specviz.engine.batch_loop import BatchDecoding, BatchRow
from specviz.engine.interfaces import Composition
from specviz.errors import BadInput
from specviz.request import Memory
from specviz.runner import Prepared
from specviz.targets.text_rows import TextRows
from specviz.trace.schema import Step, Trace

EVERY = 8
"""Rounds between two sweeps of a batch's cache, unless somebody says otherwise."""


def assemble(
    ready: Sequence[Prepared], every: int = EVERY, record: str | None = None, cancel: threading.Event | None = None
) -> BatchDecoding:
    """The prepared requests as one batch on the first one's target, each with its own method, seed and budget.

    ``record`` overrules how much of a run is recorded. A tree that is sized by what a pass costs is sized by its row's
    share of a pass over all rows. ``cancel`` ends all of them after the round. Raises BadInput when the requests name
    different targets, or one whose rows cannot share a cache.
    """
    if len({(request.target.name, request.target.dtype, request.target.device) for request in ready}) != 1:
        raise BadInput("The runs of a batch share one target; ask for the same target in each of them.")
    if ready[0].modality != "text":
        raise BadInput(f"{ready[0].loaded.name} is asked about pictures, which rows cannot share: run the prompts one by one.")
    target, cancel = ready[0].target, cancel or threading.Event()
    rows, compositions = [], []
    for request in ready:
        composition = _composition(request, len(ready))
        alone = request.decoding(composition, request.request.seed, record or request.request.record, cancel)
        rows.append(BatchRow.of(alone))
        compositions.append(composition)
    taps = {tap for composition in compositions for tap in composition.hidden_state_layers}
    capacities = [min(target.context_length, len(row.prompt) + row.budget) for row in rows]
    return BatchDecoding(rows, TextRows(target, capacities, sorted(taps)), every)


def _composition(ready: Prepared, rows: int) -> Composition:
    """The method of one row, told what a pass costs it among others."""
    return ready.compose(cost_curve=lambda: shared(ready.parts.cost_curve(), rows))


def traces(ready: Sequence[Prepared], every: int = EVERY, cancel: threading.Event | None = None) -> list[Trace]:
    """Decode the requests in step: a trace for each, whose steps tell of the shared cache as well.

    What was written until ``cancel`` was set, or an interrupt came, is kept: those traces end as cancelled.
    """
    batch = assemble(ready, every, cancel=cancel)
    rows = list(batch.running)
    records = [request.run_record(row.composition) for request, row in zip(ready, rows, strict=True)]
    steps: list[list[Step]] = [[] for _ in rows]
    rounds = batch.rounds()
    try:
        for round_steps in rounds:
            for number, step in round_steps:
                steps[number].append(step)
    except KeyboardInterrupt:  # in the middle of a round: its steps are nobody's
        rounds.close()
    for row, row_steps in zip(rows, steps, strict=True):
        row.outcome.output_ids = [token for step in row_steps for token in step.emitted]
    return [
        Trace(record, tuple(row_steps), request.end_record(row, row_steps))
        for record, row_steps, request, row in zip(records, steps, ready, rows, strict=True)
    ]


def _seconds(ready: Sequence[Prepared], together: bool, every: int = EVERY) -> float:
    """Seconds a token of decoding these requests, prefill left out."""
    gc.collect()
    batches = [assemble(ready, every, "off")] if together else [assemble([request], every, "off") for request in ready]
    spent = tokens = 0.0
    for batch in batches:
        rows = list(batch.running)
        started = time.perf_counter()
        for _ in batch.rounds():
            pass
        spent += time.perf_counter() - started - sum(row.outcome.prefill_ns for row in rows) / 1e9
        tokens += sum(len(row.outcome.output_ids) for row in rows)
    return spent / max(1.0, tokens)


def rows_in_step(report: Report, bench: Bencher, pairs: int = 3) -> None:
    """READER in step against READER one run after another, and against plain decoding in step, by number of rows."""
    prompts = [*GROUNDED, *SUMMARY]

    def seconds(name: str, rows: int, together: bool) -> float:
        # A memory of its own each time: a method that remembers would copy its answer of the time before.
        return _seconds([bench.prepared(name, prompt, memory=Memory()) for prompt in prompts[:rows]], together)

    for rows in (2, 4, 8):
        for name in ("reader", "autoregressive"):
            gain, ratios = median_ratio(partial(seconds, name, rows, False), partial(seconds, name, rows, True), pairs)
            report.add(Row(f"{name}, {rows} rows in step ÷ one after another", gain, detail=range_text(ratios)))
        gain, ratios = median_ratio(partial(seconds, "autoregressive", rows, True), partial(seconds, "reader", rows, True), pairs)
        report.add(Row(f"reader ÷ plain decoding, {rows} rows in step", gain, detail=range_text(ratios)))


def run(report: Report, target: str, methods: Sequence[str]) -> None:
    """The batch suite: READER's rows in step, whatever ``methods`` names."""
    rows_in_step(report, Bencher(target))
