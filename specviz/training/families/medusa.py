"""Medusa's recipe (Cai et al. 2024, arXiv 2401.10774): the first stage, heads alone on a frozen target.

Head k learns the target's distribution of the (k + 1)-th token after the position it reads, averaged over the tokens between
as they occur in the target's own dialogues. The target's head stays frozen; the layers before it are learned. They start from
the best linear prediction of the target's hidden state there, which has a closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.parallel_net import ParallelConfig, ParallelNet
from specviz.drafting.trees.calibrated import CalibratedTree, from_counts
from specviz.methods.medusa.drafter import paths_of
from specviz.methods.resources import TREES, published_tree
from specviz.models.device import cores
from specviz.training import acceptance, driver
from specviz.training.data import IGNORED
from specviz.training.families import feature
from specviz.training.families.feature import FeatureTraining, TrainInputs
from specviz.training.features import FITTED_DIALOGUES, DialogueFeatures, FeatureStore, target_distribution
from specviz.training.parallel import apply_padded
from specviz.training.registry import WEIGHTS, Job, recipes

DEPTH_WEIGHT = 0.8
# Shares of the positions that each head learns from. Their weight grows as their share falls, so that each head counts as if it
# read all. Later heads weigh less and can predict less but cost as much, so they get fewer positions.
SHARES = (1.0, 0.7, 0.5, 0.4)
# The number of a head's tokens ranked; a token beyond them counts as not found, as no tree uses more.
WIDTH = 10
KEPT = 80
RIDGE = 1e-2
HEADS = 4
LINEAR_DIALOGUES = 400
TREE_DIALOGUES = 600


def loss(net: ParallelNet, place: Tensor, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """Sum over heads (weighted 0.8^k) and answer tokens of the cross-entropy to the target's distribution, times ``scale``.

    ``place`` [vocab] is a token's index in the draft vocabulary; only answer tokens inside it count. Each head reads a share of
    the positions, starting one before the question's last token, as in drafting. ``dialogue`` may be several joined dialogues.
    """
    distribution, at = target_distribution(net.outputs, dialogue)
    device, spans = distribution.device, dialogue.spans
    inside = (place[dialogue.tokens] != IGNORED).cpu()
    read = torch.cat([torch.arange(max(begin, first - 2), end - 2) for begin, first, end in spans])
    left = torch.cat([end - 2 - torch.arange(max(begin, first - 2), end - 2) for begin, first, end in spans])
    total = torch.zeros((), device=device)
    shared = apply_padded(net.trunk, dialogue.features[read.to(device), -1])
    for ahead, head in enumerate(net.heads):
        drawn = (left > ahead) & (torch.rand(len(read), generator=generator) < SHARES[ahead])
        counted = drawn.nonzero()[:, 0]
        counted = counted[inside[read[counted] + 2 + ahead]].to(device)
        logits = apply_padded(partial(F.linear, weight=net.outputs), apply_padded(head, shared[counted]))
        predicted = at[read.to(device)[counted] + 2 + ahead]
        cross_entropy = F.cross_entropy(logits, distribution[predicted], reduction="sum")
        total = total + cross_entropy * (DEPTH_WEIGHT**ahead / SHARES[ahead])
    return total * scale


@torch.no_grad()
def start(net: ParallelNet, store: FeatureStore, numbers: Sequence[int]) -> None:
    """Set each head's own matrix to predict the target's hidden state linearly, by ridge regression over these dialogues."""
    texts = [dialogue.features[max(0, dialogue.first - 2) :, -1].double().cpu() for dialogue in store.get(numbers)]
    head: Any
    for ahead, head in enumerate(net.heads):
        x = F.pad(torch.cat([text[: len(text) - 2 - ahead] for text in texts]), (0, 1), value=1.0)
        gram, outputs = x.T @ x, torch.cat([text[1 + ahead : -1] for text in texts])
        solution = torch.linalg.solve(gram + RIDGE * torch.diag(gram.diagonal()), x.T @ outputs)
        head[-1].weight.copy_(solution[:-1].T)
        head[-1].bias.copy_(solution[-1])


def ranks(net: ParallelNet, store: FeatureStore, numbers: Sequence[int]) -> Tensor:
    """Return each head's rank of the true token, int64 [position, ahead], or WIDTH if it is not among the first WIDTH.

    Positions are those in these answers that leave a token for every head.
    """
    draft = lambda dialogue, starts: net.logits(dialogue.features[starts, -1])  # noqa: E731
    return acceptance.chain_ranks(store.get(numbers), len(net.heads), draft, net.draft_ids, WIDTH)


def figures(ranks: Tensor, paths: Sequence[tuple[int, ...]] = paths_of(published_tree("medusa"))) -> dict[str, float]:
    """Acceptance on greedy answers with a tree of ``paths`` as ``tau``, and with every head's top token only as ``chain``."""
    found = acceptance.figures(ranks, paths, alone=True)
    return {**found, "tau": found.pop("tree"), "chain": found["tau"]}


