"""Execution of a request, from names to objects to a trace: the only place that joins models, methods and the engine."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch
import transformers

import specviz
from specviz.engine.interfaces import Composition
from specviz.engine.loop import Decoding
from specviz.engine.recorder import written
from specviz.engine.stop import Stop, why
from specviz.engine.threads import ThreadLimit
from specviz.errors import BadInput, ModelUnavailable
from specviz.methods.parameters import build
from specviz.methods.registry import get
from specviz.models.hub.modality import modality_of
from specviz.request import Memory, Request
from specviz.requests import image, text, vision_language
from specviz.requests.prepared import KINDS, Prepared, Progress
from specviz.trace.metrics import summarise
from specviz.trace.schema import Baseline, Divergence, End, Run, Sampling, Step, Trace

Event = Run | Step | End
_KINDS: dict[str, Callable[[Request, Memory, Progress], Prepared]] = {
    "text": text.prepare,
    "image": image.prepare,
    "vision_language": vision_language.prepare,
}
"""Who makes a request ready, by what its target works on."""


FAULTS = frozenset({"error", "out_of_memory"})
"""Reasons of an end that something went wrong for."""


def prepare(request: Request, memory: Memory | None = None, progress: Progress | None = None) -> Prepared:
    """Load and check, as the target's kind wants it. Raises a SpecvizError that says what to change."""
    if not (isinstance(memory, Memory | None) and (progress is None or callable(progress))):
        raise BadInput("memory is a specviz.request.Memory and progress a function of a message and a fraction, or None.")
    progress = progress or (lambda message, fraction: None)
    # What is wrong with the request itself is said before anything is fetched or loaded.
    build(get(request.method).parameters, request.parameters, request.method)
    modality = modality_of(request.target, progress)
    if modality not in _KINDS:
        known = " or ".join(KINDS[one] for one in _KINDS)
        raise ModelUnavailable(f"{request.target} works on {KINDS[modality]}; choose a target that works on {known}.")
    if request.temperature is None:
        request = replace(request, temperature=1.0 if modality == "image" else 0.0)
    return _KINDS[modality](request, memory or Memory(), progress)


def stream(
    request: Request,
    *,
    memory: Memory | None = None,
    cancel: threading.Event | None = None,
    progress: Progress | None = None,
) -> Iterator[Event]:
    """One Run, then Steps as they happen, then an End; with a baseline a second End that carries it.

    A request that cannot be run raises a SpecvizError before the Run. What goes wrong later ends the run: see ``End.reason``.
    A time limit (see :class:`Stop`) holds for all that is computed for the request once its model is loaded.
    """
    with ThreadLimit() as threads:
        yield from _decoded(request, memory, cancel or threading.Event(), progress, threads)


def _decoded(
    request: Request, memory: Memory | None, cancel: threading.Event, progress: Progress | None, threads: ThreadLimit
) -> Iterator[Event]:
    prepared = prepare(request, memory, progress)
    if isinstance(cancel, Stop):
        cancel.begin()
    composition = prepared.compose()
    missing = _earlier_trajectories(prepared, cancel)
    record = run_record(prepared, composition)
    yield replace(record, warnings=(*record.warnings, missing)) if missing else record
    decoding = prepared.decoding(composition, request.seed, request.record, cancel)
    steps: list[Step] = []
    for step in _told(prepared, decoding):
        steps.append(step)
        yield step
    end = end_record(prepared, decoding, steps)
    yield replace(end, message=end.message or threads.sentence)
    if request.baseline and end.reason in {"eos", "budget", "context"}:
        found = _baseline(prepared, list(end.output_ids), cancel) if _spare(cancel, end.prefill_ns / 1e9) else None
        if found is not None:
            metrics = summarise(steps, end.reason, end.prefill_ns, found)
            yield replace(end, baseline=found, metrics=metrics, message=end.message or threads.sentence)
        elif limit := why(cancel):
            left_out = f"{limit} That was too short to time the baseline as well."
            yield replace(end, message=" ".join(part for part in (end.message, left_out) if part))


def run(*, memory: Memory | None = None, progress: Progress | None = None, **fields: Any) -> Trace:
    """Decode and return the whole trace. Keywords are the fields of :class:`Request`."""
    record: Run | None = None
    steps: list[Step] = []
    end: End | None = None
    for event in stream(Request(**fields), memory=memory, progress=progress):
        if isinstance(event, Run):
            record = event
        elif isinstance(event, Step):
            steps.append(event)
        else:
            end = event
    assert record is not None
    return Trace(record, tuple(steps), end)


