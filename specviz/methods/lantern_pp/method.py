"""LANTERN++ (Park et al. 2502.06352): LANTERN's relaxation in multiples of a code's own probability, on a static tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.lantern import RESIDUAL
from specviz.methods.lantern_pp.static_tree import TREES, static_tree
from specviz.methods.parameters import choice, number
from specviz.methods.registry import Paper, method

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import ImageResources


@dataclass(frozen=True)
class Parameters:
    """The paper's pairs (k, λ) are (10, 5), (5, 10) and (5, 20); the first is the default."""

    factor: float = number(
        5.0,
        1.0,
        40.0,
        "λ: a code may count for at most so many times its own probability; 1 is the exact rule.",
        step=0.1,
    )
    k: int = number(10, 0, 1024, "Nearest latent codes that are considered, nearest first.", "codes")
    tree: str = choice(
        "fitted",
        ("fitted", *TREES),
        "Drafted nodes: the authors' 57, EAGLE's 25, 12, a chain of 5, or of these what pays most on this machine.",
    )
    residual: str = RESIDUAL


@method(
    name="lantern_pp",
    title="LANTERN++",
    summary="A static tree drawn from the drafter, and a code that may count for λ times its own probability.",
    modality=("image",),
    exactness="relaxed",
    family="judge",
    claim="Up to 2.56× over autoregressive decoding.",
    differs=(
        "Here, on 64 held-out prompts, {sizes.pp_5.speed_12} with τ {sizes.pp_5.tau_12} on the 12 nodes that pay, "
        "{sizes.pp_20.speed_12} with {sizes.pp_20.tau_12} at λ = 20 and k = 5 (LANTERN {sizes.lantern.speed_12}, "
        "{sizes.lantern.tau_12}). On its authors' 57 nodes it has {authors_tree.pp_5.over} LANTERN's τ, at "
        "{authors_tree.pp_5.speed} (24 prompts): beside six million weights large trees cost too much."
    ),
    paper=Paper(
        "LANTERN++: Enhancing Relaxed Speculative Decoding with Static Tree Drafting for Visual Auto-regressive Models",
        "Park et al.", 2025, "2502.06352",
    ),
    look_at="The tree has one shape whatever the drafter thinks: flat distributions make its confidence a poor guide.",
    bound="No code becomes more than λ times as likely, however many siblings are tried: at most 1 − 1/λ in total variation "
    "(at λ = 5 four fifths), and never more than p and q differ. Above temperature 0, with the exact residual.",
    parameters=Parameters,
    weights=("image_drafter",),
    pair='`python -m specviz run --method lantern_pp --target anole-7b --draft jadohu/anole_drafter --prompt "A red fox in the '
    'snow."`, whose codes are shown as colours: no pixel decoder is read. Or `python -m specviz run --method lantern_pp '
    '--target ./LlamaGen-T2I --draft llamagen_drafter-safetensors --prompt "A red fox in the snow."` with LlamaGen and '
    "jadohu/llamagen_drafter, whose parts are put together as `pairs` tells (below). For Janus, no drafter is known to us",
)  # fmt: skip
def compose(parameters: Parameters, parts: ImageResources) -> Composition:
    from specviz.acceptance.relaxed import Limit, Relaxed
    from specviz.drafting.runtimes.guided_drafter import feature_drafter
    from specviz.drafting.trees.sampled import Sampled
    from specviz.engine.controller import SingleDrafter
    from specviz.engine.interfaces import Composition

    network = parts.drafter_weights("eagle")
    rule = Relaxed(parts.neighbours(), Limit(factor=parameters.factor), parameters.k, parameters.residual)
    builder = Sampled(static_tree(parameters.tree, parts, network))
    drafter = feature_drafter(network, parts.guidance)
    return Composition(SingleDrafter(drafter, builder), rule, network.config.taps, draft_name=parts.draft_name or "image_drafter")
