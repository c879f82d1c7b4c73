"""Decoding of several prepared requests in one batch."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.engine.batch_cache import shared
from specviz.engine.batch_loop import BatchDecoding
from specviz.engine.stop import Stop
from specviz.errors import BadInput
from specviz.pipeline.prepared import Prepared
from specviz.pipeline.records import end_record, run_record
from specviz.targets.text_rows import TextRows
from specviz.trace.schema import Step, Trace


def traces(ready: Sequence[Prepared], every: int, cancel: Stop | None = None) -> list[Trace]:
    """Decode prepared requests for one target in one batch, each with its own method, seed and budget; return their traces.

    Trees sized by the cost of a pass use the cost of a pass over all rows. The shared cache is compacted every ``every``
    rounds, which the steps record. On ``cancel`` or an interrupt, the steps so far are returned and the traces end as cancelled.
    Raises BadInput when the requests name different targets, or a target whose rows cannot share a cache.
    """
    if len({(request.target.name, request.target.dtype, request.target.device) for request in ready}) != 1:
        raise BadInput("All runs of a batch must share one target; choose the same target for each.")
    if ready[0].resources.modality != "text":
        raise BadInput(f"{ready[0].loaded.name} reads or draws pictures, so its prompts cannot be batched: run them one by one.")
    target, cancel = ready[0].target, cancel or Stop()
    rows, taps = [], set[int]()
    for request in ready:
        composition = request.compose(cost_curve=lambda one=request: shared(one.resources.cost_curve(), len(ready)))
        rows.append(request.decoding(composition, request.request.seed, request.request.record, cancel))
        taps.update(composition.hidden_state_layers)
    capacities = [min(target.context_length, len(row.prompt) + row.budget) for row in rows]
    rounds = BatchDecoding(rows, TextRows(target, capacities, sorted(taps)), every).rounds()
    records = [run_record(request, row.composition) for request, row in zip(ready, rows, strict=True)]
    steps: list[list[Step]] = [[] for _ in rows]
    try:
        for round_steps in rounds:
            for number, step in round_steps:
                steps[number].append(step)
    except KeyboardInterrupt:  # possibly mid-round; that round's steps are dropped
        rounds.close()
    found = []
    for request, row, record, row_steps in zip(ready, rows, records, steps, strict=True):
        row.outcome.output_ids = [token for step in row_steps for token in step.emitted]
        found.append(Trace(record, tuple(row_steps), end_record(request, row, row_steps)))
    return found
