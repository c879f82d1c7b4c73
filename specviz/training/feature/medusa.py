"""Medusa's recipe (Cai et al. 2024, arXiv 2401.10774): the first stage, heads alone on a frozen target.

Head k learns the target's distribution of the token k + 1 after the position it reads: the distribution the target has there once
it has seen the tokens between, averaged over the target's own dialogues. The target's head stays as it is; what precedes it is
learned, from the best linear guess of the target's hidden state there, which has a closed form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.parallel_net import ParallelConfig, ParallelNet, load, save
from specviz.engine.tree import shape_from_counts
from specviz.methods.medusa.cartesian_tree import paths_of
from specviz.methods.medusa.method import PUBLISHED
from specviz.methods.resources import TREES
from specviz.training.common.card import print_card
from specviz.training.common.data import IGNORED
from specviz.training.common.features import DialogueFeatures, FeatureStore, target_distribution
from specviz.training.common.loop import Progress, checkpoint_of, train
from specviz.training.common.parallel import cores, evenly
from specviz.training.feature.recipes import (
    FITTED_DIALOGUES,
    MEASURED_DIALOGUES,
    FeatureTraining,
    Settings,
    TrainInputs,
    at_hand,
    card_of,
    gather,
    learning,
    read_all,
    settings_for,
)
from specviz.training.registry import WEIGHTS, Job, recipes
from specviz.trees.calibrated import CalibratedTree, from_counts

DEPTH_WEIGHT = 0.8
# Shares of the positions that each head learns from. Every one counts as much as it would if all did: the fewer, the
# heavier. Further heads weigh less, cost as much, and can know less, so they get fewer.
SHARES = (1.0, 0.7, 0.5, 0.4)
# A rank past these counts as never found: no tree reaches further down a head's list.
WIDTH = 10
KEPT = 80
RIDGE = 1e-2
HEADS = 4
PEAK = 0.003
# The heads are so quick to train that having the target read new dialogues would take most of the time: with so many
# read already, while they were written or by another recipe, no more are.
ENOUGH = 800
LINEAR_DIALOGUES = 400
TREE_DIALOGUES = 600


def loss(net: ParallelNet, place: Tensor, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """Sum over heads (weighted 0.8^k) and answer tokens of the cross-entropy to the target's distribution, times ``scale``.

    ``place`` [vocab] is a token's place in the draft vocabulary; only answer tokens that have one count. A head reads
    positions from the one before the question's last token on, as it will when drafting; each a share of them. ``dialogue``
    may be several joined.
    """
    distribution, at = target_distribution(net.outputs, dialogue)
    device, spans = distribution.device, dialogue.spans
    inside = (place[dialogue.tokens] != IGNORED).cpu()
    read = torch.cat([torch.arange(max(begin, first - 2), end - 2) for begin, first, end in spans])
    left = torch.cat([end - 2 - torch.arange(max(begin, first - 2), end - 2) for begin, first, end in spans])
    total = torch.zeros((), device=device)
    shared = evenly(net.trunk, dialogue.features[read.to(device), -1])
    for ahead, head in enumerate(net.heads):
        drawn = (left > ahead) & (torch.rand(len(read), generator=generator) < SHARES[ahead])
        counted = drawn.nonzero()[:, 0]
        counted = counted[inside[read[counted] + 2 + ahead]].to(device)
        logits = evenly(partial(F.linear, weight=net.outputs), evenly(head, shared[counted]))
        predicted = at[read.to(device)[counted] + 2 + ahead]
        cross_entropy = F.cross_entropy(logits, distribution[predicted], reduction="sum")
        total = total + cross_entropy * (DEPTH_WEIGHT**ahead / SHARES[ahead])
    return total * scale


@torch.no_grad()
def start(net: ParallelNet, store: FeatureStore, numbers: Sequence[int]) -> None:
    """Let each head's own matrix foresee the target's hidden state linearly: ridge regression over these dialogues."""
    size = net.config.hidden + 1
    grams = torch.zeros(len(net.heads), size, size, dtype=torch.float64)
    cross_grams = torch.zeros(len(net.heads), size, net.config.hidden, dtype=torch.float64)
    for dialogue in store.get(numbers):
        features = dialogue.features[:, -1].double().cpu()
        for ahead in range(len(net.heads)):
            rows = features[max(0, dialogue.first - 2) : len(features) - 2 - ahead]
            x = F.pad(rows, (0, 1), value=1.0)
            grams[ahead] += x.T @ x
            cross_grams[ahead] += x.T @ features[len(features) - 1 - len(rows) : len(features) - 1]
    for head, gram, cross_gram in zip(net.heads, grams, cross_grams, strict=True):
        solution = torch.linalg.solve(gram + RIDGE * torch.diag(gram.diagonal()), cross_gram)
        head[-1].weight.copy_(solution[:-1].T)
        head[-1].bias.copy_(solution[-1])


@torch.inference_mode()
def ranks(net: ParallelNet, store: FeatureStore, numbers: Sequence[int]) -> Tensor:
    """At every position of these answers that has so many tokens left, the rank at which each head had the token that
    followed, WIDTH where it is not among the first: int64 [position, ahead]."""
    rows_of_ranks, heads = [], len(net.heads)
    for dialogue in store.get(numbers):
        rows = torch.arange(max(0, dialogue.first - 2), len(dialogue.tokens) - 1 - heads, device=dialogue.tokens.device)
        if not len(rows):
            continue
        best = net.logits(dialogue.features[rows, -1]).topk(WIDTH).indices
        named = best if net.draft_ids is None else net.draft_ids[best]
        truth = torch.stack([dialogue.tokens[rows + 2 + ahead] for ahead in range(heads)])
        hit = named == truth[..., None]
        rows_of_ranks.append(torch.where(hit.any(-1), hit.int().argmax(-1), WIDTH).T)
    return torch.cat(rows_of_ranks)


def acceptance_figures(ranks: Tensor, paths: Sequence[tuple[int, ...]]) -> dict[str, float]:
    """Of each head's own list: was the truth first (``first1``, ...), among five (``five1``, ...). ``tau``: tokens a step
    with a tree of ``paths`` emits on greedy answers, bonus included; ``chain``: with every head's first token alone."""
    share = {f"first{ahead + 1}": float((ranks[:, ahead] == 0).float().mean()) for ahead in range(ranks.shape[1])}
    share |= {f"five{ahead + 1}": float((ranks[:, ahead] < 5).float().mean()) for ahead in range(ranks.shape[1])}
    alone = (ranks == 0).int().cumprod(1).sum() / len(ranks)
    return {"tau": tau(ranks, paths), "chain": 1 + float(alone), **share}


