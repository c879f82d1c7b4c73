"""Autoregressive decoding: one token per target pass. The baseline of every other method."""

from __future__ import annotations

from specviz.methods.registry import TOKEN_EXACT, Card, NoParameters, parts


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
def compose(parameters: NoParameters, resources: parts.MethodResources) -> parts.Composition:
    return parts.single_drafter(parts.NullDrafter(), parts.RootOnly(), parts.Match())
