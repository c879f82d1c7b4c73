"""Image requests: autoregressive generation of image codes, with classifier-free guidance."""

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
from specviz.drafting.networks.eagle_head import EagleRuntime
from specviz.engine.cached import cached
from specviz.errors import BadInput, ModelUnavailable
from specviz.methods.mulo_sd.coarse_rows import CoarsePartner
from specviz.methods.registry import ImageResources
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
from specviz.models.image.prompts import reading, valid_prompt
from specviz.models.packing import layout_for
from specviz.pipeline.prepared import Inputs, Prepared, Progress
from specviz.pipeline.request import Request, refuse_unused
from specviz.targets.image import ImageTarget
from specviz.trace.notes.images import CanvasNote
from specviz.trace.schema import Step

UNUSED = {
    "image": "image models do not accept an input image",
    "raw": "image models use no chat template",
}
"""Request fields that image models do not accept, with the reasons."""
PARTNERS = {"emoji-64": "emoji-32"}
"""Coarse partner of each target, a model with half the grid."""
LIVE_SIDE = 128
"""Maximum side in pixels up to which steps store the growing image; above, the viewer shows the colours of the codes."""
MOST_GUIDANCE = 20.0

BY_DIRECTION = (
    "During generation, the picture shows each code in a colour derived from the codebook's three principal components, because "
    "decoding on a CPU takes minutes. The finished picture is decoded."
)


class CodeText:
    """Text of image codes and prompt tokens (``engine.interfaces.TokenText``)."""

    def __init__(self, loaded: LoadedImage) -> None:
        self._loaded = loaded

    def of(self, token: int) -> str:
        codes = self._loaded.codes
        return f"#{token}" if token < codes else self._loaded.prompts.of(token - codes)

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        return tuple(f"#{token} " if token < self._loaded.codes else self.of(token) for token in more)


@dataclass(frozen=True, kw_only=True)
class PreparedImage(Prepared):
    """A prepared image request, whose steps store the growing image."""

    loaded: LoadedImage

    def annotate(self, step: Step, output: Sequence[int]) -> Step:
        """Return the step with a note that holds the image rows that it completes.

        The image is decoded once per row rather than once per step, because decoding costs as much as a small target's pass.
        """
        loaded = self.loaded
        first, last = (len(output) - len(step.emitted)) // loaded.grid, len(output) // loaded.grid - 1
        if self.request.record != "tree" or last < first or loaded.side > LIVE_SIDE:
            return step
        pixels = loaded.picture(list(output))
        side = pixels.shape[0] // loaded.grid
        first = max(0, first - 1)  # decoding a row slightly changes the row above
        band = pixels[first * side : (last + 1) * side]
        canvas = CanvasNote(row=first, rows=last + 1 - first, codes=len(output), png=png(band, 48))
        return step.replace(notes=(*step.notes, canvas.to_note()))

    def end_fields(self, output: Sequence[int]) -> dict[str, Any]:
        return {"picture": png(self.loaded.picture(list(output)))}

    def baseline_fields(self, output: list[int], parting: int) -> dict[str, Any]:
        return self.end_fields(output)


def png(pixels: np.ndarray, colours: int = 0) -> str:
    """Return ``pixels``, uint8 [row, column, 3], as a base64-encoded PNG. ``colours``: palette size, or 0 for full colour."""
    image = Image.fromarray(pixels)
    if colours:
        image = image.quantize(colours)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