def tau(ranks: Tensor, paths: Sequence[tuple[int, ...]]) -> float:
    """Mean tokens a step with a tree of ``paths`` emits where the truth had these ranks [position, ahead]."""
    reached = sum(count for path, count in _prefixes(ranks).items() if path in set(paths))
    return 1 + reached / max(1, len(ranks))


def calibrated(ranks: Tensor, source: str) -> CalibratedTree:
    """The rank paths that were right most often, parents before children."""
    tree = from_counts(dict(_prefixes(ranks)), len(ranks), source)
    return CalibratedTree(tree.paths[:KEPT], tree.probability[:KEPT], tree.source)


def _prefixes(ranks: Tensor) -> Counter[tuple[int, ...]]:
    """How often each rank path led along the truth."""
    counts: Counter[tuple[int, ...]] = Counter()
    for row, times in Counter(map(tuple, ranks.tolist())).items():
        for depth, rank in enumerate(row, start=1):
            if rank >= WIDTH:
                break
            counts[row[:depth]] += times
    return counts


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/medusa.safetensors`` and ``assets/trees/medusa.json``."""
    inputs = gather(job)
    settings = settings_for(job, inputs, peak=PEAK)
    net = fresh_net(inputs, settings)
    state = FeatureTraining(
        net, inputs.store, at_hand(inputs, ENOUGH), inputs.judged_on, settings,
        partial(loss, net, inputs.place), lambda numbers: _measure(net, inputs, numbers),
    )  # fmt: skip
    print(f"{len(state.training)} dialogues to learn from; {settings}", flush=True)
    progress = train(state, checkpoint_of(job.recipe.name))
    finish(job, inputs, net, settings, progress, learning(state, progress))


def fresh_net(inputs: TrainInputs, settings: Settings) -> ParallelNet:
    """Heads that guess linearly."""
    target = inputs.assets.target
    head = target.model.get_output_embeddings().weight.detach().float()
    config = ParallelConfig(head.shape[1], HEADS, inputs.store.taps[-1], blocks=0, trunk=1, turned=True)
    net = ParallelNet(config, head, inputs.draft_ids).to(inputs.device)
    read = [number for number in inputs.training if inputs.store.has(number)]
    chosen = read[:LINEAR_DIALOGUES] or inputs.training[:FITTED_DIALOGUES]
    read_all(inputs.store, chosen, settings.workers)
    start(net, inputs.store, chosen)
    return net


def _measure(net: ParallelNet, inputs: TrainInputs, numbers: Sequence[int]) -> dict[str, float]:
    return acceptance_figures(ranks(net, inputs.store, numbers), paths_of(shape_from_counts(PUBLISHED)))


def finish(
    job: Job, inputs: TrainInputs, net: ParallelNet, settings: Settings, progress: Progress, told: Mapping[str, Any]
) -> None:
    """Fit the tree, measure, and write both files."""
    tree, figures = fitted(inputs, net, settings.workers)
    print("held-out:", "  ".join(f"{key} {value:.4f}" for key, value in figures.items()), flush=True)
    TREES.mkdir(parents=True, exist_ok=True)
    tree.save(TREES / f"{job.recipe.name}.json")
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    read = f"{sum(inputs.store.known(number) for number in inputs.training)} dialogues read"
    facts = card_of(job, inputs, settings, progress, {**figures, **told}, read)
    save(net, path, facts)
    print_card(path, facts)


def fitted(inputs: TrainInputs, net: ParallelNet, workers: int) -> tuple[CalibratedTree, dict[str, float]]:
    """The tree, and how well the heads foresee the target with it and with the published one.

    Both come from greedy answers that were kept out of training, and not from the same ones: on what they learned from the
    heads are right far more often than anywhere else, so a tree fitted there believes in long paths, and is made too large.
    """
    greedy = inputs.judged_on[: MEASURED_DIALOGUES + TREE_DIALOGUES]
    cut = min(MEASURED_DIALOGUES, len(greedy) // 2)
    measured, chosen = greedy[:cut], greedy[cut:]
    read_all(inputs.store, greedy, workers)
    chosen_ranks, measured_ranks = ranks(net, inputs.store, chosen), ranks(net, inputs.store, measured)
    name = inputs.assets.target.name
    tree = calibrated(chosen_ranks, f"{len(chosen)} held-out greedy answers of {name}, {len(chosen_ranks)} places")
    figures = acceptance_figures(measured_ranks, paths_of(shape_from_counts(PUBLISHED)))
    return tree, figures | {f"tau_{size}": tau(measured_ranks, tree.paths[:size]) for size in (8, 16, 32)}


def refit(report: Callable[[str], None] = print) -> Path:
    """Fit the tree to the heads that ship, which stay as they are; the path of its file."""
    inputs = gather(Job(recipes()["medusa"], "auto", 0.0, False))
    head = inputs.assets.target.model.get_output_embeddings().weight.detach().float()
    net = load(WEIGHTS / "medusa.safetensors", head, torch.float32, inputs.device)
    tree, figures = fitted(inputs, net, cores())
    report("held-out: " + "  ".join(f"{key} {value:.4f}" for key, value in figures.items()))
    path = TREES / "medusa.json"
    tree.save(path)
    return path
