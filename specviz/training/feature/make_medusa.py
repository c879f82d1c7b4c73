"""``train medusa``: target and dialogues in, drafting heads with their card and their tree out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from specviz.drafters.networks.parallel_net import ParallelConfig, ParallelNet, load, save
from specviz.engine.tree import shape_from_counts
from specviz.methods.medusa.cartesian_tree import paths_of
from specviz.methods.medusa.method import PUBLISHED
from specviz.methods.resources import TREES
from specviz.training.common import data, trainer
from specviz.training.common.commit import commit
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.trainer import cores
from specviz.training.feature import medusa
from specviz.training.feature import recipes as feature_job
from specviz.training.feature.acceptance_eval import greedy_only
from specviz.training.feature.feature_training import Bench, Settings, learned, places_in, train
from specviz.training.registry import WEIGHTS, Job, recipes
from specviz.trees.calibrated import CalibratedTree

HEADS = 4
PEAK = 0.003
# The heads are so quick to train that having the target read new dialogues would take most of the time: with so many
# read already, while they were written or by another recipe, no more are.
ENOUGH = 800
FITTED_DIALOGUES = 400


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/medusa.safetensors`` and ``assets/trees/medusa.json``."""
    stuff = feature_job.gather(job)
    settings = feature_job.settings_for(job, stuff, peak=PEAK)
    net = fresh_net(stuff, settings)
    bench = Bench(
        net, stuff.store, feature_job.at_hand(stuff, ENOUGH), greedy_only(stuff.store, stuff.held_out), Optimizer(learned(net)),
        loss=partial(medusa.loss, net, places_in(stuff.draft_ids, stuff.material.embedding.shape[0])),
        measure=lambda numbers: _measure(net, stuff, numbers),
    )  # fmt: skip
    print(f"{len(bench.training)} dialogues to learn from; {settings}", flush=True)
    progress = train(bench, settings, feature_job.checkpoint_of(job), feature_job.show)
    finish(job, stuff, net, settings, progress)


def fresh_net(stuff: feature_job.Stuff, settings: Settings) -> ParallelNet:
    """Heads that guess linearly."""
    target = stuff.material.target
    head = target.model.get_output_embeddings().weight.detach().float()
    config = ParallelConfig(head.shape[1], HEADS, stuff.store.taps[-1], blocks=0, trunk=1, turned=True)
    net = ParallelNet(config, head, stuff.draft_ids).to(stuff.device)
    read = [number for number in stuff.training if stuff.store.has(number)]
    chosen = read[:FITTED_DIALOGUES] or stuff.training[: feature_job.FITTED_DIALOGUES]
    feature_job.read_all(stuff.store, chosen, settings.workers)
    medusa.start(net, stuff.store, chosen)
    return net


def _measure(net: ParallelNet, stuff: feature_job.Stuff, numbers: Sequence[int]) -> dict[str, float]:
    return medusa.foresight(medusa.ranks(net, stuff.store, numbers), paths_of(shape_from_counts(PUBLISHED)))


def finish(job: Job, stuff: feature_job.Stuff, net: ParallelNet, settings: Settings, progress: trainer.Progress) -> None:
    """Fit the tree, measure, and write both files."""
    tree, found = fitted(stuff, net, settings.workers)
    print("held-out:", "  ".join(f"{key} {value:.4f}" for key, value in found.items()), flush=True)
    TREES.mkdir(parents=True, exist_ok=True)
    tree.save(TREES / f"{job.recipe.name}.json")
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    card = card_of(job, stuff, found, settings, progress)
    save(net, path, card)
    print(
        f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): " + "; ".join(f"{k}: {v}" for k, v in card.items()),
        flush=True,
    )


def fitted(stuff: feature_job.Stuff, net: ParallelNet, workers: int) -> tuple[CalibratedTree, dict[str, float]]:
    """The tree, and how well the heads foresee the target with it and with the published one.

    Both come from greedy answers that were kept out of training, and not from the same ones: on what they learned from the
    heads are right far more often than anywhere else, so a tree fitted there believes in long paths, and is made too large.
    """
    greedy = greedy_only(stuff.store, stuff.held_out)
    cut = min(feature_job.MEASURED_DIALOGUES, len(greedy) // 2)
    measured, chosen = greedy[:cut], greedy[cut:]
    feature_job.read_all(stuff.store, greedy, workers)
    places, held = medusa.ranks(net, stuff.store, chosen), medusa.ranks(net, stuff.store, measured)
    name = stuff.material.target.name
    tree = medusa.calibrated(places, f"{len(chosen)} held-out greedy answers of {name}, {len(places)} places")
    found = medusa.foresight(held, paths_of(shape_from_counts(PUBLISHED)))
    return tree, found | {f"tau_{size}": medusa.tau(held, tree.paths[:size]) for size in (8, 16, 32)}


def refit(report: Callable[[str], None] = print) -> Path:
    """Fit the tree to the heads that ship, which stay as they are; the path of its file."""
    stuff = feature_job.gather(Job(recipes()["medusa"], "auto", 0.0, False))
    head = stuff.material.target.model.get_output_embeddings().weight.detach().float()
    net = load(WEIGHTS / "medusa.safetensors", head, torch.float32, stuff.device)
    tree, found = fitted(stuff, net, cores())
    report("held-out: " + "  ".join(f"{key} {value:.4f}" for key, value in found.items()))
    path = TREES / "medusa.json"
    tree.save(path)
    return path


def card_of(
    job: Job, stuff: feature_job.Stuff, found: Mapping[str, float], settings: Settings, progress: trainer.Progress
) -> dict[str, str]:
    """The model card that travels inside the file."""
    digest = hashlib.sha256(stuff.file.read_bytes()).hexdigest()[:16]
    return {
        "recipe": f"python -m specviz train {job.recipe.name} ({json.dumps(asdict(settings))})",
        "data": f"{stuff.file.name} sha256 {digest}, one in {data.HELD_OUT_EVERY} kept out; "
        f"{sum(stuff.store.known(number) for number in stuff.training)} dialogues read",
        "licence": "Apache-2.0, as the target's",
        "spent": progress.spent(stuff.device.type),
        "metrics": json.dumps({name: round(value, 4) for name, value in found.items()}),
        "commit": commit(),
        "tokenizer_hash": stuff.material.target.tokenizer_hash,
    }
