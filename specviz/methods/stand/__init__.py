"""STAND (Song et al. 2506.04708): an n-gram store of the target's own probabilities, sampled into a tree by Gumbel-Top-K."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specviz.methods.dynamic_tree import acceptance_of
from specviz.methods.registry import IN_DISTRIBUTION, Card, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """``nodes`` 0 sizes the tree by this machine's cost curve; the paper uses 80."""

    nodes: int = number(
        0, 0, 80, "Tree size; 0 chooses the fastest here for the length of the known n-gram, the paper's value is 80.", "nodes"
    )
    rule: str = choice(
        "without_replacement",
        ("without_replacement", "match"),
        "Rejection without replacement, or sample-and-match (equal to the autoregressive run token for token).",
    )
    earlier_trajectories: int = number(
        0, 0, 16, "Decode this many trajectories of the prompt first, drawn independently, to fill the store.", "runs"
    )
    lowest_order: int = number(
        2, 2, 4, "Shortest n-gram looked up when longer ones are unknown; 2 looks up the last token alone.", "tokens"
    )


def warm_up(run: Any, cancel: threading.Event, progress: Callable[[str, float | None], None]) -> str:
    """Decode the earlier trajectories; return a warning if the time did not suffice for all, or ""."""
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
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    from specviz.methods.stand.ngram_store import NgramDrafter, NgramStore

    orders = tuple(range(4, parameters.lowest_order - 1, -1))
    key = ("stand", resources.target.name, resources.prompt_key, orders)
    store = resources.remember(key, lambda: NgramStore(orders))
    trees = parts.load_all(resources.tree_file("stand"))
    if parameters.nodes:
        builder = parts.Sampled(trees[0].best(parameters.nodes))
    else:  # the optimal tree for the longest known n-gram
        curve = resources.cost_curve()
        shapes = {order: tree.best(max(1, parts.best_size(tree.probability, curve))) for order, tree in trees.items()}
        builder = parts.Sampled(lambda context: shapes.get(store.order_at(context.ids), shapes[0]))
    return parts.single_drafter(NgramDrafter(store), builder, acceptance_of(parameters.rule))
