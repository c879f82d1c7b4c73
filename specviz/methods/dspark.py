"""DSpark (Cheng et al. 2607.05147): a block drafter that corrects the block token by token and predicts the acceptance."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.block_fill import FillParameters, block_drafter
from specviz.methods.registry import IN_DISTRIBUTION, Card, MethodResources, number, parts


@dataclass(frozen=True)
class Parameters(FillParameters):
    """The paper uses blocks of 7 and, by default, no threshold."""

    threshold: float = number(
        0.0, 0.0, 1.0,
        "Predicted acceptance rate below which a chain ends; 0 chooses the fastest length in every round.", step=0.05,
    )  # fmt: skip


@Card(
    name="dspark",
    exactness=IN_DISTRIBUTION.except_with("rule", "match"),
    family="heads",
    parameters=Parameters,
    weights=("dspark",),
)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    return block_drafter(parameters, resources, "dspark", parameters.threshold)
