"""Vision-language requests: a model, an image and a question about the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from specviz.drafting.runtimes.language_model import DraftModel
from specviz.drafting.runtimes.visual_context import Layout, spans
from specviz.errors import ContextFull
from specviz.methods.registry import VisionLanguageResources
from specviz.models.cost_curves import target_costs
from specviz.models.heads.heads import draft_model, drafting_heads, vision_heads
from specviz.models.hub.catalog import DEFAULT_VISION_TARGET as SCENES
from specviz.models.vision.picture_question import PictureQuestion
from specviz.models.vision.pictures import one_picture, png_pieces
from specviz.models.vision.scenes import finds_nothing, warnings
from specviz.models.vision.vision_language import LoadedVisionLanguage, load_vision_language
from specviz.pipeline.prepared import Inputs, Prepared, Progress
from specviz.pipeline.request import refuse_unused
from specviz.targets.image_prompt import sight
from specviz.targets.vision_language import VisionLanguageTarget, family_of
from specviz.trace.notes.images import PictureNote
from specviz.trace.schema import Step

UNUSED = {
    "guidance": "only image models use guidance",
    "raw": "questions about pictures always use the model's chat template",
}
"""Request fields that vision-language models do not accept, with the reasons."""
MOST_BOXES = 2500
"""Maximum number of patch boxes stored in a trace."""


@dataclass(frozen=True, kw_only=True)
class PreparedPicture(Prepared):
    """A prepared vision-language request. ``question``: tokenized prompt with the preprocessed image."""

    target: VisionLanguageTarget
    question: PictureQuestion

    def annotate(self, step: Step, output: Sequence[int]) -> Step:
        """Return the step, with the image in a note if it is the first."""
        if step.index or self.request.record != "tree":
            return step
        question = self.question
        rows, columns = question.grid
        has_grid = rows * columns == len(question.boxes) and question.boxes[0][:2] == (0.0, 0.0)
        boxes = None
        if not has_grid and len(question.boxes) <= MOST_BOXES:
            boxes = [[round(side, 4) for side in box] for box in question.boxes]
        note = PictureNote(
            png=png_pieces(question.picture),
            size=question.picture.size,
            grid=question.grid,
            spans=spans(question.visual),
            prompt=len(question.ids),
            encoding_ns=self.target.sight.encoding_ns,
            boxes=boxes,
        )
        return step.replace(notes=(*step.notes, note.to_note()))


@dataclass(kw_only=True)
class QuestionResources(VisionLanguageResources):
    """Resources of a vision-language run, with the user's drafters or by default the shipped ones."""

    target: VisionLanguageTarget
    loaded: LoadedVisionLanguage
    progress: Progress

    def drafter_weights(self, kind: str) -> Any:
        if not self.uses_shipped_weights:
            return drafting_heads(kind, self.draft_name, self.loaded, self.target, self.progress)
        return vision_heads(kind, self.loaded, self.target)

    def draft_model(self) -> DraftModel:
        return draft_model(self.draft_name, self.loaded, self.target, self.progress)


def prepare(inputs: Inputs) -> PreparedPicture:
    """Load the target and check the request. Raises SpecvizError if the request cannot run."""
    request, progress = inputs.request, inputs.progress
    refuse_unused(request, UNUSED)
    picture = one_picture(request.image)
    loaded = load_vision_language(request.target, request.dtype, request.device, progress)
    question, limits = loaded.read(picture.image, request.prompt), tuple[str, ...]()
    ids, most = list(question.ids), loaded.text.context_length
    if len(ids) + request.max_new_tokens > most:
        raise ContextFull(
            f"Picture and question take {len(ids)} tokens; with {request.max_new_tokens} new tokens, this exceeds the "
            f"{most}-token context of {loaded.name}. Request fewer tokens, shorten the question or use a smaller picture."
        )
    progress("Encoding the picture", None)
    seen = sight(loaded.model, question.ids, question.inputs, family_of(loaded.model, loaded.name).axes)
    if loaded.name == SCENES:
        nothing = finds_nothing(loaded.model, loaded.tokenizer, ids, seen.features.pooler_output)
        limits = warnings(loaded.name, loaded.tokenizer, request.prompt, picture.image, nothing)
    loaded = replace(loaded, warnings=(*loaded.warnings, *picture.warnings, *limits))
    target = VisionLanguageTarget(loaded.model, loaded.name, sorted(loaded.eos_ids), seen, request.tier)
    loaded.text.refuse_unembedded(token for token in ids if token != loaded.image_token_id)
    costs = target_costs(target, progress)
    return PreparedPicture(
        **vars(inputs),
        loaded=loaded,
        target=target,
        text=loaded.text,
        prompt_ids=ids,
        resources=QuestionResources(
            **inputs.resource_fields(target, costs, repr((loaded.name, ids)).encode() + question.picture.tobytes()),
            picture=Layout(len(ids), question.visual, question.hidden, seen.positions, seen.shift),
            loaded=loaded,
        ),
        budget=request.max_new_tokens,
        run_fields={"chat_template": True, "tokenizer_hash": loaded.tokenizer_hash},
        costs=costs,
        question=question,
    )
