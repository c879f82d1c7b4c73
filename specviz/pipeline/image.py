"""Image requests: a model that draws code by code from a conditional and an unconditional prompt row."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from specviz.acceptance.relaxed import nearest_codes
from specviz.drafting.networks.feature_head import FeatureRuntime
from specviz.engine.cached import cached
from specviz.errors import BadInput, ModelUnavailable
from specviz.methods.mulo_sd.coarse_rows import CoarsePartner
from specviz.methods.resources import ImageResources
from specviz.models.cost_curves import target_costs
from specviz.models.hub.catalog import resolve
from specviz.models.image.image import COLOURS, LoadedAnole, LoadedImage, codebook_map, coloured_by_direction
from specviz.models.image.load import (
    SHIPPED,
    code_patches,
    image_drafter,
    image_samplers,
    load_image_model,
    published_head,
)
from specviz.models.image.prompts import valid_prompt, warning
from specviz.models.packing import layout_for
from specviz.pipeline.prepared import Inputs, Prepared, Progress
from specviz.pipeline.request import Request, refuse_unused
from specviz.targets.image import ImageTarget
from specviz.trace.notes.images import CanvasNote
from specviz.trace.schema import Step

UNUSED = {
    "image": "an image model reads no pictures",
    "raw": "an image prompt has no chat template to skip",
}
"""Request fields that have no meaning here, with the reasons."""
PARTNERS = {"emoji-64": "emoji-32"}
"""Coarse partner of each target: the model that draws the same picture on half the grid."""
LIVE_SIDE = 128
"""Maximum side in pixels of a picture stored with each step; larger ones show their codes' colours until the end."""
MOST_GUIDANCE = 20.0

BY_DIRECTION = (
    "Until it is finished, the picture shows each code as a colour from the codebook's three principal components: decoding each "
    "code first would take minutes on a CPU. The finished picture is decoded."
)


class CodeText:
    """Texts of picture codes and prompt tokens (``engine.interfaces.TokenText``)."""

    def __init__(self, loaded: LoadedImage) -> None:
        self._loaded = loaded

    def of(self, token: int) -> str:
        codes = self._loaded.codes
        return f"#{token}" if token < codes else self._loaded.prompts.of(token - codes)

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        return tuple(f"#{token} " if token < self._loaded.codes else self.of(token) for token in more)


@dataclass(frozen=True, kw_only=True)
class PreparedImage(Prepared):
    """A prepared image request, whose steps carry the growing picture."""

    loaded: LoadedImage

    def annotate(self, step: Step, output: Sequence[int]) -> Step:
        """Return the step with the rows of the picture that it finished, for display before the end.

        Decoding costs as much as a pass of a small target, so it runs once per row, not once per step.
        """
        loaded = self.loaded
        first, last = (len(output) - len(step.emitted)) // loaded.grid, len(output) // loaded.grid - 1
        if self.request.record != "tree" or last < first or loaded.side > LIVE_SIDE:
            return step
        pixels = loaded.picture(list(output))
        side = pixels.shape[0] // loaded.grid
        first = max(0, first - 1)  # the row above changes slightly once this one is below it
        band = pixels[first * side : (last + 1) * side]
        canvas = CanvasNote(row=first, rows=last + 1 - first, codes=len(output), png=png(band, 48))
        return step.replace(notes=(*step.notes, canvas.to_note()))

    def end_fields(self, output: Sequence[int]) -> dict[str, Any]:
        return {"picture": png(self.loaded.picture(list(output)))}

    def baseline_fields(self, output: list[int], parting: int) -> dict[str, Any]:
        return self.end_fields(output)


def png(pixels: np.ndarray, colours: int = 0) -> str:
    """Return ``pixels``, uint8 [row, column, 3], as a base64 PNG; a nonzero ``colours`` limits the palette, for a small file."""
    image = Image.fromarray(pixels)
    if colours:
        image = image.quantize(colours)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


