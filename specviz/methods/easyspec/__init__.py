"""EasySpec (Wu et al. 2502.02493): an ordinary small draft model whose layers' attention runs in parallel, repaired once per
round."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import IN_DISTRIBUTION, Card, choice, number, parts, switch


@dataclass(frozen=True)
class Parameters:
    """The paper uses N = 4; with N = 5 its drafts are already worse."""

    group: int = number(4, 1, 8, "N: layers whose attention shares one input; the first and last layer run alone.", "layers")
    gamma: int = number(5, 1, 16, "γ: how many tokens the draft model writes before the target verifies.", "tokens")
    calibrated: bool = switch(True, "Repair the cache's fuzzy entries with one exact pass each round; off shows their effect.")
    drafter: str = choice(
        "auto",
        ("auto", "small_draft", "copy", "draft"),
        "Which layers: the small draft model's six, all of the target's in 8 bits, or those of the draft you named.",
    )


@Card(
    name="easyspec", exactness=IN_DISTRIBUTION, family="model", parameters=Parameters, weights=("small_draft",), needs_draft=True
)
def compose(parameters: Parameters, resources: parts.TextResources) -> parts.Composition:
    from specviz.methods.easyspec.layer_parallel import GroupedDrafter

    kind = parameters.drafter
    if kind == "auto":
        kind = "draft" if resources.draft_name else "small_draft"
    model = resources.grouped(kind, parameters.group)
    drafter = GroupedDrafter(model, parameters.calibrated)
    return parts.single_drafter(
        drafter, parts.Sampled(parts.chain(parameters.gamma)), parts.Rejection(), draft_name=model.name, warnings=model.warnings
    )
