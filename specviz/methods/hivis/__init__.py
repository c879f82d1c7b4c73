"""HiViS (Xie et al. 2509.23928): the drafter reads only the target's hidden states of text tokens, never the picture."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.dynamic_tree import TreeSize, limited_tree
from specviz.methods.registry import TOKEN_EXACT, Card, Paper, choice, number, parts


@dataclass(frozen=True)
class Parameters(TreeSize):
    """The paper's tree for 7B targets is EAGLE-2's with depth 5, width 10 and 59 nodes."""

    depth: int = number(5, 1, 12, "Depth of the tree; each level takes one drafter pass. The paper's value is 5.", "levels")
    residuals: str = choice(
        "on",
        ("on", "off", "compare"),
        "The learned vectors for each step of drafting: on; off, to see what they bring; or compare, which drafts every "
        "accepted path a second time without them.",
    )


@Card(
    name="hivis",
    title="HiViS",
    summary="The picture is hidden from the drafter: it reads the target's hidden states at the text, which hold what matters.",
    modality=("vision_language",),
    exactness=TOKEN_EXACT,
    family="features",
    claim="Up to 3.15×; in its first version 2.65×, with a drafter prefill of about 1 % of the target's.",
    differs=(
        "Here {scenes.hivis.prefill} with prefill and τ {scenes.hivis.tau} on held-out scenes, where EAGLE-2 with visual rows "
        "has {scenes.eagle2.tau}; the drafter reads 6 of 70 tokens. The residuals bring little ({scenes.hivis_plain.tau} "
        "without)."
    ),
    paper=Paper(
        "HiViS: Hiding Visual Tokens from the Drafter for Speculative Decoding in Vision-Language Models",
        "Xie et al.",
        2025,
        "2509.23928",
        "CVPR 2026",
    ),  # fmt: skip
    look_at="Two strips: the drafter's has no cell for the picture, yet it drafts what is in it.",
    parameters=Parameters,
    weights=("vlm_hivis",),
    pair="No reader for Irisssme/HiViS-Qwen2.5-VL-7B-Instruct: its trainer shows a parameter `residual` of one vector a step, "
    "but the file that says where in the network it is added, and the checkpoint's config.json, could not be read",
)
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    from specviz.methods.hivis.step_embedding import StepwiseDrafter

    network, steps = resources.drafter_weights("hivis")
    builder, residuals = limited_tree(parameters, resources), parameters.residuals
    drafter = StepwiseDrafter(network, steps * 0 if residuals == "off" else steps, compare=residuals == "compare")
    alone: parts.TextAlone | StepwiseDrafter = parts.TextAlone(drafter, resources.picture) if resources.picture else drafter
    return parts.single_drafter(alone, builder, parts.Match(), network.config.taps, draft_name="hivis")
