"""``train medusa``: target and dialogues in, drafting heads with their card and their tree out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from specviz.drafters.networks.parallel_net import ParallelConfig, ParallelNet, load, save
from specviz.engine.tree import shape_from_counts
from specviz.methods.medusa.cartesian_tree import paths_of
from specviz.methods.medusa.method import PUBLISHED
from specviz.methods.resources import TREES
from specviz.training.common.card import print_card
from specviz.training.common.loop import Progress, checkpoint_of, train
from specviz.training.common.parallel import cores
from specviz.training.feature import medusa
from specviz.training.feature.acceptance_eval import greedy_only
from specviz.training.feature.feature_training import FeatureTraining, Settings
from specviz.training.feature.recipes import (
    FITTED_DIALOGUES,
    MEASURED_DIALOGUES,
    TrainInputs,
    at_hand,
    card_of,
    gather,
    read_all,
    settings_for,
)
from specviz.training.registry import WEIGHTS, Job, recipes
from specviz.trees.calibrated import CalibratedTree

HEADS = 4
PEAK = 0.003
# The heads are so quick to train that having the target read new dialogues would take most of the time: with so many
# read already, while they were written or by another recipe, no more are.
ENOUGH = 800
LINEAR_DIALOGUES = 400


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/medusa.safetensors`` and ``assets/trees/medusa.json``."""
    inputs = gather(job)
    settings = settings_for(job, inputs, peak=PEAK)
    net = fresh_net(inputs, settings)
    state = FeatureTraining(
        net, inputs.store, at_hand(inputs, ENOUGH), greedy_only(inputs.store, inputs.held_out), settings,
        partial(medusa.loss, net, inputs.place), lambda numbers: _measure(net, inputs, numbers),
    )  # fmt: skip
    print(f"{len(state.training)} dialogues to learn from; {settings}", flush=True)
    finish(job, inputs, net, settings, train(state, checkpoint_of(job.recipe.name)))


def fresh_net(inputs: TrainInputs, settings: Settings) -> ParallelNet:
    """Heads that guess linearly."""
    target = inputs.assets.target
    head = target.model.get_output_embeddings().weight.detach().float()
    config = ParallelConfig(head.shape[1], HEADS, inputs.store.taps[-1], blocks=0, trunk=1, turned=True)
    net = ParallelNet(config, head, inputs.draft_ids).to(inputs.device)
    read = [number for number in inputs.training if inputs.store.has(number)]
    chosen = read[:LINEAR_DIALOGUES] or inputs.training[:FITTED_DIALOGUES]
    read_all(inputs.store, chosen, settings.workers)
    medusa.start(net, inputs.store, chosen)
    return net


def _measure(net: ParallelNet, inputs: TrainInputs, numbers: Sequence[int]) -> dict[str, float]:
    return medusa.foresight(medusa.ranks(net, inputs.store, numbers), paths_of(shape_from_counts(PUBLISHED)))


def finish(job: Job, inputs: TrainInputs, net: ParallelNet, settings: Settings, progress: Progress) -> None:
    """Fit the tree, measure, and write both files."""
    tree, found = fitted(inputs, net, settings.workers)
    print("held-out:", "  ".join(f"{key} {value:.4f}" for key, value in found.items()), flush=True)
    TREES.mkdir(parents=True, exist_ok=True)
    tree.save(TREES / f"{job.recipe.name}.json")
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    read = f"{sum(inputs.store.known(number) for number in inputs.training)} dialogues read"
    facts = card_of(job, inputs, settings, progress, found, read)
    save(net, path, facts)
    print_card(path, facts)


def fitted(inputs: TrainInputs, net: ParallelNet, workers: int) -> tuple[CalibratedTree, dict[str, float]]:
    """The tree, and how well the heads foresee the target with it and with the published one.

    Both come from greedy answers that were kept out of training, and not from the same ones: on what they learned from the
    heads are right far more often than anywhere else, so a tree fitted there believes in long paths, and is made too large.
    """
    greedy = greedy_only(inputs.store, inputs.held_out)
    cut = min(MEASURED_DIALOGUES, len(greedy) // 2)
    measured, chosen = greedy[:cut], greedy[cut:]
    read_all(inputs.store, greedy, workers)
    places, held = medusa.ranks(net, inputs.store, chosen), medusa.ranks(net, inputs.store, measured)
    name = inputs.assets.target.name
    tree = medusa.calibrated(places, f"{len(chosen)} held-out greedy answers of {name}, {len(places)} places")
    found = medusa.foresight(held, paths_of(shape_from_counts(PUBLISHED)))
    return tree, found | {f"tau_{size}": medusa.tau(held, tree.paths[:size]) for size in (8, 16, 32)}


def refit(report: Callable[[str], None] = print) -> Path:
    """Fit the tree to the heads that ship, which stay as they are; the path of its file."""
    inputs = gather(Job(recipes()["medusa"], "auto", 0.0, False))
    head = inputs.assets.target.model.get_output_embeddings().weight.detach().float()
    net = load(WEIGHTS / "medusa.safetensors", head, torch.float32, inputs.device)
    tree, found = fitted(inputs, net, cores())
    report("held-out: " + "  ".join(f"{key} {value:.4f}" for key, value in found.items()))
    path = TREES / "medusa.json"
    tree.save(path)
    return path
