"""READER (2508.09072): continuations retrieved from this text and earlier outputs, grafted onto a drafter's tree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specviz.methods.eagle2 import tree_costs
from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, choice, get, number, parts
from specviz.methods.suffix_decoding import REMEMBERED, output_store

BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "recycling": ("token_recycling", {"tree": "published"}),
    "small_draft": ("speculative_sampling", {}),
    "eagle3": ("eagle3", {"depth": 4, "nodes": 48, "rule": "match"}),
}
"""Method and parameters by choice of drafter."""


@dataclass(frozen=True)
class Parameters:
    """The defaults are specviz's own; the paper's budgets were not available."""

    drafter: str = choice(
        "recycling",
        ("none", *BASES),
        "Drafter of the tree to extend: none, Token Recycling, the small draft model, or EAGLE-3.",
    )
    nodes: int = number(0, 0, 128, "Nodes to verify; 0 chooses the fastest number in every round.", "nodes")
    retrieved: int = number(48, 1, 64, "Maximum nodes per retrieved continuation.", "nodes")
    deepened: int = number(4, 0, 16, "Number of the drafter's most likely leaves to look up, besides the root.", "leaves")
    remembered: int = REMEMBERED


@Card(name="reader", exactness=TOKEN_EXACT, family="memory", parameters=Parameters)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    from specviz.methods.reader.merged_tree import Estimates, Merged

    # More permissive than the defaults of LengthRule, because the merged tree is pruned later.
    rule = parts.LengthRule(parameters.retrieved, factor=6.0, offset=1.0, floor=0.05)
    estimates = resources.remember(("estimates", resources.target.name, parameters.drafter), Estimates)
    size = parameters.nodes or tree_costs(resources, None, 1)
    base = _base(parameters.drafter, resources)
    memories = parts.Retrieval(output_store(resources, parameters.remembered), rule)
    inner = base.controller if base else None
    controller = Merged(inner, memories, estimates, size, parameters.deepened)
    base_fields = (base.hidden_state_layers, base.draft_name, base.warnings) if base else ()
    return parts.Composition(controller, parts.Match(), *base_fields)


def _base(name: str, resources: MethodResources) -> parts.Composition | None:
    """Compose the base method ``name``, with more nodes than optimal, because the merged tree is pruned later."""
    from specviz.methods.reader.merged_tree import Ladder

    if name == "none":
        return None
    card = get(BASES[name][0])
    composition = card.compose(card.parameters(**BASES[name][1]), resources)
    if name == "small_draft" and isinstance(composition.controller, parts.SingleDrafter):
        return replace(composition, controller=parts.SingleDrafter(composition.controller.drafter, Ladder(4, 3)))
    return composition
