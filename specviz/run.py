"""Names to objects to a trace: the only place that joins models, methods and the engine.

The module itself can be called, ``specviz.run(method="prompt_lookup", prompt="…")``, which is :func:`run`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch
import transformers

import specviz
from specviz.engine.cost import CostCurve, measure
from specviz.engine.interfaces import Composition
from specviz.engine.loop import Decoding
from specviz.engine.recorder import Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.errors import ContextFull
from specviz.methods.parameters import build
from specviz.methods.parts import Parts
from specviz.methods.registry import Method, get
from specviz.models.drafts import draft_model
from specviz.models.heads import drafting_heads
from specviz.models.load import LoadedText, load_causal_lm
from specviz.models.text import TokenizerText
from specviz.request import Memory, Request
from specviz.targets.text import TextTarget
from specviz.trace.metrics import summarise
from specviz.trace.schema import Baseline, Divergence, End, Run, Sampling, Step, Trace

Progress = Callable[[str, float | None], None]
Event = Run | Step | End


_CURVES: dict[tuple[str, ...], CostCurve] = {}
_CURVES_LOCK = threading.Lock()


def cost_curve(target: TextTarget) -> CostCurve:
    """The cost curve of this target here, measured once per process."""
    key = (target.name, str(target.device), str(target.dtype), target.tier)
    with _CURVES_LOCK:
        if key not in _CURVES:
            _CURVES[key] = measure(target)
        return _CURVES[key]


@dataclass
class Prepared:
    """A request with everything it names loaded and checked; nothing has been decoded yet."""

    request: Request
    method: Method
    parameters: Any
    loaded: LoadedText
    target: TextTarget
    text: TokenizerText
    prompt_ids: list[int]
    parts: Parts

    def compose(self, name: str | None = None) -> Composition:
        """The method's composition, or a parameterless one's by ``name``."""
        if name is not None:
            other = get(name)
            return other.compose(other.parameters(), self.parts)
        return self.method.compose(self.parameters, self.parts)

    def decoding(self, composition: Composition, seed: int, record: str, cancel: threading.Event) -> Decoding:
        """One run, ready to start."""
        request = self.request
        recorder = Recorder(self.text, record)
        return Decoding(
            self.target, composition, self.prompt_ids, self.parts.warp, Noise(seed), request.max_new_tokens, recorder, cancel
        )


def prepare(request: Request, memory: Memory | None = None, progress: Progress | None = None) -> Prepared:
    """Load and check. Raises a SpecvizError that says what to change."""
    progress = progress or (lambda message, fraction: None)
    memory = memory or Memory()
    method = get(request.method)
    warp = Warp(request.temperature, request.top_k, request.top_p)
    parameters = build(method.parameters, request.parameters, request.method)
    loaded = load_causal_lm(request.target, request.dtype, request.device, progress)
    target = TextTarget(loaded.model, loaded.name, sorted(loaded.eos_ids), request.tier)
    text = loaded.text
    ids = text.encode(request.prompt, request.raw)
    if len(ids) + request.max_new_tokens > target.context_length:
        raise ContextFull(
            f"The prompt has {len(ids)} tokens; with {request.max_new_tokens} new ones that is more than the "
            f"{target.context_length} that {loaded.name} can see. Shorten the prompt or ask for fewer tokens."
        )
    key = hashlib.sha256(repr((loaded.name, ids)).encode()).hexdigest()
    parts = Parts(
        target=target,
        warp=warp,
        prompt_key=key,
        recall=memory.recall,
        cost_curve=lambda: _announced_curve(target, progress),
        draft_model=lambda: draft_model(request.draft, loaded, target, progress),
        heads=lambda kind: drafting_heads(kind, request.draft, loaded, target, progress),
    )
    return Prepared(request, method, parameters, loaded, target, text, ids, parts)


def _announced_curve(target: TextTarget, progress: Progress) -> CostCurve:
    progress("Measuring what a pass costs here", None)
    return cost_curve(target)


def stream(
    request: Request,
    *,
    memory: Memory | None = None,
    cancel: threading.Event | None = None,
    progress: Progress | None = None,
) -> Iterator[Event]:
    """One Run, then Steps as they happen, then an End; with a baseline a second End that carries it.

    A request that cannot be run raises a SpecvizError before the Run. What goes wrong later ends the run: see ``End.reason``.
    """
    cancel = cancel or threading.Event()
    prepared = prepare(request, memory, progress)
    composition = prepared.compose()
    _earlier_trajectories(prepared, cancel)
    yield run_record(prepared, composition)
    decoding = prepared.decoding(composition, request.seed, request.record, cancel)
    steps = []
    for step in decoding.steps():
        steps.append(step)
        yield step
    end = end_record(prepared, decoding, steps)
    yield end
    if request.baseline and end.reason in {"eos", "budget", "context"}:
        found = _baseline(prepared, list(end.output_ids), cancel)
        if found is not None:
            yield replace(end, baseline=found, metrics=summarise(steps, end.reason, end.prefill_ns, found))


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


def _earlier_trajectories(prepared: Prepared, cancel: threading.Event) -> None:
    """Decode other trajectories of the prompt first, for methods that learn from them (their seeds follow this one's)."""
    for number in range(1, getattr(prepared.parameters, "earlier_trajectories", 0) + 1):
        decoding = prepared.decoding(prepared.compose(), prepared.request.seed + number, "off", cancel)
        for _ in decoding.steps():
            pass


def end_record(prepared: Prepared, decoding: Decoding, steps: list[Step]) -> End:
    """How the run ended, for its trace."""
    outcome = decoding.outcome
    return End(
        reason=outcome.reason,
        output_ids=tuple(outcome.output_ids),
        text="".join(prepared.text.pieces([], outcome.output_ids)),
        prefill_ns=outcome.prefill_ns,
        metrics=summarise(steps, outcome.reason, outcome.prefill_ns),
        message=outcome.message,
    )


def _baseline(prepared: Prepared, output: list[int], cancel: threading.Event) -> Baseline | None:
    """The target alone: same prompt, seed, tier, process and number of tokens. None when it was stopped."""
    decoding = prepared.decoding(prepared.compose("autoregressive"), prepared.request.seed, "off", cancel)
    taken = tuple(step.time.total for step in decoding.steps())
    ids = decoding.outcome.output_ids
    if decoding.outcome.reason in {"cancelled", "error", "out_of_memory"}:
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
    return Run(
        modality="text",
        target=loaded.name,
        method=method.name,
        title=method.title,
        exactness=method.exactness,
        parameters=dict(vars(prepared.parameters)),
        sampling=Sampling(request.temperature, request.top_k, request.top_p, request.seed),
        device=str(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        tier=target.tier,
        prompt=request.prompt,
        prompt_pieces=prepared.text.pieces([], prepared.prompt_ids),
        max_new_tokens=request.max_new_tokens,
        bound=method.bound,
        draft=composition.draft_name,
        chat_template=loaded.text.uses_template(request.raw),
        tokenizer_hash=loaded.tokenizer_hash,
        libraries=_libraries(),
        machine=_machine(target.device),
        recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        warnings=tuple(word for word in (*loaded.warnings, target.warning, *composition.warnings) if word),
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


class _Callable(types.ModuleType):
    """Lets ``specviz.run`` be both this module and the function that users call."""

    def __call__(self, **fields: Any) -> Trace:
        return run(**fields)


sys.modules[__name__].__class__ = _Callable
