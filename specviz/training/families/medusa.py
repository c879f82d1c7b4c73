"""``train medusa`` (Cai et al., arXiv 2401.10774), stage 1: heads on a frozen target.

Head k learns to predict the target's distribution of the (k + 1)-th token after the position that it reads. The target's head
stays frozen; the layers below are trained, starting from the best linear prediction of the later hidden state.
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
from specviz.methods.registry import TREES, published_tree
from specviz.models.device import cores
from specviz.training import acceptance, driver
from specviz.training.data import IGNORED
from specviz.training.families import feature
from specviz.training.families.feature import FeatureTraining, TrainInputs
from specviz.training.features import FITTED_DIALOGUES, DialogueFeatures, FeatureStore, target_distribution
from specviz.training.parallel import apply_padded
from specviz.training.registry import WEIGHTS, Job, recipes

DEPTH_WEIGHT = 0.8
# Share of the positions that each head learns from; the loss is divided by the share. Later heads weigh less but cost as much per
# position, so they get fewer positions.
SHARES = (1.0, 0.7, 0.5, 0.4)
# Number of top tokens per head that are ranked; no tree uses more.
WIDTH = 10
KEPT = 80
RIDGE = 1e-2
HEADS = 4
LINEAR_DIALOGUES = 400
TREE_DIALOGUES = 600


def loss(net: ParallelNet, place: Tensor, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """Return the cross-entropy to the target's distribution, summed over heads (weights 0.8^k) and answer tokens, times
    ``scale``.

    ``place`` [vocab]: index in the draft vocabulary, or IGNORED. Only answer tokens inside the draft vocabulary count.
    ``dialogue``: one dialogue or several joined ones.
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
    """Initialise each head to predict the later hidden state, by ridge regression on the dialogues ``numbers``."""
    texts = [dialogue.features[max(0, dialogue.first - 2) :, -1].double().cpu() for dialogue in store.get(numbers)]
    head: Any
    for ahead, head in enumerate(net.heads):
        x = F.pad(torch.cat([text[: len(text) - 2 - ahead] for text in texts]), (0, 1), value=1.0)
        gram, outputs = x.T @ x, torch.cat([text[1 + ahead : -1] for text in texts])
        solution = torch.linalg.solve(gram + RIDGE * torch.diag(gram.diagonal()), x.T @ outputs)
        head[-1].weight.copy_(solution[:-1].T)
        head[-1].bias.copy_(solution[-1])


def ranks(net: ParallelNet, store: FeatureStore, numbers: Sequence[int]) -> Tensor:
    """Return the rank of the true token by each head, int64 [position, ahead]; WIDTH for ranks of WIDTH or more.

    Positions are those of the answers with a token left for every head.
    """
    draft = lambda dialogue, starts: net.logits(dialogue.features[starts, -1])  # noqa: E731
    return acceptance.chain_ranks(store.get(numbers), len(net.heads), draft, net.draft_ids, WIDTH)


def metrics(ranks: Tensor, paths: Sequence[tuple[int, ...]] = paths_of(published_tree("medusa"))) -> dict[str, float]:
    """Return the acceptance on greedy answers: ``tau`` with a tree of ``paths``, ``chain`` with the top token of every head."""
    found = acceptance.metrics(ranks, paths, alone=True)
    return {**found, "tau": found.pop("tree"), "chain": found["tau"]}


class MedusaTraining(FeatureTraining):
    """Training of the heads."""

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
            partial(loss, net, inputs.place), lambda numbers: metrics(ranks(net, store, numbers)),
        )  # fmt: skip

    def metrics(self) -> dict[str, Any]:
        """Fit and write the tree; return the metrics for the card."""
        tree, found = fit_tree(self.inputs, self.net, self.settings.workers)
        TREES.mkdir(parents=True, exist_ok=True)
        tree.save(TREES / "medusa.json")
        return {**super().metrics(), **found}


def make(job: Job) -> None:
    """Train, measure on held-out answers, and write ``assets/weights/medusa.safetensors`` and ``assets/trees/medusa.json``."""
    inputs = feature.gather(job)
    state = MedusaTraining(inputs, driver.settings_for(job, inputs.device))
    feature.run(job, inputs, state, state.net.save)


def fit_tree(inputs: TrainInputs, net: ParallelNet, workers: int) -> tuple[CalibratedTree, dict[str, float]]:
    """Return a fitted tree, and metrics with this tree and with the published one.

    Tree and metrics use different held-out greedy answers. On training answers, heads are right too often, so a tree fitted to
    them would overrate long paths.
    """
    greedy = inputs.evaluation_set[: feature.MEASURED_DIALOGUES + TREE_DIALOGUES]
    cut = min(feature.MEASURED_DIALOGUES, len(greedy) // 2)
    feature.read_all(inputs.store, greedy, workers)
    chosen, measured = (ranks(net, inputs.store, numbers) for numbers in (greedy[cut:], greedy[:cut]))
    source = f"{len(greedy) - cut} held-out greedy answers of {inputs.assets.target.name}, {len(chosen)} places"
    # The rank paths that are most often right, parents before children.
    whole = from_counts(dict(acceptance.path_counts(chosen, WIDTH)), len(chosen), source)
    tree = CalibratedTree(whole.paths[:KEPT], whole.probability[:KEPT], source)
    sizes = {f"tau_{size}": acceptance.metrics(measured, tree.paths[:size])["tree"] for size in (8, 16, 32)}
    return tree, {**metrics(measured), **sizes}


def refit(report: Callable[[str], None] = print) -> Path:
    """Fit the tree to the shipped heads and return the path of the tree's file."""
    inputs = feature.gather(Job(recipes()["medusa"], "auto", 0.0, False))
    net = ParallelNet.load(WEIGHTS / "medusa.safetensors", (inputs.head,), torch.float32, inputs.device)
    tree, found = fit_tree(inputs, net, cores())
    report("held-out: " + "  ".join(f"{key} {value:.4f}" for key, value in found.items()))
    path = TREES / "medusa.json"
    tree.save(path)
    return path