def calibrate_tree(ranks: Tensor, source: str) -> CalibratedTree:
    """The tree of the rank paths that were right most often, parents before children."""
    tree = from_counts(dict(acceptance.path_counts(ranks, WIDTH)), len(ranks), source)
    return CalibratedTree(tree.paths[:KEPT], tree.probability[:KEPT], tree.source)


class MedusaTraining(FeatureTraining):
    """Training of the heads from the best linear prediction."""

    net: ParallelNet

    def __init__(self, inputs: TrainInputs, settings: driver.Schedule) -> None:
        self.inputs, store = inputs, inputs.store
        config = ParallelConfig(inputs.head.shape[1], HEADS, store.taps[-1], blocks=0, trunk=1, turned=True)
        net = ParallelNet(config, inputs.head, inputs.draft_ids).to(inputs.device)
        read = [number for number in inputs.training if store.has(number)]
        chosen = read[:LINEAR_DIALOGUES] or inputs.training[:FITTED_DIALOGUES]
        feature.read_all(store, chosen, settings.workers)
        start(net, store, chosen)
        super().__init__(
            net, store, inputs.training, inputs.evaluation_set, settings,
            partial(loss, net, inputs.place), lambda numbers: figures(ranks(net, store, numbers)),
        )  # fmt: skip

    def figures(self) -> dict[str, Any]:
        """Fit and write the tree; return its figures beside a milestone's."""
        tree, found = fit_tree(self.inputs, self.net, self.settings.workers)
        TREES.mkdir(parents=True, exist_ok=True)
        tree.save(TREES / "medusa.json")
        return {**super().figures(), **found}


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/medusa.safetensors`` and ``assets/trees/medusa.json``."""
    inputs = feature.gather(job)
    state = MedusaTraining(inputs, driver.settings_for(job, inputs.device))
    feature.run(job, inputs, state, state.net.save)


def fit_tree(inputs: TrainInputs, net: ParallelNet, workers: int) -> tuple[CalibratedTree, dict[str, float]]:
    """Fit the tree and return it with the heads' acceptance, both with this tree and with the published one.

    Tree and figures come from different greedy answers, all held out. On training answers the heads are right far more often
    than elsewhere, so a tree fitted there would overrate long paths and be too large.
    """
    greedy = inputs.evaluation_set[: feature.MEASURED_DIALOGUES + TREE_DIALOGUES]
    cut = min(feature.MEASURED_DIALOGUES, len(greedy) // 2)
    feature.read_all(inputs.store, greedy, workers)
    chosen, measured = (ranks(net, inputs.store, numbers) for numbers in (greedy[cut:], greedy[:cut]))
    source = f"{len(greedy) - cut} held-out greedy answers of {inputs.assets.target.name}, {len(chosen)} places"
    tree = calibrate_tree(chosen, source)
    sizes = {f"tau_{size}": acceptance.figures(measured, tree.paths[:size])["tree"] for size in (8, 16, 32)}
    return tree, {**figures(measured), **sizes}


def refit(report: Callable[[str], None] = print) -> Path:
    """Fit the tree to the shipped heads and return the path of its file; the heads do not change."""
    inputs = feature.gather(Job(recipes()["medusa"], "auto", 0.0, False))
    net = ParallelNet.load(WEIGHTS / "medusa.safetensors", (inputs.head,), torch.float32, inputs.device)
    tree, found = fit_tree(inputs, net, cores())
    report("held-out: " + "  ".join(f"{key} {value:.4f}" for key, value in found.items()))
    path = TREES / "medusa.json"
    tree.save(path)
    return path
