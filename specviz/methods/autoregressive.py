"""Autoregressive decoding: one token a target pass. The run every other method is held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.methods.parameters import NoParameters
from specviz.methods.registry import method

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import MethodResources


@method(
    name="autoregressive",
    title="Autoregressive",
    summary="No draft: the target writes one token a pass.",
    modality=("text", "vision_language", "image"),
    exactness="exact",
    token_exact=True,
    family="none",
    paper=None,
    look_at="Every step is a root and a bonus token: one pass, one token. This is the lane the others are measured against.",
)
def compose(parameters: NoParameters, parts: MethodResources) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.drafting.runtimes.null import NullDrafter
    from specviz.drafting.trees.root import RootOnly
    from specviz.engine.controller import SingleDrafter
    from specviz.engine.interfaces import Composition

    return Composition(SingleDrafter(NullDrafter(), RootOnly()), Match())
