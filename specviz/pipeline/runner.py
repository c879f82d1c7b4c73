"""Execution of a request: preparation, decoding, and the trace with its run record, end record and baseline.

:mod:`specviz.trace` defines, checks and writes the records, which hold facts of the engine, the models and torch.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from os.path import commonprefix
from typing import Any

import psutil
import torch
import transformers

from specviz.engine.interfaces import Composition
from specviz.engine.loop import RunState, written
from specviz.engine.sampling import Warp
from specviz.engine.stop import NOTHING_RUN, Interrupted, Stop, Stopped, stoppable
from specviz.engine.threads import ThreadLimit
from specviz.errors import BadInput
from specviz.methods.registry import all_methods, get
from specviz.models.device import check_room
from specviz.models.hub.cache_dir import no_progress
from specviz.models.hub.hub import revisions
from specviz.models.hub.prepare import modality_of
from specviz.models.room import second_models
from specviz.pipeline import image, vision_language
from specviz.pipeline.prepared import Inputs, Prepared, Progress, no_draft, prepare_text
from specviz.pipeline.request import Memory, Request
from specviz.trace.collect import collect
from specviz.trace.metrics import summarise
from specviz.trace.schema import Baseline, Divergence, End, Run, Sampling, Step, Trace
from specviz.version import __version__

Event = Run | Step | End
FAULTS = frozenset({"error", "out_of_memory"})
_MODALITIES: dict[str, tuple[str, Callable[[Inputs], Prepared]]] = {
    "text": ("text", prepare_text),
    "image": ("images", image.prepare),
    "vision_language": ("pictures and text", vision_language.prepare),
}
"""(Name of the data in messages, function that prepares a request) by modality of the target."""


def prepare(request: Request, memory: Memory | None = None, progress: Progress | None = None) -> Prepared:
    """Load the models and check the request. Raises SpecvizError if the request cannot run."""
    if not (isinstance(memory, Memory | None) and callable(progress or no_progress)):
        raise BadInput(
            "memory must be a pipeline.request.Memory or None, and progress a function of a message and a fraction, or None."
        )
    progress = progress or no_progress
    # Check the request itself before downloading or loading models.
    method = get(request.method)
    if request.draft and not method.takes_draft:
        raise no_draft(method)
    modality = modality_of(request.target, progress)
    kind, prepare_kind = _MODALITIES[modality]
    temperature = float(modality == "image") if request.temperature is None else request.temperature
    warp = Warp(temperature, request.top_k, request.top_p)
    if not method.runs_on(modality):
        others = ", ".join(candidate.name for candidate in all_methods().values() if candidate.runs_on(modality))
        raise BadInput(f"{method.title} does not run on {request.target}, which works on {kind}. Methods that do: {others}.")
    if request.dtype == "int8" and modality != "text":
        raise BadInput(f"Only text models run in int8, and {request.target} works on {kind}. Choose another number format.")
    check_room((request.target, *second_models(request.draft)), request.dtype, request.device)
    return prepare_kind(Inputs(request=request, method=method, warp=warp, memory=memory or Memory(), progress=progress))


def stream(
    request: Request,
    *,
    memory: Memory | None = None,
    cancel: Stop | None = None,
    progress: Progress | None = None,
) -> Iterator[Event]:
    """Decode a request and yield a Run, the Steps and an End. With a baseline, a second End includes the baseline.

    Raises SpecvizError, before the Run, if the request cannot run or is stopped early. A later error ends the run and is in
    ``End.reason``. The time limit of ``cancel`` starts once the models are loaded.
    """
    cancel, progress = cancel or Stop(), progress or no_progress
    with ThreadLimit() as threads:
        try:
            with stoppable(cancel):
                prepared = prepare(request, memory, progress)
                cancel.begin()
                composition = prepared.compose()
        except Interrupted:
            raise Stopped(cancel.reason or NOTHING_RUN) from None
        try:
            yield begin_run(prepared, composition, cancel, progress)
            decoding = prepared.decoding(composition, request.seed, request.record, cancel, progress=progress)
            steps = list[Step]()
            for step in prepared.steps(decoding):
                steps.append(step)
                yield step
            end = end_record(prepared, decoding, steps)
            yield end.replace(busy=threads.caveat)
            if not request.baseline or end.reason not in {"eos", "budget", "context"}:
                return
            if alone := baseline(prepared, end, cancel):
                metrics = summarise(steps, end.reason, end.prefill_ns, alone, end.capture_ns)
                yield end.replace(baseline=alone, metrics=metrics, busy=threads.caveat)
            elif cancel.reason:
                left_out = f"{cancel.reason} That left no time for the baseline."
                yield end.replace(message=f"{end.message} {left_out}".lstrip(), busy=threads.caveat)
        finally:
            if prepared.costs:
                prepared.costs.keep()


def run(*, memory: Memory | None = None, progress: Progress | None = None, **fields: Any) -> Trace:
    """Decode a request and return the trace. ``fields``: fields of :class:`Request`. Raises BadInput for unknown fields."""
    known = Request.__dataclass_fields__
    for name in fields:
        if name not in known:
            raise BadInput(f"A request has no field {name}; the fields are {', '.join(known)}.")
    return collect(stream(Request(**fields), memory=memory, progress=progress))


def begin_run(prepared: Prepared, composition: Composition, cancel: Stop, progress: Progress = no_progress) -> Run:
    """Do the method's warm-up, and return the run record with its warnings."""
    request, method, target, warp = prepared.request, prepared.method, prepared.target, prepared.warp
    more, late = dict(prepared.run_fields), method.warm_up(prepared, cancel, progress) if method.warm_up else ""
    warnings = (*prepared.loaded.warnings, target.warning, *composition.warnings, *more.pop("warnings", ()), late)
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
        # Heads that the request names, not the kind of weights that they replace.
        draft=(composition.draft_name in method.weights and request.draft) or composition.draft_name,
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
