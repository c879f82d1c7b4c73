"""Autoregressive decoding: one token per target pass. The baseline of every other method."""

from __future__ import annotations

from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, NoParameters, parts


@Card(
    name="autoregressive",
    modality=("text", "vision_language", "image"),
    exactness=TOKEN_EXACT,
    family="none",
    parameters=NoParameters,
)
def compose(parameters: NoParameters, resources: MethodResources) -> parts.Composition:
    return parts.single_drafter(parts.NullDrafter(), parts.RootOnly(), parts.Match())
