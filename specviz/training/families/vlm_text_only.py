"""``train vlm_text_only``: a small language model that drafts for pictures without knowing of them (Gagrani et al.,
arXiv 2404.08856), learned from the target's own answers."""

from __future__ import annotations

from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.vision.vision_drafts import TARGET as LEARNED_FROM
from specviz.models.vision.vision_drafts import told_apart
from specviz.training.common.card import card, print_card
from specviz.training.common.loop import checkpoint_of, train
from specviz.training.draft_model import small_draft
from specviz.training.families.picture_drafters import MEASURED, TARGET, settings_for, target_and_answers
from specviz.training.families.picture_store import markers
from specviz.training.families.scenes_batches import Writer
from specviz.training.registry import WEIGHTS, Job

DEPTH = 5
SHAPE = {"width": 128, "layers": 4, "heads": 4, "inner": 384, "window": 256}
LENGTH = 256
STEPS = 4000


def make(job: Job) -> None:
    """Train, measure on held-out pictures, write ``assets/weights/vlm_text_only.safetensors`` and print its card line."""
    target = told_apart(TARGET)  # now: the file may be another by the time this is done
    learner, tokenizer, spoken = target_and_answers(job)
    workers = settings_for(job, learner).workers
    settings = small_draft.Settings(
        minutes=job.minutes, resume=job.resume, batch=8, part=4, length=LENGTH, every=1.0, workers=workers
    )
    writer = Writer(tokenizer)
    embedding = learner.model.get_input_embeddings().weight.detach().float()
    shape = {**SHAPE, "draft_vocab": embedding.shape[0]}
    state = small_draft.prepare(embedding, markers(writer), spoken.dialogues, shape, settings, spoken.split())
    print(f"{len(state.training)} answers to learn from; {settings}", flush=True)
    progress = train(state, checkpoint_of(job.recipe.name))
    agreement = small_draft.measure(state, MEASURED, DEPTH, STEPS)
    figures = {"tau": agreement.tau, "first": agreement.top1, "five": agreement.top5}
    facts = card(
        job.recipe.name, settings, f"{len(state.training)} answers of scenes-vlm about its own scenes, without the scenes",
        progress.spent(learner.model.device.type), figures, tokenizer_hash=tokenizer_hash(tokenizer), **{LEARNED_FROM: target},
    )  # fmt: skip
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    small_draft.export(state, path, facts)
    print_card(path, facts)