@dataclass(kw_only=True)
class DrawingResources(ImageResources):
    """Resources of an image run, with the shipped drafters or the user's heads. ``scale``: guidance scale."""

    loaded: LoadedImage
    request: Request
    scale: float
    progress: Progress

    def drafter_weights(self, kind: str) -> EagleRuntime:
        """Return the drafter's runtime on this machine. In the drafter's vocabulary, the codes come first."""
        loaded = self.loaded

        def drafter() -> EagleRuntime:
            if self.draft_name:
                head = published_head(kind, self.draft_name, loaded, self.progress)
                return head.runtime(layout_for(head))
            network = image_drafter(loaded)
            network.embedding, network.draft_ids = codes_first(loaded), None
            return network.runtime(layout_for(network))

        if not self.draft_name and kind != "eagle":
            raise ModelUnavailable(f"No {kind} drafter is included for {loaded.name}; choose another method.")
        return cached(loaded.model, ("drafter", kind, self.draft_name), drafter)

    def neighbours(self) -> torch.Tensor:
        return cached(self.loaded.model, "neighbours", lambda: nearest_codes(self.loaded.codebook))

    def coarse(self) -> CoarsePartner:
        request, loaded = self.request, self.loaded
        if loaded.name not in PARTNERS:
            raise ModelUnavailable(
                f"No model with half the grid of {loaded.name} is available; choose the target {', '.join(PARTNERS)} or another "
                "method."
            )
        small = load_image_model(PARTNERS[loaded.name], request.dtype, request.device, self.progress)
        if small.codebook_digest != loaded.codebook_digest:
            raise ModelUnavailable(f"{small.name} and {loaded.name} have different codebooks; retrain one of the two models.")
        target, prompt, _ = image_target(small, request.prompt, self.scale, request.tier)
        return coarse_partner(target, prompt, small.grid, cached(loaded.model, "samplers", lambda: image_samplers(loaded)))


def prepare(inputs: Inputs) -> Prepared:
    """Load the target and check the request. Raises SpecvizError if the request cannot run."""
    request, progress = inputs.request, inputs.progress
    scale = request.guidance
    if scale is not None and not 1.0 <= scale <= MOST_GUIDANCE:
        raise BadInput(f"guidance is {scale}; choose a number from 1 (off) to {MOST_GUIDANCE:g}.")
    valid_prompt(request.prompt)
    refuse_unused(request, UNUSED)
    loaded = load_image_model(resolve(request.target).name, request.dtype, request.device, progress)
    if request.draft and loaded.name in SHIPPED:
        raise BadInput(f"{loaded.name} takes no draft, because only the included drafters fit this model; leave draft out.")
    scale = loaded.guidance if scale is None else scale
    target, prompt, warnings = image_target(loaded, request.prompt, scale, request.tier)
    grid = (loaded.grid, loaded.grid)
    costs = target_costs(target, progress)
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


def image_target(loaded: LoadedImage, prompt: str, scale: float, tier: str) -> tuple[ImageTarget, list[int], list[str]]:
    """Return the target, the token ids of the prompt as the model reads it, and warnings about what it cannot read.

    Token ids are offset by the number of codes, which come first in the vocabulary.
    """
    read, doubt = reading(loaded.name, prompt) if loaded.name in SHIPPED else (prompt, "")
    rows = loaded.prompts.rows(read)
    long = rows.unread and f"The prompt is too long for {loaded.name}; this part was not read: {rows.unread[:200]}"
    conditional, unconditional = (
        [token if token < 0 else loaded.codes + token for token in row] for row in (rows.conditional, rows.unconditional)
    )
    target = ImageTarget(
        loaded.model, loaded.name, codes_first(loaded), loaded.codes, unconditional, loaded.cells, scale, tier, loaded.stack,
        loaded.head, rows.embedded, rows.unseen,
    )  # fmt: skip
    return target, conditional, [one for one in (long, doubt) if one]


def codes_first(loaded: LoadedImage) -> torch.Tensor:
    """Return the embeddings [id, hidden] of the codes, followed by the prompt tokens."""
    return cached(loaded.model, "table", lambda: loaded.table)


def coarse_partner(target: ImageTarget, prompt: Sequence[int], columns: int, samplers: Any) -> CoarsePartner:
    """Return the coarse partner of an image model. ``samplers``: networks that convert between the two grids."""
    capacity = target.context_length
    return CoarsePartner(
        target.name, target.vocab_size, lambda: target.open(capacity), tuple(prompt), columns, samplers.up, samplers.down
    )
