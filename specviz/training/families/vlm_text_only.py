"""``train vlm_text_only``: a small language model that drafts for pictures without knowing of them (Gagrani et al.,
arXiv 2404.08856), learned from the target's own answers."""

from __future__ import annotations

import torch

from specviz.drafters.networks.small_lm import save
from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.vision.vision_drafts import TARGET as LEARNED_FROM
from specviz.models.vision.vision_drafts import told_apart
from specviz.training import data, driver
from specviz.training.acceptance import chain_agreement
from specviz.training.families import small_draft
from specviz.training.families.picture_drafters import DEPTH, MEASURED, TARGET, target_and_answers
from specviz.training.families.picture_store import markers
from specviz.training.families.scenes_batches import Writer
from specviz.training.registry import Job

SHAPE = {"width": 128, "layers": 4, "heads": 4, "inner": 384, "window": 256}


def make(job: Job) -> None:
    """Train, measure on held-out pictures, write ``assets/weights/vlm_text_only.safetensors`` and print its card line."""
    target = told_apart(TARGET)  # now: the file may be another by the time this is done
    learner, tokenizer, spoken = target_and_answers(job)
    embedding = learner.model.get_input_embeddings().weight.detach().to(torch.float32)
    settings = driver.settings_for(job, embedding.device, small_draft.Settings)
    shape, template, parts = {**SHAPE, "draft_vocab": len(embedding)}, markers(Writer(tokenizer)), spoken.split()
    model = small_draft.fresh(embedding, template, spoken.dialogues, parts[0], shape, settings.seed)
    state = small_draft.TokenTraining(model, spoken.dialogues, template, parts, settings)
    print(f"{len(state.training)} answers to learn from; {settings}", flush=True)
    driver.train(state, driver.checkpoint_of(job.recipe.name))
    greedy = data.greedy_only(spoken.dialogues, state.held_out)[:MEASURED]
    figures = chain_agreement(model, spoken.dialogues, greedy, template, DEPTH)
    line = f"{len(state.training)} answers of scenes-vlm about its own scenes, without the scenes"
    more = {"tokenizer_hash": tokenizer_hash(tokenizer), LEARNED_FROM: target}
    driver.finish(job, state, figures, line, lambda path, facts: save(model, path, facts), **more)
