"""DREAM (Hu et al. 2505.19201): a drafter with cross-attention to the target's features and only the important patches."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.dynamic_tree import TreeSize, limited_tree
from specviz.methods.registry import TOKEN_EXACT, Card, Paper, number, parts, switch


@dataclass(frozen=True)
class Parameters(TreeSize):
    """The paper keeps 75 % of the visual tokens; its tree has depth 6, width 4 and 32 nodes."""

    depth: int = number(5, 1, 12, "Depth of the tree; each level takes one drafter pass. The paper's value is 6.", "levels")
    width: int = number(6, 1, 16, "Nodes in the beam, and children each of them offers; the paper's value is 4.", "nodes")
    nodes: int = number(0, 0, 128, "Nodes kept; 0 keeps as many as pay off in each round, the paper's value is 32.", "nodes")
    keep: float = number(
        0.75, 0.05, 1.0, "Share of the visual tokens that the drafter is shown: those the target looks at most.", step=0.05
    )
    cross_attention: bool = switch(True, "Look across into the target's features; off shuts the gates, to see what they bring.")


@Card(
    name="dream",
    title="DREAM",
    summary="Between two layers of its own the drafter looks across into the target's features, and at the patches that matter.",
    modality=("vision_language",),
    exactness=TOKEN_EXACT,
    family="features",
    claim="Up to 3.6×, 20 to 40 % over EAGLE-2, on LLaVA and others.",
    differs=(
        "Here, on held-out scenes and trees of one size, τ is {scenes.dream.tau} where EAGLE-2 with visual rows has "
        "{scenes.eagle2.tau}, {scenes.dream_no_cross.tau} without cross-attention and {scenes.dream_no_middle.tau} without the "
        "middle loss. With prefill it is {scenes.dream.prefill}, HiViS {scenes.hivis.prefill}: two layers and a cross-attention "
        "weigh more beside a target of five million weights."
    ),
    paper=Paper(
        "DREAM: Drafting with Refined Target Features and Entropy-Adaptive Cross-Attention Fusion for Multimodal Speculative "
        "Decoding",
        "Hu et al.",
        2025,
        "2505.19201",
        "NeurIPS",
    ),  # fmt: skip
    look_at="Arcs run from a drafted word to the patches it was guessed from; greyed patches never reached the drafter.",
    parameters=Parameters,
    weights=("vlm_dream",),
    pair="`python -m specviz run --method dream --target llava-1.6-7b --draft DREAM-llava-v1.6-vicuna-7b-safetensors --param "
    'keep=1 --image FILE --prompt "Describe the picture."` with HideonBed12138/DREAM-llava-v1.6-vicuna-7b, a torch zip: '
    "`pairs` tells how to convert it. The release never prunes the picture, and lets siblings of a tree read each other; a "
    "mask keeps them apart here, as in its training",
)
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    from specviz.methods.dream.drafter import CrossDrafter

    network = resources.drafter_weights("dream")
    if not parameters.cross_attention:
        network = network.without_cross_attention()
    builder = limited_tree(parameters, resources)
    drafter = CrossDrafter(network, resources.picture or parts.Layout(0, (), ()), resources.target, parameters.keep)
    return parts.single_drafter(drafter, builder, parts.Match(), drafter.reads, draft_name="dream")