def _earlier_trajectories(prepared: Prepared, cancel: threading.Event) -> str:
    """Decode other trajectories of the prompt first, for methods that learn from them. No run has their noise, whatever its
    seed: a run must neither be judged by numbers that its drafter has seen, nor find its own text learned by heart.

    They may take half of a time limit, so that it leaves something to see. Answers with a warning when that cut them short.
    """
    wanted = getattr(prepared.parameters, "earlier_trajectories", 0)
    for number in range(1, wanted + 1):
        decoding = prepared.decoding(prepared.compose(), prepared.request.seed, "off", cancel, number)
        with closing(decoding.steps()) as steps:
            cut = any(_halfway(cancel) for _ in steps)
        if cut or _halfway(cancel):
            whole = number - cut
            stopped = cancel.is_set() and not why(cancel)
            return "" if stopped or whole == wanted else f"{whole} of {wanted} earlier trajectories fitted into half the time."
    return ""


def _spare(cancel: threading.Event, seconds: float) -> bool:
    """Whether there is time for something that took this long before."""
    return cancel.spare(seconds) if isinstance(cancel, Stop) else not cancel.is_set()


def _halfway(cancel: threading.Event) -> bool:
    """Whether what comes before the run itself has to end."""
    return cancel.halfway() if isinstance(cancel, Stop) else cancel.is_set()


def _told(prepared: Prepared, decoding: Decoding) -> Iterator[Step]:
    """The steps as they go into the trace. A fault in making one so, as of a picture's decoder, ends the run after the
    plain step: the trace keeps what was decided, and its end says why."""
    rounds = decoding.steps()
    for step in rounds:
        try:
            told = prepared.told(step, decoding.outcome.output_ids)
        except Exception as error:  # the steps so far must survive a fault in any part, ours included
            rounds.close()
            decoding.note_fault(error)
            yield step
            return
        yield told


def _closing(prepared: Prepared, decoding: Decoding) -> dict[str, Any]:
    """What this kind of target adds to the end line: nothing where that fails, and then the fault is the reason."""
    try:
        return prepared.closing(decoding.outcome.output_ids)
    except Exception as error:  # the run's end must be told whatever its picture does
        if decoding.outcome.reason not in FAULTS:  # else the first fault is told already
            decoding.note_fault(error)
        return {}


def end_record(prepared: Prepared, decoding: Decoding, steps: list[Step]) -> End:
    """How the run ended, for its trace."""
    outcome, more = decoding.outcome, _closing(prepared, decoding)
    return End(
        reason=outcome.reason,
        output_ids=tuple(outcome.output_ids),
        text="".join(written(prepared.text, [], outcome.output_ids, frozenset(prepared.target.eos_ids))),
        prefill_ns=outcome.prefill_ns,
        metrics=summarise(steps, outcome.reason, outcome.prefill_ns),
        message=outcome.message,
        **more,
    )


def _baseline(prepared: Prepared, output: list[int], cancel: threading.Event) -> Baseline | None:
    """The target alone: same prompt, seed, tier, process and number of tokens. None when it was stopped."""
    decoding = prepared.decoding(prepared.compose("autoregressive"), prepared.request.seed, "off", cancel)
    taken = tuple(step.time.total for step in decoding.steps())
    ids = decoding.outcome.output_ids
    if decoding.outcome.reason in {"cancelled", "time_limit", *FAULTS}:
        return None
    place = next((at for at, (ours, alone) in enumerate(zip(output, ids, strict=False)) if ours != alone), None)
    if place is None and len(output) != len(ids):
        place = min(len(output), len(ids))
    divergence = None if place is None else Divergence(place, _gap(prepared, ids[:place]))
    return Baseline(taken, decoding.outcome.prefill_ns, place is None, divergence)


def _gap(prepared: Prepared, output: list[int]) -> float:
    """How far apart the target's two best logits are after ``output``: a tiny gap means rounding decided."""
    text = prepared.prompt_ids + output
    session = prepared.target.open(len(text) + 1)
    best = session.prefill(text).logits[-1].float().topk(2).values
    session.close()
    return float(best[0] - best[1])


def run_record(prepared: Prepared, composition: Composition) -> Run:
    """What was asked for and where it runs, for its trace."""
    request, method, loaded, target = prepared.request, prepared.method, prepared.loaded, prepared.target
    facts = dict(prepared.facts)
    said = (*loaded.warnings, target.warning, *composition.warnings, *facts.pop("warnings", ()))
    return Run(
        modality=prepared.modality,
        target=loaded.name,
        method=method.name,
        title=method.title,
        exactness=method.exactness,
        parameters=dict(vars(prepared.parameters)),
        sampling=Sampling(request.temperature, request.top_k, request.top_p, request.seed, composition.generation),
        device=str(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        tier=target.tier,
        prompt=request.prompt,
        prompt_pieces=prepared.text.pieces([], prepared.prompt_ids),
        max_new_tokens=prepared.budget,
        bound=method.bound,
        draft=composition.draft_name,
        libraries=_libraries(),
        machine=_machine(target.device),
        recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        warnings=tuple(word for word in said if word),
        **facts,
    )


def _libraries() -> dict[str, str]:
    return {
        "specviz": specviz.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads of {os.cpu_count()}"
