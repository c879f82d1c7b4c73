"""Tiny image targets with everything a method asks for, and a helper that draws with them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from specviz.acceptance.relaxed import nearest_codes
from specviz.drafting.networks.eagle_head import EagleRuntime
from specviz.engine.interfaces import Composition
from specviz.engine.loop import Decoding, Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.methods.registry import MethodResources
from specviz.models.image.image import LoadedImage, embedding_table
from specviz.pipeline.image import CodeText, coarse_partner, codes_first, image_target
from specviz.targets.image import ImageTarget
from tests.support.tiny.images import tiny_image_drafter, tiny_pair, tiny_samplers
from tests.support.tiny.text import Decoded, composed, parts_for

PROMPT = "red"
WARM = Warp(1.0)


class World:
    """A tiny model and its partner, the target for one prompt, and what methods are made of."""

    def __init__(
        self, guidance: float = 2.0, grid: int = 6, codes: int = 24, seed: int = 0, layers: int = 2,
        device: str = "cpu", tier: str = "auto", dtype: torch.dtype = torch.float64,
    ) -> None:  # fmt: skip
        self.loaded, self.small = tiny_pair(seed, grid, codes, layers, device, dtype)
        self.guidance, self.tier = guidance, tier
        self.target, self.prompt, _ = image_target(self.loaded, PROMPT, guidance, tier)

    @cached_property
    def drafter(self) -> EagleRuntime:
        """Made once, as a user's is: what runs capture over it is kept with it."""
        network = tiny_image_drafter(self.loaded)
        network.embedding, network.draft_ids = codes_first(self.loaded), None
        return network.runtime()

    def parts(self, warp: Warp) -> MethodResources:
        small, prompt, _ = image_target(self.small, PROMPT, self.guidance, self.tier)
        samplers = tiny_samplers(self.loaded)
        silent = None if self.target.rows == 1 else (self.guidance, self.target.unconditional)
        return parts_for(self.target, warp).using(
            drafter_weights=lambda kind: self.drafter,
            guidance=silent,
            grid=(self.loaded.grid, self.loaded.grid),
            neighbours=lambda: nearest_codes(self.loaded.codebook),
            coarse=lambda: coarse_partner(small, prompt, self.small.grid, samplers),
        )

    def compose(self, name: str, values: Mapping[str, Any], warp: Warp) -> Composition:
        return composed(name, values, self.parts(warp))

    def draw(self, name: str, values: Mapping[str, Any] | None = None, warp: Warp = WARM, seed: int = 7) -> Decoded:
        """A whole picture."""
        grid = (self.loaded.grid, self.loaded.grid)
        composition = self.compose(name, values or {}, warp)
        recorder = Recorder(CodeText(self.loaded), "tree", grid)
        run = Decoding(self.target, composition, self.prompt, warp, Noise(seed), self.loaded.cells, recorder)
        steps = list(run.steps())
        assert run.outcome.reason not in {"error", "out_of_memory"}, run.outcome.message
        return Decoded(run.outcome.output_ids, steps, run.outcome)


def plain_rows(loaded: LoadedImage, target: ImageTarget, prompt: list[int], codes: list[int]) -> torch.Tensor:
    """Guided logits after the prompt and each of ``codes``, from the standard class without cache or tree."""
    first = [one - loaded.codes for one in prompt]
    other = [one - loaded.codes for one in target.unconditional]
    drawn = [loaded.first_code + code for code in codes]
    rows = torch.tensor([first + drawn, other + drawn])
    states = loaded.model.model.language_model(
        inputs_embeds=embedding_table(loaded.model, loaded.first_code)[rows]
    ).last_hidden_state
    logits = loaded.model.model.generation_head(states[:, len(first) - 1 :])
    return logits[1] + target.guidance * (logits[0] - logits[1])
