"""HiViS (Xie et al. 2509.23928): a drafter that reads the target's hidden states of text tokens only, never of the image."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.eagle2 import TreeSize, limited_tree
from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, choice, number, parts


@dataclass(frozen=True)
class Parameters(TreeSize):
    """For 7B targets, the paper uses EAGLE-2's tree with depth 5, width 10 and 59 nodes."""

    depth: int = number(5, 1, 12, "Depth of the tree; each level takes one drafter pass. The paper uses 5.", "levels")
    residuals: str = choice(
        "on",
        ("on", "off", "compare"),
        "Learned step embeddings: on; off, to show their effect; or compare, which also runs the drafter without step "
        "embeddings along the accepted text.",
    )


@Card(
    name="hivis",
    modality=("vision_language",),
    exactness=TOKEN_EXACT,
    family="features",
    parameters=Parameters,
    weights=("vlm_hivis",),
)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    from specviz.methods.hivis.step_embedding import StepwiseDrafter

    network, steps = resources.drafter_weights("hivis")
    builder, residuals = limited_tree(parameters, resources), parameters.residuals
    drafter = StepwiseDrafter(network, steps * 0 if residuals == "off" else steps, compare=residuals == "compare")
    alone: parts.TextAlone | StepwiseDrafter = parts.TextAlone(drafter, resources.picture) if resources.picture else drafter
    return parts.single_drafter(alone, builder, parts.Match(), network.config.taps, draft_name="hivis")
