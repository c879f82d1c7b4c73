"""Batched decoding of prepared requests."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.engine.batch_cache import shared
from specviz.engine.batch_loop import BatchDecoding
from specviz.engine.stop import Stop
from specviz.errors import BadInput
from specviz.pipeline.prepared import Prepared
from specviz.pipeline.runner import begin_run, end_record
from specviz.targets.text_rows import TextRows
from specviz.trace.schema import Step, Trace


def traces(ready: Sequence[Prepared], every: int, cancel: Stop | None = None) -> list[Trace]:
    """Decode prepared requests for one target as a batch and return one trace per request.

    Methods, seeds and budgets may differ. Trees are sized by the cost of a pass over all rows. After ``cancel`` or
    KeyboardInterrupt, the traces hold the steps so far and end as cancelled. ``every``: rounds between compactions of the cache.
    Raises BadInput if the targets differ or cannot be batched.
    """
    if len({(request.target.name, request.target.dtype, request.target.device) for request in ready}) != 1:
        raise BadInput("The runs of a batch must have the same target, dtype and device.")
    if ready[0].resources.modality != "text":
        raise BadInput(f"{ready[0].loaded.name} is not a text model and cannot be batched; run the prompts one by one.")
    target, cancel = ready[0].target, cancel or Stop()
    rows, records, taps = [], [], set[int]()
    for request in ready:
        composition = request.compose(cost_curve=lambda one=request: shared(one.resources.cost_curve(), len(ready)))
        records.append(begin_run(request, composition, cancel).replace(tier="eager"))
        rows.append(request.decoding(composition, request.request.seed, request.request.record, cancel))
        taps.update(composition.hidden_state_layers)
    capacities = [min(target.context_length, len(row.prompt) + row.budget) for row in rows]
    rounds = BatchDecoding(rows, TextRows(target, capacities, sorted(taps)), every).rounds()
    steps = [list[Step]() for _ in rows]
    try:
        for round_steps in rounds:
            for number, step in round_steps:
                steps[number].append(step)
    except KeyboardInterrupt:  # possibly in the middle of a round, whose steps are dropped
        rounds.close()
    found = []
    for request, row, record, row_steps in zip(ready, rows, records, steps, strict=True):
        row.outcome.output_ids = [token for step in row_steps for token in step.emitted]
        found.append(Trace(record, tuple(row_steps), end_record(request, row, row_steps)))
    return found
