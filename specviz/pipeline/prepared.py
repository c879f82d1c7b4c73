"""Prepared requests: the models of a request, loaded and checked. Each modality's module has a ``prepare`` function."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from specviz.engine.cost import RunCosts
from specviz.engine.interfaces import Composition, Target, TokenText
from specviz.engine.loop import Decoding, Recorder, written
from specviz.engine.sampling import Noise, Warp
from specviz.engine.stop import Stop
from specviz.errors import BadInput
from specviz.methods.registry import Method, MethodResources, get
from specviz.models.cost_curves import ModelCosts
from specviz.models.heads.heads import is_shipped
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.pipeline.request import Memory, Request, RunMemory
from specviz.trace.schema import Step


class LoadedModel(Protocol):
    """A loaded model."""

    @property
    def name(self) -> str: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...


class PreparedTarget(Target, Protocol):
    """Target, and a warning for the user or an empty string."""

    warning: str


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of a run, whatever the modality. ``memory``: the user's earlier runs."""

    request: Request
    method: Method
    warp: Warp
    memory: Memory
    progress: Progress = no_progress

    def resource_fields(self, target: Target, costs: ModelCosts, prompt: bytes) -> dict[str, Any]:
        """Return the resource fields common to the modalities. ``prompt``: bytes that identify the prompt and the model."""
        return {
            "target": target,
            "warp": self.warp,
            "prompt_key": hashlib.sha256(prompt).hexdigest(),
            "memory": RunMemory(self.memory),
            "costs": RunCosts(costs.times),
            "draft_name": self.request.draft,
            "uses_shipped_weights": is_shipped(self.request.draft),
            "progress": self.progress,
        }


@dataclass(frozen=True, kw_only=True)
class Prepared(Inputs):
    """A request with loaded models and a tokenized prompt, ready to decode.

    ``budget``: maximum number of new tokens; ``run_fields``: fields of the run record specific to the modality; ``costs``:
    measured costs of the target.
    """

    loaded: LoadedModel
    target: PreparedTarget
    text: TokenText
    prompt_ids: list[int]
    resources: MethodResources
    budget: int
    run_fields: Mapping[str, Any]
    costs: ModelCosts | None

    def compose(self, name: str | None = None, **changed: Any) -> Composition:
        """Compose the request's method, or the method ``name`` with default parameters, for one run.

        ``changed``: resources to replace. A composition serves a single run, because the memory gives each run a generation.
        Raises BadInput if the request names a draft model that the method does not use.
        """
        method, values = (self.method, self.request.parameters) if name is None else (get(name), get(name).parameters())
        recollection = RunMemory(self.memory)
        costs = self.costs.run(method.name) if self.costs else None
        composition = method.compose(values, self.resources.using(memory=recollection, costs=costs, **changed))
        if name is None and self.request.draft and not composition.draft_name:
            raise no_draft(self.method)
        return replace(composition, generation=recollection.generation(), learn=costs.learn if costs else None)

    def decoding(
        self,
        composition: Composition,
        seed: int,
        record: str = "off",
        cancel: Stop | None = None,
        trajectory: int = 0,
        progress: Progress = no_progress,
    ) -> Decoding:
        """Return a run, ready to start.

        ``trajectory``: 0 for the run itself; 1 or more for a warm-up trajectory, with independent noise. ``progress``: reports
        the progress of a long prefill.
        """
        recorder, cancel = Recorder(self.text, record, self.resources.grid, frozenset(self.target.eos_ids)), cancel or Stop()
        return Decoding(
            self.target, composition, self.prompt_ids, self.warp, Noise(seed, trajectory, composition.generation), self.budget,
            recorder, cancel, progress=progress,
        )  # fmt: skip

    def annotate(self, step: Step, output: Sequence[int]) -> Step:
        """Return the step with the notes of the modality. ``output``: tokens up to the end of the step."""
        return step

    def end_fields(self, output: Sequence[int]) -> dict[str, Any]:
        """Return the fields of the end record specific to the modality."""
        return {}

    def baseline_fields(self, output: list[int], parting: int) -> dict[str, Any]:
        """Return the baseline's fields specific to the modality. ``parting``: index of the first token that differs."""
        return {"pieces": written(self.text, output[:parting], output[parting:], frozenset(self.target.eos_ids))}

    def steps(self, decoding: Decoding) -> Iterator[Step]:
        """Yield the annotated steps. An error during annotation ends the run after the step without annotation."""
        rounds = decoding.steps()
        for step in rounds:
            try:
                annotated = self.annotate(step, decoding.outcome.output_ids)
            except Exception as error:  # any error, so that the steps so far are kept
                rounds.close()
                decoding.note_fault(error)
                yield step
                return
            yield annotated


def no_draft(method: Method) -> BadInput:
    """Return the error for a request with a draft model that the method does not use."""
    return BadInput(f"{method.title} takes no draft, because the method drafts without a second model; leave draft out.")
