"""Prepared requests: the models of a request, loaded and checked.

A text request, for a causal language model, is prepared here; :mod:`specviz.pipeline.image` and
:mod:`specviz.pipeline.vision_language` prepare the others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from specviz.drafting.runtimes.language_model import DraftModel
from specviz.engine.cost import CostCurve, RunCosts
from specviz.engine.interfaces import Composition, Target, TokenText
from specviz.engine.loop import Decoding, Recorder, written
from specviz.engine.regions import FOLDER
from specviz.engine.sampling import Noise, Warp
from specviz.engine.stop import Stop
from specviz.errors import BadInput, ContextFull
from specviz.methods.easyspec.layer_parallel import GroupedModel, grouped_model
from specviz.methods.polybasic.intermediate import IntermediateModel
from specviz.methods.registry import Method, MethodResources, TextResources, get
from specviz.models.cost_curves import ModelCosts, target_costs
from specviz.models.heads.heads import draft_model, drafting_heads, is_shipped, several_models
from specviz.models.heads.intermediate_models import intermediate_model, layer_parallel
from specviz.models.hub.cache_dir import Progress, cache_folder, no_progress
from specviz.models.text.load import LoadedText, load_causal_lm
from specviz.pipeline.request import Memory, Request, RunMemory, refuse_unused
from specviz.targets.hybrid import CausalTarget, causal_target
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
        method, values = (get(name), get(name).parameters()) if name else (self.method, self.request.parameters)
        recollection = RunMemory(self.memory)
        # The drafters of one method, and published heads, take different times.
        costs = (
            self.costs.run(f"{method.name} {self.request.draft or ''} {getattr(values, 'drafter', '')}".rstrip())
            if self.costs
            else None
        )
        composition = method.compose(values, self.resources.using(memory=recollection, costs=costs, **changed))
        if not name and self.request.draft and not composition.draft_name:
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


@dataclass(kw_only=True)
class LanguageModelResources(TextResources):
    """Resources of a text run, with the user's drafters or by default the shipped ones."""

    target: CausalTarget
    loaded: LoadedText
    progress: Progress

    def drafter_weights(self, kind: str) -> Any:
        return drafting_heads(kind, self.draft_name, self.loaded, self.target, self.progress)

    def draft_model(self) -> DraftModel:
        return draft_model(self.draft_name, self.loaded, self.target, self.progress)

    def draft_models(self) -> dict[str, DraftModel]:
        return several_models(self.draft_name or "", self.loaded, self.target, self.progress)

    def intermediate(self, kind: str) -> IntermediateModel:
        return intermediate_model(IntermediateModel, kind, self.draft_name, self.loaded, self.target, self.progress)

    def grouped(self, kind: str, group: int) -> GroupedModel:
        name, model, warnings = layer_parallel(kind, group, self.draft_name, self.loaded, self.target, self.progress)
        return grouped_model(name, model, self.target, group, warnings)

    def cost_curve_of(self, draft: Target) -> CostCurve:
        return target_costs(draft, self.progress, target_costs(self.target, self.progress)).curve()


def prepare_text(inputs: Inputs) -> Prepared:
    """Load the target and check the text request, a chat message or raw text. Raises SpecvizError if the request cannot run."""
    request, progress = inputs.request, inputs.progress
    if request.image is not None:
        raise BadInput(
            f"{request.target} does not read pictures. Leave the picture out, or choose a vision-language model like scenes-vlm."
        )
    refuse_unused(request, {"guidance": "only image models use guidance"})
    loaded = load_causal_lm(request.target, request.dtype, request.device, progress)
    os.environ.setdefault(FOLDER, str(cache_folder() / "compiled"))
    target = causal_target(loaded.model, loaded.name, loaded.eos_ids, request.tier)
    if decoder := getattr(target, "decoder", None):
        decoder.regions.progress = progress
    text = loaded.text
    ids = text.encode(request.prompt, request.raw)
    if len(ids) + request.max_new_tokens > target.context_length:
        raise ContextFull(
            f"The prompt has {len(ids)} tokens; with {request.max_new_tokens} new tokens, this exceeds the "
            f"{target.context_length}-token context of {loaded.name}. Shorten the prompt or request fewer tokens."
        )
    costs = target_costs(target, progress)
    return Prepared(
        **vars(inputs),
        loaded=loaded,
        target=target,
        text=text,
        prompt_ids=ids,
        resources=LanguageModelResources(
            **inputs.resource_fields(target, costs, repr((loaded.name, ids)).encode()), loaded=loaded
        ),
        budget=request.max_new_tokens,
        run_fields={"chat_template": text.uses_template(request.raw), "tokenizer_hash": loaded.tokenizer_hash},
        costs=costs,
    )
