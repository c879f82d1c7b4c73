"""Records of a run: its request and machine, its end, and the target alone as baseline."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from itertools import takewhile
from operator import eq

import torch
import transformers

from specviz.engine.interfaces import Composition
from specviz.engine.recorder import written
from specviz.engine.run_state import RunState
from specviz.engine.stop import Interrupted, Stop, stoppable
from specviz.models.hub.hub import revisions
from specviz.models.room import second_models
from specviz.pipeline.prepared import Prepared
from specviz.trace.metrics import summarise
from specviz.trace.schema import Baseline, Divergence, End, Run, Sampling, Step
from specviz.version import __version__

FAULTS = frozenset({"error", "out_of_memory"})
"""End reasons that are faults."""


def run_record(prepared: Prepared, composition: Composition) -> Run:
    """Return the run line: request, method, target, machine and libraries."""
    request, method, target, warp = prepared.request, prepared.method, prepared.target, prepared.warp
    more = dict(prepared.run_fields)
    warnings = (*prepared.loaded.warnings, target.warning, *composition.warnings, *more.pop("warnings", ()))
    on_gpu = target.device.type == "cuda"
    return Run(
        modality=prepared.resources.modality,
        target=prepared.loaded.name,
        method=method.name,
        title=method.title,
        exactness=method.exactness.output,
        parameters=dict(vars(request.parameters)),
        sampling=Sampling(warp.temperature, warp.top_k, warp.top_p, request.seed, composition.generation),
        device=str(target.device),
        dtype=str(getattr(target, "number_format", target.dtype)).removeprefix("torch."),
        tier=target.tier,
        prompt=request.prompt,
        prompt_pieces=prepared.text.pieces([], prepared.prompt_ids),
        max_new_tokens=prepared.budget,
        bound=method.bound,
        draft=composition.draft_name,
        libraries={
            "specviz": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **revisions((request.target, *second_models(request.draft))),
        },
        machine=torch.cuda.get_device_name(target.device)
        if on_gpu
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads of {os.cpu_count()}",
        recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        warnings=tuple(word for word in warnings if word),
        **more,
    )


def end_record(prepared: Prepared, decoding: RunState, steps: list[Step]) -> End:
    """Return the end line. A fault in the modality's own fields becomes the reason unless an earlier fault is recorded."""
    outcome = decoding.outcome
    try:
        more = prepared.end_fields(outcome.output_ids)
    except Exception as error:  # the run's end must be recorded even if its picture fails
        more = {}
        if outcome.reason not in FAULTS:  # else the first fault is recorded already
            decoding.note_fault(error)
    return End(
        reason=outcome.reason,
        output_ids=tuple(outcome.output_ids),
        text="".join(written(prepared.text, [], outcome.output_ids, frozenset(prepared.target.eos_ids))),
        prefill_ns=outcome.prefill_ns,
        metrics=summarise(steps, outcome.reason, outcome.prefill_ns, capture_ns=outcome.capture_ns),
        message=outcome.message,
        captures=outcome.captures,
        capture_ns=outcome.capture_ns,
        **more,
    )


def baseline(prepared: Prepared, end: End, cancel: Stop) -> Baseline | None:
    """Run the target alone after a run that ended with ``end``: same prompt, seed, tier, process and budget.

    Returns None if it was stopped or failed, or if a time limit leaves less time than another prefill takes.
    """
    if not cancel.has_time_for(end.prefill_ns / 1e9):
        return None
    decoding = prepared.decoding(prepared.compose("autoregressive"), prepared.request.seed, "off", cancel)
    times = tuple(step.time.total for step in decoding.steps())
    outcome = decoding.outcome
    if outcome.reason in {"cancelled", "time_limit", *FAULTS}:
        return None
    own, output = list(end.output_ids), outcome.output_ids
    if own == output:
        return Baseline(times, outcome.prefill_ns, True, capture_ns=outcome.capture_ns)
    parting = sum(takewhile(bool, map(eq, own, output)))
    try:
        with stoppable(cancel):
            # If the gap between the top two target logits is tiny, the divergence is a matter of rounding.
            text = prepared.prompt_ids + output[:parting]
            session = prepared.target.open(len(text) + 1)
            best = session.prefill(text).logits[-1].float().topk(2).values
            session.close()
    except Interrupted:
        return None
    divergence = Divergence(parting, float(best[0] - best[1]))
    return Baseline(
        times, outcome.prefill_ns, False, divergence, capture_ns=outcome.capture_ns, **prepared.baseline_fields(output, parting)
    )
