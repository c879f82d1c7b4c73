"""STAND (Song et al. 2506.04708): trees sampled by Gumbel-top-k from an n-gram store of the target's probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specviz.methods.eagle2 import acceptance_of
from specviz.methods.registry import IN_DISTRIBUTION, Card, MethodResources, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """Tree, acceptance rule, and contents of the n-gram store."""

    nodes: int = number(
        0, 0, 80, "Nodes of the tree; 0 chooses the fastest number for the known n-gram; the paper uses 80.", "nodes"
    )
    rule: str = choice(
        "without_replacement",
        ("without_replacement", "match"),
        "Rejection sampling without replacement, or sample-and-match (same text as the autoregressive run).",
    )
    earlier_trajectories: int = number(
        0, 0, 16, "Number of independent trajectories to decode before the run, to fill the store.", "runs"
    )
    lowest_order: int = number(2, 2, 4, "Order of the shortest n-gram to look up; 2 uses only the last token.", "tokens")


def warm_up(run: Any, cancel: Any, progress: Callable[[str, float | None], None]) -> str:
    """Decode earlier trajectories. Returns a warning if there was not enough time for all, else ""."""
    from specviz.methods.stand.trajectories import decode

    return decode(run, cancel, progress)


@Card(
    name="stand",
    modality=("text", "vision_language"),
    exactness=IN_DISTRIBUTION.except_with("rule", "match"),
    family="memory",
    parameters=Parameters,
    warm_up=warm_up,
)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    from specviz.methods.stand.ngram_store import NgramDrafter, NgramStore

    orders = tuple(range(4, parameters.lowest_order - 1, -1))
    key = ("stand", resources.target.name, resources.prompt_key, orders)
    store = resources.remember(key, lambda: NgramStore(orders))
    trees = parts.load_all(resources.tree_file("stand"))
    if parameters.nodes:
        builder = parts.Sampled(trees[0].best(parameters.nodes))
    else:  # the fastest tree for the order of the longest known n-gram
        curve = resources.cost_curve()
        shapes = {order: tree.best(max(1, parts.best_size(tree.probability, curve))) for order, tree in trees.items()}
        builder = parts.Sampled(lambda context: shapes.get(store.order_at(context.ids), shapes[0]))
    return parts.single_drafter(NgramDrafter(store), builder, acceptance_of(parameters.rule))
