"""``train vlm_text_only``: a small language model that drafts for pictures without knowing of them (Gagrani et al.,
arXiv 2404.08856), learned from the target's own answers."""

from __future__ import annotations

import json
from dataclasses import asdict

from specviz.models.hub.cache_dir import cache_folder
from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.vision.vision_drafts import TARGET as LEARNED_FROM
from specviz.models.vision.vision_drafts import told_apart
from specviz.training.common.commit import commit
from specviz.training.draft_model import small_draft
from specviz.training.registry import WEIGHTS, Job
from specviz.training.vision.make_picture_drafters import MEASURED, TARGET, material, settings_for, show
from specviz.training.vision.picture_dialogues import markers
from specviz.training.vision.scene_batches import Writer

DEPTH = 5
SHAPE = {"width": 128, "layers": 4, "heads": 4, "inner": 384, "window": 256}
LENGTH = 256
STEPS = 4000


def make(job: Job) -> None:
    """Train, measure on held-out pictures, write ``assets/weights/vlm_text_only.safetensors`` and print its card line."""
    target = told_apart(TARGET)  # now: the file may be another by the time this is done
    learner, tokenizer, spoken = material(job)
    workers = settings_for(job, learner).workers
    settings = small_draft.Settings(
        minutes=job.minutes, resume=job.resume, batch=8, part=4, length=LENGTH, every=200, workers=workers
    )
    writer = Writer(tokenizer)
    embedding = learner.model.get_input_embeddings().weight.detach().float()
    shape = {**SHAPE, "draft_vocab": embedding.shape[0]}
    bench = small_draft.prepare(embedding, markers(writer), spoken.dialogues, shape, settings.seed, spoken.split())
    print(f"{len(bench.training)} answers to learn from; {settings}", flush=True)
    progress = small_draft.train(bench, settings, cache_folder() / "training" / f"{job.recipe.name}.safetensors", show)
    found = small_draft.measure(bench, MEASURED, DEPTH, STEPS)
    card = {
        "recipe": f"python -m specviz train {job.recipe.name} ({json.dumps(asdict(settings))})",
        "data": f"{len(bench.training)} answers of scenes-vlm about its own scenes, without the scenes",
        "licence": "Apache-2.0, as the target's",
        "spent": f"{progress.seconds / 60:.0f} minutes on {learner.model.device.type}, {progress.tokens} answer tokens",
        "metrics": json.dumps({"tau": round(found.tau, 3), "first": [round(one, 3) for one in found.top1],
                               "five": [round(one, 3) for one in found.top5]}),
        "commit": commit(),
        "tokenizer_hash": tokenizer_hash(tokenizer),
        LEARNED_FROM: target,
    }  # fmt: skip
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    small_draft.export(bench, path, card)
    line = "; ".join(f"{name}: {value}" for name, value in card.items())
    print(f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): {line}", flush=True)
