"""MuLo-SD (Peruzzo et al. 2601.05149): rows drafted at half the resolution, verified at once, repaired in islands."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import RELAXED, Card, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """The paper's values of τ, pool and radius were not available to us. The defaults are from a sweep on learned and held-out
    prompts: with the 32 nearest of 512 codes, pictures fit their prompts nearly as well as the target's own, with the fewest
    passes."""

    tau: float = number(
        0.05, 0.0, 1.1, "τ: a code fails below this pooled mass; 0 keeps all codes, above 1 redraws all.", step=0.01
    )
    pool: int = number(32, 0, 256, "Nearest latent codes whose mass is pooled with a code's own.", "codes")
    radius: int = number(1, 0, 4, "Distance within which a failed code's neighbours are redrawn too.", "cells")
    rows: int = number(1, 1, 4, "Coarse rows per round; each gives two rows of the picture.", "rows")
    cache: str = choice(
        "rewritten",
        ("rewritten", "stale"),
        "Recompute outdated entries of the target's cache once a block is repaired (between waves kept cells stay outdated, an "
        "approximation); or never, a coarser one.",
    )


@Card(
    name="mulo_sd",
    modality=("image",),
    exactness=RELAXED,
    family="model",
    parameters=Parameters,
    weights=("image_ar_small", "image_samplers"),
)
def compose(parameters: Parameters, resources: parts.ImageResources) -> parts.Composition:
    from specviz.methods.mulo_sd.coarse_rows import BlockRows, CoarseRows
    from specviz.methods.mulo_sd.local_verification import LocalVerification

    partner, grid = resources.coarse(), resources.grid
    assert grid is not None, "a target with a coarse partner has a grid"
    rule = LocalVerification(
        resources.neighbours(), grid[1], parameters.tau, parameters.pool, parameters.radius, parameters.cache == "rewritten"
    )
    stale = () if rule.rewrite else ("Cache entries of kept codes are not renewed after redraws: an approximation.",)
    controller = parts.SingleDrafter(CoarseRows(partner, parameters.rows), BlockRows())
    return parts.Composition(controller, rule, draft_name=partner.name, warnings=stale, opener=rule)
