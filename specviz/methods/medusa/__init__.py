"""Medusa (Cai et al. 2401.10774): parallel heads on the target's last hidden state, each for a different token ahead."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.eagle2 import tree_costs
from specviz.methods.registry import RELAXED, Card, MethodResources, choice, number, parts, published_tree


@dataclass(frozen=True)
class Parameters:
    """Tree and acceptance rule. Typical acceptance keeps a token if p > min(ε, δ·exp(-H)), with the entropy H of p."""

    tree: str = choice(
        "fitted",
        ("published", "fitted"),
        "The published 63 paths, or the paths most often right with the included heads. Other heads use the published paths.",
    )
    nodes: int = number(0, 0, 80, "Nodes of the fitted tree; 0 chooses the fastest number on this machine.", "nodes")
    rule: str = choice(
        "typical",
        ("typical", "match"),
        "Typical acceptance (relaxed above temperature 0), or sample-and-match, which is exact.",
    )
    root: str = choice(
        "sampled",
        ("sampled", "greedy"),
        "Bonus token with typical acceptance: a sample at the run's temperature, or the target's most likely token. Greedy, as "
        "published, gives nearly greedy text at every temperature.",
    )
    epsilon: float = number(0.09, 0.01, 1.0, "ε: probability above which a token is always accepted.", step=0.01)
    delta: float = number(0.3, 0.01, 10.0, "δ: factor on exp(-entropy) in the threshold; the paper uses √ε.", step=0.01)


@Card(name="medusa", exactness=RELAXED.except_with("rule", "match"), family="heads", parameters=Parameters, weights=("medusa",))
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    from specviz.methods.medusa.drafter import ParallelDrafter, Product, paths_of
    from specviz.methods.medusa.typical_acceptance import Typical

    network = resources.drafter_weights("medusa")
    warnings: tuple[str, ...] = ()
    if parameters.tree == "fitted" and resources.uses_shipped_weights:
        tree = parts.CalibratedTree.load(resources.tree_file("medusa"))
        policy = None if parameters.nodes else tree_costs(resources, None, 1).now()
        # One forward runs all heads, so every path counts as one level deep.
        nodes = max(2, policy.fixed([1] * len(tree.paths), tree.probability)) if policy else parameters.nodes
        paths = tree.paths[:nodes]
    else:
        paths = paths_of(published_tree("medusa"))
        if parameters.tree == "fitted":
            warnings = (f"The fitted tree is for the included heads, so {resources.draft_name} uses the published 63 paths.",)
    typical = Typical(parameters.epsilon, parameters.delta, parameters.root == "greedy")
    acceptance = parts.Match() if parameters.rule == "match" else typical
    drafter = ParallelDrafter(network)
    return parts.single_drafter(drafter, Product(paths), acceptance, (network.config.tap,), "medusa", warnings)
