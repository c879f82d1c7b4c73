"""Prepared requests: everything that a request names, loaded and checked.

Each modality has its own ``prepare``; see the other modules of this package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from specviz.engine.cost import RunCosts
from specviz.engine.interfaces import Composition, Target, TokenText
from specviz.engine.loop import Decoding
from specviz.engine.recorder import Recorder, written
from specviz.engine.sampling import Noise, Warp
from specviz.engine.stop import Stop
from specviz.errors import BadInput
from specviz.methods.registry import Method, get
from specviz.methods.resources import MethodResources
from specviz.models.cost_curves import ModelCosts
from specviz.models.heads.heads import ours
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.pipeline.request import Memory, Request, RunMemory
from specviz.trace.schema import Step


class LoadedModel(Protocol):
    """A model as its loader returns it."""

    @property
    def name(self) -> str: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...


class PreparedTarget(Target, Protocol):
    """A target with a warning about how it runs, or an empty one."""

    warning: str


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of a run of any modality. ``memory`` belongs to the user."""

    request: Request
    method: Method
    warp: Warp
    memory: Memory
    progress: Progress = no_progress

    def resource_fields(self, target: Target, costs: ModelCosts, prompt: bytes) -> dict[str, Any]:
        """Return the fields that resources of every modality have; ``prompt`` identifies the prompt and its model."""
        return {
            "target": target,
            "warp": self.warp,
            "prompt_key": hashlib.sha256(prompt).hexdigest(),
            "memory": RunMemory(self.memory),
            "costs": RunCosts(costs.times),
            "draft_name": self.request.draft,
            "uses_shipped_weights": ours(self.request.draft),
            "progress": self.progress,
        }


@dataclass(frozen=True, kw_only=True)
class Prepared(Inputs):
    """A request whose models are loaded and whose prompt is tokenized; nothing has been decoded.

    ``budget`` is the maximum number of new tokens, ``run_fields`` are this modality's fields of the run line. ``costs`` belong
    to the target.
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
        """Compose one run: of the request's method, or of the method called ``name`` with its defaults.

        ``changed`` replaces resources. The entries that a method recalls from the memory determine the run's generation, so each
        run needs its own composition. Raises BadInput if a draft was named and the method takes none.
        """
        method, values = (self.method, self.request.parameters) if name is None else (get(name), get(name).parameters())
        recollection = RunMemory(self.memory)
        costs = None if self.costs is None else self.costs.run(method.name)
        composition = method.compose(values, self.resources.using(memory=recollection, costs=costs, **changed))
        if name is None and self.request.draft and not composition.draft_name:
            raise no_draft(self.method)
        return replace(composition, generation=recollection.generation(), learn=None if costs is None else costs.learn)

    def decoding(
        self,
        composition: Composition,
        seed: int,
        record: str = "off",
        cancel: Stop | None = None,
        trajectory: int = 0,
        progress: Progress = no_progress,
    ) -> Decoding:
        """Return one run, ready to start. A ``trajectory`` of 1 or more only updates the drafter, with noise that no run uses.

        ``progress`` receives the share of a long prompt that has been read.
        """
        recorder, cancel = Recorder(self.text, record, self.resources.grid, frozenset(self.target.eos_ids)), cancel or Stop()
        return Decoding(
            self.target, composition, self.prompt_ids, self.warp, Noise(seed, trajectory, composition.generation), self.budget,
            recorder, cancel, progress=progress,
        )  # fmt: skip

    def annotate(self, step: Step, output: Sequence[int]) -> Step:
        """Return the step for the trace; ``output`` holds all tokens up to the step's end."""
        return step

    def end_fields(self, output: Sequence[int]) -> dict[str, Any]:
        """Return this modality's fields of the end line."""
        return {}

    def baseline_fields(self, output: list[int], parting: int) -> dict[str, Any]:
        """Return this modality's fields of a baseline whose ``output`` differs from the run's from token ``parting`` on."""
        return {"pieces": written(self.text, output[:parting], output[parting:], frozenset(self.target.eos_ids))}

    def steps(self, decoding: Decoding) -> Iterator[Step]:
        """Yield the annotated steps. A fault in annotation, such as a picture decoder's, ends the run after the plain step."""
        rounds = decoding.steps()
        for step in rounds:
            try:
                annotated = self.annotate(step, decoding.outcome.output_ids)
            except Exception as error:  # the steps so far must survive a fault in any part
                rounds.close()
                decoding.note_fault(error)
                yield step
                return
            yield annotated


def no_draft(method: Method) -> BadInput:
    """Return the error for a request that names a draft for a method that takes none."""
    return BadInput(f"{method.title} takes no draft: it drafts without a second model; leave draft out.")
