"""STAND (Song et al. 2506.04708): an n-gram store of the target's own probabilities, sampled into a tree by Gumbel-Top-K."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specviz.methods.dynamic_tree import acceptance_of
from specviz.methods.registry import IN_DISTRIBUTION, Card, Paper, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """``nodes`` 0 sizes the tree by this machine's cost curve; the paper uses 80."""

    nodes: int = number(
        0, 0, 80, "Tree size; 0 takes the one that pays off here for an n-gram of that length, the paper's value is 80.", "nodes"
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
        2, 2, 4, "Shortest n-gram looked up when longer ones are unknown; 2 looks at the last token alone.", "tokens"
    )


def warm_up(run: Any, cancel: threading.Event, progress: Callable[[str, float | None], None]) -> str:
    """Decode the earlier trajectories; return a warning if the time did not suffice for all, or ""."""
    from specviz.methods.stand.trajectories import decode

    return decode(run, cancel, progress)


@Card(
    name="stand",
    title="STAND",
    summary="Remembers the target's probabilities per n-gram and samples a tree from them, across tries at one prompt.",
    modality=("text", "vision_language"),
    exactness=IN_DISTRIBUTION.except_with("rule", "match"),
    family="memory",
    claim="60 to 65 % less time than autoregressive decoding on reasoning tasks.",
    differs=(
        "Here the fourth answer to the same question is {quick.stand.value} as fast, with τ from {quick.stand_first.tau} to "
        "{quick.stand.tau} over four answers: they are of 160 tokens, the paper's of thousands: there is less to remember."
    ),
    paper=Paper("Accelerated Test-Time Scaling with Model-Free Speculative Sampling", "Song et al.", 2025, "2506.04708", "EMNLP"),
    look_at="Run the same prompt again with another seed: the store has grown and the tree goes deeper each time.",
    parameters=Parameters,
    warm_up=warm_up,
    pair='`python -m specviz run --method stand --target qwen3-1.7b --temperature 0.6 --prompt "Why?"`: a memory, no drafter to '
    "publish; any target",
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
