"""DFlash (Chen et al. 2602.06036): a drafter that fills a block of tokens in one pass over the target's hidden states."""

from __future__ import annotations

from specviz.methods.block_fill import FillParameters, block_drafter
from specviz.methods.registry import IN_DISTRIBUTION, Card, MethodResources, parts


@Card(
    name="dflash",
    exactness=IN_DISTRIBUTION.except_with("rule", "match"),
    family="heads",
    parameters=FillParameters,
    weights=("dspark",),
)
def compose(parameters: FillParameters, resources: MethodResources) -> parts.Composition:
    return block_drafter(parameters, resources, "dflash")
