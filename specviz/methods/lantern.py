"""LANTERN (Jang et al. 2410.03355): EAGLE-2's tree on picture codes, judged by what a code's nearest latent codes have
together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.parameters import choice, number
from specviz.methods.registry import Paper, method

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import ImageResources

RESIDUAL = choice(
    "exact",
    ("exact", "aggregated", "repository"),
    "What a rejection leaves: the exact rule's residual (bound proven), that of the aggregated one, or the published code's.",
)


@dataclass(frozen=True)
class Parameters:
    """The paper's k for a codebook of 16 384 is 1000; a smaller codebook has fewer nearest latent codes to offer."""

    delta: float = number(
        0.1, 0.0, 1.0, "δ: most mass a code may take over from its nearest latent codes; 0 is the exact rule.", step=0.01
    )
    k: int = number(100, 0, 1024, "Nearest latent codes that are considered, nearest first.", "codes")
    depth: int = number(4, 1, 12, "Depth of the tree; each level takes one drafter pass.", "levels")
    width: int = number(10, 1, 16, "Nodes in the beam, and children each of them offers.", "nodes")
    nodes: int = number(0, 0, 128, "Nodes kept; 0 keeps as many as pay in each round, the paper's value is 58.", "nodes")
    residual: str = RESIDUAL


@method(
    name="lantern",
    title="LANTERN",
    summary="Picture codes have near neighbours: a drafted code is judged with the probability of those around it.",
    modality=("image",),
    exactness="relaxed",
    family="judge",
    claim="1.75 to 1.82× over EAGLE-2 on LlamaGen.",
    differs=(
        "Here, on 64 held-out prompts of emoji-64, {sizes.lantern.speed_12} with τ {sizes.lantern.tau_12} on 12 nodes and "
        "{images.lantern_10.speed} with {images.lantern_10.tau} on 25, where EAGLE-2 has {sizes.eagle2.tau_12} and "
        "{sizes.eagle2.tau_25}: relaxing accepts more, but guidance doubles the rows of every tree, beside six million weights."
    ),
    paper=Paper(
        "LANTERN: Accelerating Visual Autoregressive Models with Relaxed Speculative Decoding", "Jang et al.", 2024,
        "2410.03355", "ICLR",
    ),
    look_at="Many codes share a flat distribution, so the exact rule rejects good ones. Shaded: what a code may stand for.",
    bound="A candidate changes the distribution by at most δ in total variation, m by at most 1 − (1 − δ)^m. Above temperature "
    "0, with the exact residual.",
    parameters=Parameters,
    weights=("image_drafter",),
)  # fmt: skip
def compose(parameters: Parameters, parts: ImageResources) -> Composition:
    from specviz.acceptance.relaxed import Limit, Relaxed
    from specviz.drafting.runtimes.guided_drafter import feature_drafter
    from specviz.engine.controller import SingleDrafter
    from specviz.engine.interfaces import Composition
    from specviz.methods.dynamic_tree import dynamic_tree

    network = parts.drafter_weights("eagle")
    builder = dynamic_tree(parameters, parts, network, "eagle", "eagle2", usual=4)
    rule = Relaxed(parts.neighbours(), Limit(delta=parameters.delta), parameters.k, parameters.residual)
    drafter = feature_drafter(network, parts.guidance)
    return Composition(SingleDrafter(drafter, builder), rule, network.config.taps, draft_name=parts.draft_name or "image_drafter")
