"""Records of a run: the run record, the end record and the baseline.

:mod:`specviz.trace` defines, checks and writes the records. It knows neither engine, models nor torch, whose facts they hold.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from os.path import commonprefix

import psutil
import torch
import transformers

from specviz.engine.interfaces import Composition
from specviz.engine.loop import RunState, written
from specviz.engine.stop import Interrupted, Stop, stoppable
from specviz.models.hub.hub import revisions
from specviz.models.room import second_models
from specviz.pipeline.prepared import Prepared
from specviz.trace.metrics import summarise
from specviz.trace.schema import Baseline, Divergence, End, Run, Sampling, Step
from specviz.version import __version__

FAULTS = frozenset({"error", "out_of_memory"})


def run_record(prepared: Prepared, composition: Composition) -> Run:
    """Return the run record."""
    request, method, target, warp = prepared.request, prepared.method, prepared.target, prepared.warp
    more = dict(prepared.run_fields)
    warnings = (*prepared.loaded.warnings, target.warning, *composition.warnings, *more.pop("warnings", ()))
    decoder = getattr(target, "decoder", None)
    if on_gpu := target.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(target.device)
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
        tier="compiled" if decoder and decoder.regions.compiled else target.tier,
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
        warnings=tuple(filter(None, warnings)),
        **more,
    )


def end_record(prepared: Prepared, decoding: RunState, steps: list[Step]) -> End:
    """Return the end record. If decoding the final image fails, that error becomes the reason unless the run already failed."""
    outcome, device, decoder = decoding.outcome, prepared.target.device, getattr(prepared.target, "decoder", None)
    news = decoder.regions.take_news() if decoder else []
    try:
        more = prepared.end_fields(outcome.output_ids)
    except Exception as error:  # any error, so that the end is recorded
        more = {}
        if outcome.reason not in FAULTS:  # keep the first error
            decoding.note_fault(error)
    return End(
        reason=outcome.reason,
        output_ids=tuple(outcome.output_ids),
        text="".join(written(prepared.text, [], outcome.output_ids, frozenset(prepared.target.eos_ids))),
        prefill_ns=outcome.prefill_ns,
        metrics=summarise(steps, outcome.reason, outcome.prefill_ns, capture_ns=outcome.capture_ns),
        message=" ".join([outcome.message, *news]).strip(),
        memory=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else psutil.Process().memory_info().rss,
        captures=outcome.captures,
        capture_ns=outcome.capture_ns,
        **more,
    )


def baseline(prepared: Prepared, end: End, cancel: Stop) -> Baseline | None:
    """Decode the prepared request autoregressively and compare the output with that of ``end``.

    Returns None if decoding failed or was stopped, or if the time left is shorter than the prefill.
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
    parting = len(commonprefix([own, output]))
    try:
        with stoppable(cancel):
            # A tiny gap between the top two logits means that the divergence comes from rounding.
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
