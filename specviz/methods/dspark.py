"""DSpark (Cheng et al. 2607.05147): a block corrected token by token, and cut by a prediction of its acceptance."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.block_fill import FillParameters, block_drafter
from specviz.methods.registry import IN_DISTRIBUTION, Card, number, parts


@dataclass(frozen=True)
class Parameters(FillParameters):
    """The paper drafts chains through blocks of 7, without a threshold by default."""

    threshold: float = number(
        0.0, 0.0, 1.0,
        "Chains end before the first slot whose predicted acceptance rate is lower; 0: before the first one that does not pay "
        "off on this machine.", step=0.05,
    )  # fmt: skip


@Card(
    name="dspark",
    exactness=IN_DISTRIBUTION.except_with("rule", "match"),
    family="heads",
    modality=(),
    published=("text",),
    parameters=Parameters,
    needs_draft=True,
)
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    return block_drafter(parameters, resources, "dspark", parameters.threshold)
