"""Autoregressive decoding: one token per target pass. The baseline of every other method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.methods.parameters import NoParameters
from specviz.methods.registry import TOKEN_EXACT, Card

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import MethodResources


@Card(
    name="autoregressive",
    title="Autoregressive",
    summary="No draft: the target writes one token a pass.",
    modality=("text", "vision_language", "image"),
    exactness=TOKEN_EXACT,
    family="none",
    paper=None,
    look_at="Every step is a root and a bonus token: one pass, one token. This is the lane the others are measured against.",
    parameters=NoParameters,
)
def compose(parameters: NoParameters, resources: MethodResources) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.drafting.runtimes.null import NullDrafter
    from specviz.drafting.trees.root import RootOnly
    from specviz.engine.controller import single_drafter

    return single_drafter(NullDrafter(), RootOnly(), Match())
