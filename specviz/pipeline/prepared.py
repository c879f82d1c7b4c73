"""Prepared request: everything it names loaded and checked, from which runs and their records are made.

Each kind of target fills it in; see the other modules of this package.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import torch
import transformers

from specviz.engine.cost import RunCosts
from specviz.engine.interfaces import Composition, Target, TokenText
from specviz.engine.loop import Decoding
from specviz.engine.recorder import Recorder, written
from specviz.engine.run_state import RunState
from specviz.engine.sampling import Noise
from specviz.engine.stop import Interrupted, Stop, stoppable
from specviz.errors import BadInput
from specviz.methods.registry import Method, all_methods, get
from specviz.methods.resources import MethodResources
from specviz.models.cost_curves import ModelCosts
from specviz.models.hub.cache_dir import silent
from specviz.models.hub.hub import revisions
from specviz.models.room import second_models
from specviz.pipeline.request import Memory, Recollection, Request
from specviz.trace.metrics import summarise
from specviz.trace.schema import Baseline, Divergence, End, Run, Sampling, Step
from specviz.version import __version__

Progress = Callable[[str, float | None], None]

KINDS = {"text": "text", "image": "images", "vision_language": "pictures and text"}
"""What targets of a modality work on, in words for a sentence."""
FAULTS = frozenset({"error", "out_of_memory"})
"""Reasons of an end that something went wrong for."""


class LoadedModel(Protocol):
    """A model as its loader gives it."""

    @property
    def name(self) -> str: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...


class PreparedTarget(Target, Protocol):
    """A target with what the user has to know about how it runs, if anything."""

    warning: str


@dataclass
class Prepared:
    """A request with everything it names loaded and checked; nothing has been decoded yet.

    ``run_fields`` are further fields of the trace's run line that this kind
    of target fills. ``memory`` is the user's, ``costs`` are the target's.
    """

    request: Request
    method: Method
    loaded: LoadedModel
    target: PreparedTarget
    text: TokenText
    prompt_ids: list[int]
    parts: MethodResources
    modality: str = "text"
    budget: int = 0
    run_fields: Mapping[str, Any] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    costs: ModelCosts | None = None

    def __post_init__(self) -> None:
        self.budget = self.budget or self.request.max_new_tokens
        if self.costs is not None:
            self.parts.costs = RunCosts(self.costs.times)

    def compose(self, name: str | None = None, **changed: Any) -> Composition:
        """One run of the method, or of a parameterless one by ``name``, with some of the resources ``changed``.

        What it recalls from the memory gives the run its generation, so each run needs a composition of its own. Raises
        BadInput where a draft was asked for and the method drafts without one.
        """
        method, values = (self.method, self.request.parameters) if name is None else (get(name), get(name).parameters())
        recollection = Recollection(self.memory)
        costs = None if self.costs is None else self.costs.run(method.name)
        composition = method.compose(values, self.parts.using(memory=recollection, costs=costs, **changed))
        if name is None and self.request.draft and not composition.draft_name:
            raise no_draft(self.method)
        return replace(composition, generation=recollection.generation(), learn=None if costs is None else costs.learn)

    def decoding(
        self,
        composition: Composition,
        seed: int,
        record: str,
        cancel: threading.Event,
        trajectory: int = 0,
        progress: Progress = silent,
    ) -> Decoding:
        """One run, ready to start, or with a number from 1 a trajectory that only teaches the drafter. ``progress`` hears how
        far a long prompt is read."""
        noise = Noise(seed, trajectory, composition.generation)
        warp, recorder = self.parts.warp, self.recorder(record)
        return Decoding(self.target, composition, self.prompt_ids, warp, noise, self.budget, recorder, cancel, progress=progress)

    def recorder(self, record: str) -> Recorder:
        """Who makes the steps of a run."""
        return Recorder(self.text, record, ends=frozenset(self.target.eos_ids))

    def annotate(self, step: Step, output: Sequence[int]) -> Step:
        """The step as it goes into the trace; ``output`` is all that was written up to and with it."""
        return step

    def end_fields(self, output: Sequence[int]) -> dict[str, Any]:
        """Further fields of the trace's end line."""
        return {}

    def baseline_fields(self, output: list[int], parting: int) -> dict[str, Any]:
        """Further fields of a baseline that wrote ``output``, not the run's from token ``parting`` on."""
        return {"pieces": written(self.text, output[:parting], output[parting:], frozenset(self.target.eos_ids))}

    def steps(self, decoding: Decoding) -> Iterator[Step]:
        """The steps as they go into the trace. A fault in annotating one, as of a picture's decoder, ends the run after the
        plain step: the trace keeps what was decided, and its end says why."""
        rounds = decoding.steps()
        for step in rounds:
            try:
                annotated = self.annotate(step, decoding.outcome.output_ids)
            except Exception as error:  # the steps so far must survive a fault in any part, ours included
                rounds.close()
                decoding.note_fault(error)
                yield step
                return
            yield annotated

    def run_record(self, composition: Composition) -> Run:
        """What was asked for and where it runs, for its trace."""
        request, method, target, warp = self.request, self.method, self.target, self.parts.warp
        more = dict(self.run_fields)
        warnings = (*self.loaded.warnings, target.warning, *composition.warnings, *more.pop("warnings", ()))
        return Run(
            modality=self.modality,
            target=self.loaded.name,
            method=method.name,
            title=method.title,
            exactness=method.exactness,
            parameters=dict(vars(self.request.parameters)),
            sampling=Sampling(warp.temperature, warp.top_k, warp.top_p, request.seed, composition.generation),
            device=str(target.device),
            dtype=str(target.dtype).removeprefix("torch."),
            tier=target.tier,
            prompt=request.prompt,
            prompt_pieces=self.text.pieces([], self.prompt_ids),
            max_new_tokens=self.budget,
            bound=method.bound,
            draft=composition.draft_name,
            libraries=_libraries() | revisions((request.target, *second_models(request.draft))),
            machine=_machine(target.device),
            recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            warnings=tuple(word for word in warnings if word),
            **more,
        )

    def end_record(self, decoding: RunState, steps: list[Step]) -> End:
        """How the run ended, for its trace. A fault in this kind of target's own fields is the reason where there was none."""
        outcome = decoding.outcome
        try:
            more = self.end_fields(outcome.output_ids)
        except Exception as error:  # the run's end must be recorded whatever its picture does
            more = {}
            if outcome.reason not in FAULTS:  # else the first fault is recorded already
                decoding.note_fault(error)
        return End(
            reason=outcome.reason,
            output_ids=tuple(outcome.output_ids),
            text="".join(written(self.text, [], outcome.output_ids, frozenset(self.target.eos_ids))),
            prefill_ns=outcome.prefill_ns,
            metrics=summarise(steps, outcome.reason, outcome.prefill_ns, capture_ns=outcome.capture_ns),
            message=outcome.message,
            captures=outcome.captures,
            capture_ns=outcome.capture_ns,
            **more,
        )

    def baseline(self, end: End, cancel: threading.Event) -> Baseline | None:
        """The target alone, after a run that ended with ``end``: same prompt, seed, tier, process and number of tokens. None
        when it was stopped, or there is not even time for another prefill."""
        if not _spare(cancel, end.prefill_ns / 1e9):
            return None
        decoding = self.decoding(self.compose("autoregressive"), self.request.seed, "off", cancel)
        times = tuple(step.time.total for step in decoding.steps())
        own_ids, target_ids = list(end.output_ids), decoding.outcome.output_ids
        if decoding.outcome.reason in {"cancelled", "time_limit", *FAULTS}:
            return None
        place = next(
            (
                at
                for at, (own_token, target_token) in enumerate(zip(own_ids, target_ids, strict=False))
                if own_token != target_token
            ),
            None,
        )
        if place is None and len(own_ids) != len(target_ids):
            place = min(len(own_ids), len(target_ids))
        try:
            with stoppable(cancel):
                divergence = None if place is None else Divergence(place, self._gap(target_ids[:place]))
        except Interrupted:
            return None
        own = {} if place is None else self.baseline_fields(target_ids, place)
        captured = decoding.outcome.capture_ns
        return Baseline(times, decoding.outcome.prefill_ns, place is None, divergence, capture_ns=captured, **own)

    def _gap(self, output: list[int]) -> float:
        """How far apart the target's two best logits are after ``output``: a tiny gap means rounding decided."""
        text = self.prompt_ids + output
        session = self.target.open(len(text) + 1)
        best = session.prefill(text).logits[-1].float().topk(2).values
        session.close()
        return float(best[0] - best[1])


def _spare(cancel: threading.Event, seconds: float) -> bool:
    """Whether there is time for something that took this long before."""
    return cancel.spare(seconds) if isinstance(cancel, Stop) else not cancel.is_set()


def _libraries() -> dict[str, str]:
    return {
        "specviz": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads of {os.cpu_count()}"


def no_draft(method: Method) -> BadInput:
    """The error of a draft that was named for a method that takes none."""
    return BadInput(f"{method.title} takes no draft: it drafts without a second model; leave draft out.")


def check_modality(method: Method, modality: str, target: str) -> None:
    """Raise BadInput naming the methods that run on such a target when ``method`` does not."""
    if not method.runs_on(modality):
        names = ", ".join(candidate.name for candidate in all_methods().values() if candidate.runs_on(modality)) or "none yet"
        raise BadInput(
            f"{method.title} does not run on {target}, which works on {KINDS.get(modality, modality)}. Methods that do: {names}."
        )
