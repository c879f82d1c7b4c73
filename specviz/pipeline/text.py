"""Text requests: a causal language model and a prompt, as a chat message or raw text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from specviz.drafting.runtimes.language_model import DraftModel
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Target
from specviz.engine.regions import FOLDER
from specviz.errors import BadInput, ContextFull
from specviz.methods.easyspec.layer_parallel import GroupedModel, grouped_model
from specviz.methods.polybasic.intermediate import IntermediateModel
from specviz.methods.registry import TextResources
from specviz.models.cost_curves import target_costs
from specviz.models.heads.heads import draft_model, drafting_heads, several_models
from specviz.models.heads.intermediate_models import intermediate_model, layer_parallel
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.text.load import LoadedText, load_causal_lm
from specviz.pipeline.prepared import Inputs, Prepared, Progress
from specviz.pipeline.request import refuse_unused
from specviz.targets.hybrid import CausalTarget, causal_target


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


def prepare(inputs: Inputs) -> Prepared:
    """Load the target and check the request. Raises SpecvizError if the request cannot run."""
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