@dataclass(kw_only=True)
class DrawingResources(ImageResources):
    """Networks that ship for the model, or the heads that the user named; ``scale`` is the guidance scale."""

    loaded: LoadedImage
    request: Request
    scale: float
    progress: Progress

    def drafter_weights(self, kind: str) -> FeatureRuntime:
        """Return the drafter in a layout that suits this machine; its ids start with the codes."""
        loaded = self.loaded

        def drafter() -> FeatureRuntime:
            if self.draft_name:
                head = published_head(kind, self.draft_name, loaded, self.progress)
                return head.runtime(layout_for(head))
            network = image_drafter(loaded)
            network.embedding, network.draft_ids = codes_first(loaded), None
            return network.runtime(layout_for(network))

        if not self.draft_name and kind != "eagle":
            raise ModelUnavailable(f"There are no {kind} networks for {loaded.name}; choose a method that needs none.")
        return cached(loaded.model, ("drafter", kind, self.draft_name), drafter)

    def neighbours(self) -> torch.Tensor:
        return cached(self.loaded.model, "neighbours", lambda: nearest_codes(self.loaded.codebook))

    def coarse(self) -> CoarsePartner:
        request, loaded = self.request, self.loaded
        if loaded.name not in PARTNERS:
            raise ModelUnavailable(
                f"{loaded.name} has no partner model with half its grid; choose {', '.join(PARTNERS)}, or another method."
            )
        small = load_image_model(PARTNERS[loaded.name], request.dtype, request.device, self.progress)
        if small.codebook_digest != loaded.codebook_digest:
            raise ModelUnavailable(f"{small.name} and {loaded.name} were trained on different codes; retrain one of them.")
        target, prompt, _ = image_target(small, request.prompt, self.scale, request.tier)
        return coarse_partner(target, prompt, small.grid, cached(loaded.model, "samplers", lambda: image_samplers(loaded)))


def prepare(inputs: Inputs) -> Prepared:
    """Load the target and check the request. Raises a SpecvizError that names the remedy."""
    request, progress = inputs.request, inputs.progress
    scale = request.guidance
    if scale is not None and not 1.0 <= scale <= MOST_GUIDANCE:
        raise BadInput(f"guidance is {scale}; choose a number from 1 (off) to {MOST_GUIDANCE:g}.")
    valid_prompt(request.prompt)
    refuse_unused(request, UNUSED)
    loaded = load_image_model(resolve(request.target).name, request.dtype, request.device, progress)
    if request.draft and loaded.name in SHIPPED:
        raise BadInput(f"{loaded.name} takes no draft: its drafters ship with this project; leave draft out.")
    scale = loaded.guidance if scale is None else scale
    target, prompt, unread = image_target(loaded, request.prompt, scale, request.tier)
    grid = (loaded.grid, loaded.grid)
    costs = target_costs(target, progress)
    warnings = [f"The prompt is too long for {loaded.name}; it did not read: {unread[:200]}"] if unread else []
    if loaded.name in SHIPPED:
        warnings.append(warning(loaded.name, request.prompt))
    if isinstance(loaded, LoadedAnole):
        warnings.append(COLOURS)
    elif loaded.name not in SHIPPED and coloured_by_direction(loaded):
        warnings.append(BY_DIRECTION)
    return PreparedImage(
        **vars(inputs),
        loaded=loaded,
        target=target,
        text=CodeText(loaded),
        prompt_ids=prompt,
        resources=DrawingResources(
            **inputs.resource_fields(target, costs, repr((loaded.name, prompt)).encode()),
            guidance=None if target.rows == 1 else (scale, target.unconditional),
            grid=grid,
            loaded=loaded,
            request=request,
            scale=scale,
        ),
        budget=loaded.cells,
        run_fields={
            "grid": grid,
            "guidance": scale,
            "codebook": cached(loaded.model, "map", lambda: codebook_map(loaded, code_patches(loaded))),
            "tokenizer_hash": loaded.tokenizer_hash,
            "warnings": warnings,
        },
        costs=costs,
    )


def image_target(loaded: LoadedImage, prompt: str, scale: float, tier: str) -> tuple[ImageTarget, list[int], str]:
    """Return the target for a prompt, the prompt's ids (offset by the number of codes, which come first), and its unread rest."""
    rows = loaded.prompts.rows(prompt)
    conditional, unconditional = (
        [token if token < 0 else loaded.codes + token for token in row] for row in (rows.conditional, rows.unconditional)
    )
    target = ImageTarget(
        loaded.model, loaded.name, codes_first(loaded), loaded.codes, unconditional, loaded.cells, scale, tier, loaded.stack,
        loaded.head, rows.embedded, rows.unseen,
    )  # fmt: skip
    return target, conditional, rows.unread


def codes_first(loaded: LoadedImage) -> torch.Tensor:
    """Return the embeddings [id, hidden] of the codes, then of the prompt's tokens."""
    return cached(loaded.model, "table", lambda: loaded.table)


def coarse_partner(target: ImageTarget, prompt: Sequence[int], columns: int, samplers: Any) -> CoarsePartner:
    """Return a low-resolution target with its prompt and the samplers to and from its grid."""
    capacity = target.context_length
    return CoarsePartner(target.name, lambda: target.open(capacity), tuple(prompt), columns, samplers.up, samplers.down)
