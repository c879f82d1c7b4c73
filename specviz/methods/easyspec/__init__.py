"""EasySpec (Wu et al. 2502.02493): a draft model with layers in parallel, and one exact pass per round to repair the cache."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import IN_DISTRIBUTION, Card, TextResources, choice, number, parts, switch


@dataclass(frozen=True)
class Parameters:
    """The paper uses N = 4, and reports worse drafts from N = 5 on."""

    group: int = number(4, 1, 8, "N: number of layers with parallel attention; the first and the last layer run alone.", "layers")
    gamma: int = number(5, 1, 16, "γ: draft length.", "tokens")
    calibrated: bool = switch(True, "Repair the approximate cache entries with one exact pass per round.")
    drafter: str = choice(
        "auto",
        ("auto", "small_draft", "copy", "draft"),
        "Draft model. Auto: the draft you named, else the small draft model. Small draft: the small draft model of six layers. "
        "Copy: the target in 8 bits. Draft: the draft you named.",
    )


@Card(
    name="easyspec", exactness=IN_DISTRIBUTION, family="model", parameters=Parameters, weights=("small_draft",), needs_draft=True
)
def compose(parameters: Parameters, resources: TextResources) -> parts.Composition:
    from specviz.methods.easyspec.layer_parallel import GroupedDrafter

    kind = parameters.drafter
    if kind == "auto":
        kind = "draft" if resources.draft_name else "small_draft"
    model = resources.grouped(kind, parameters.group)
    drafter = GroupedDrafter(model, parameters.calibrated)
    return parts.single_drafter(
        drafter, parts.Sampled(parts.chain(parameters.gamma)), parts.Rejection(), draft_name=model.name, warnings=model.warnings
    )
