"""MuLo-SD (Peruzzo et al. 2601.05149): image rows drafted at half the resolution, verified at once and resampled in islands."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import RELAXED, Card, ImageResources, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """The paper's values of τ, pool and radius were not available; the defaults are from a sweep over prompts.

    With the 32 nearest of 512 codes, images fit the prompts nearly as well as the target's own images, with the fewest passes.
    """

    tau: float = number(
        0.05, 0.0, 1.1, "τ: pooled probability below which a code fails; 0 keeps all codes, above 1 resamples all.", step=0.01
    )
    pool: int = number(32, 0, 256, "Number of nearest latent codes that add to the probability of a code.", "codes")
    radius: int = number(1, 0, 4, "Distance from a failed code within which neighbours are resampled, too.", "cells")
    rows: int = number(1, 1, 4, "Coarse rows per round; each gives two rows of the image.", "rows")
    cache: str = choice(
        "rewritten",
        ("rewritten", "stale"),
        "Recompute outdated entries of the target's cache after a block has been resampled, or never (a coarser approximation).",
    )


@Card(
    name="mulo_sd",
    modality=("image",),
    exactness=RELAXED,
    family="model",
    parameters=Parameters,
    weights=("image_ar_small", "image_samplers"),
)
def compose(parameters: Parameters, resources: ImageResources) -> parts.Composition:
    from specviz.methods.mulo_sd.coarse_rows import BlockRows, CoarseRows
    from specviz.methods.mulo_sd.local_verification import LocalVerification

    partner, grid = resources.coarse(), resources.grid
    assert grid is not None, "a target with a coarse partner has a grid"
    rule = LocalVerification(
        resources.neighbours(), grid[1], parameters.tau, parameters.pool, parameters.radius, parameters.cache == "rewritten"
    )
    stale = () if rule.rewrite else ("Cache entries of kept codes are not recomputed after resampling: an approximation.",)
    controller = parts.SingleDrafter(CoarseRows(partner, parameters.rows), BlockRows())
    return parts.Composition(controller, rule, draft_name=partner.name, warnings=stale, opener=rule)
