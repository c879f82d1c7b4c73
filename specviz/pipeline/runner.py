"""Execution of a request: preparation, decoding, trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from specviz.engine.sampling import Warp
from specviz.engine.stop import NOTHING_RUN, Interrupted, Stop, Stopped, stoppable
from specviz.engine.threads import ThreadLimit
from specviz.errors import BadInput
from specviz.methods.registry import all_methods, get
from specviz.models.device import check_room
from specviz.models.hub.cache_dir import no_progress
from specviz.models.hub.prepare import modality_of
from specviz.models.room import second_models
from specviz.pipeline import image, text, vision_language
from specviz.pipeline.prepared import Inputs, Prepared, Progress, no_draft
from specviz.pipeline.records import baseline, end_record, run_record
from specviz.pipeline.request import Memory, Request
from specviz.trace.collect import collect
from specviz.trace.metrics import summarise
from specviz.trace.schema import End, Run, Step, Trace

Event = Run | Step | End
_MODALITIES: dict[str, tuple[str, Callable[[Inputs], Prepared]]] = {
    "text": ("text", text.prepare),
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
            warm_up = prepared.method.warm_up
            warning = warm_up(prepared, cancel, progress) if warm_up else ""
            record = run_record(prepared, composition)
            yield record.replace(warnings=(*record.warnings, warning)) if warning else record
            decoding = prepared.decoding(composition, request.seed, request.record, cancel, progress=progress)
            steps: list[Step] = []
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
