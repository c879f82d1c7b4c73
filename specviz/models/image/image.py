"""Loader of autoregressive image models: transformers' Janus, shipped in ``assets/weights`` or from elsewhere.

The contract with callers:

- A run's token ids are the prompt tokenizer's own ids for prompt tokens, and ``first_code + c`` for picture code ``c``.
  So one list of ids describes a whole run. ``codes`` is the number of codes, ``grid`` the number of cells per row and of rows.
- Embeddings: ``loaded.embed(ids)``. A pass: ``model.model.language_model(inputs_embeds=…)``, then
  ``model.model.generation_head(last_hidden_state)`` for logits [.., code]. ``model.forward`` writes text only.
- Guidance: two rows, ``loaded.prompts.rows(prompt)``; logits = u + guidance (c - u). Both rows are equally long, every
  token is attended to (no padding mask), positions count from 0.
- ``codebook`` [code, dim] has rows of length one, as in the decoder, so distances between codes are the decoder's.
- ``picture(codes)`` decodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import JanusConfig, JanusForConditionalGeneration

from specviz.drafting.networks.weights import read_weights
from specviz.engine.cached import cached
from specviz.errors import BadInput, ModelUnavailable
from specviz.models import room
from specviz.models.cache import MODELS
from specviz.models.device import choose_device, choose_dtype, dtype_name
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.packed_model import shipped_file
from specviz.models.image.prompts import PromptReader, WordPrompts
from specviz.models.loading_lock import exclusive_loading
from specviz.paths import WEIGHTS

SHIPPED = {"emoji-64": "image_ar", "emoji-32": "image_ar_small"}
"""Catalogue names of the image models that ship, and their recipes' names."""
UNTRAINED = ("model.vision_model.", "model.aligner.", "lm_head.")
"""Parts of the standard class that drawing does not need: they read pictures or write text."""
MISSING = 238
"""The grey level of cells that are not drawn yet."""


@dataclass(frozen=True)
class LoadedImage:
    """An image model ready to run: frozen, in eval mode, shared between runs.

    ``digest`` and ``codebook_digest`` identify the weights for networks trained on them: by content for shipped models, else by
    the model's name.
    """

    name: str
    model: Any
    prompts: PromptReader
    grid: int
    first_code: int
    codebook: Tensor
    guidance: float
    digest: str
    codebook_digest: str
    warnings: ClassVar[tuple[str, ...]] = ()

    @property
    def codes(self) -> int:
        """Rows of the codebook."""
        return len(self.codebook)

    @property
    def device(self) -> torch.device:
        return self.codebook.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def tokenizer_hash(self) -> str:
        return self.prompts.digest

    @property
    def cells(self) -> int:
        """Codes in a whole picture."""
        return self.grid * self.grid

    @torch.inference_mode()
    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings [.., hidden] of ids [..] of prompt tokens and codes."""
        return embedding_table(self.model, self.first_code)[ids]

    @property
    def stack(self) -> Any:
        """The transformer, called with embeddings."""
        return self.model.model.language_model

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        """Function from the last hidden states [.., hidden] to logits [.., code]."""
        return self.model.model.generation_head

    @property
    def table(self) -> Tensor:
        """Embeddings [id, hidden] of the codes, then of the prompt's tokens."""
        table = embedding_table(self.model, self.first_code)
        return torch.cat((table[self.first_code :], table[: self.first_code]))

    def pixels(self, codes: Tensor) -> Tensor:
        """Decode a whole picture's codes [cell] to float [row, column, rgb] from -1 to 1."""
        return self.model.decode_image_tokens(codes[None])[0].float()

    @property
    def side(self) -> int:
        """Side of a whole picture in pixels."""
        return self.grid * 2 ** (len(self.model.config.vq_config.channel_multiplier) - 1)

    @torch.inference_mode()
    def picture(self, codes: Sequence[int]) -> np.ndarray:
        """Decode codes in reading order, without ``first_code``, to uint8 [row, column, 3]; cells not drawn yet are grey.

        Raises BadInput on an unknown code or more codes than cells.
        """
        drawn_codes = list(codes)
        if len(drawn_codes) > self.cells or any(not 0 <= code < self.codes for code in drawn_codes):
            raise BadInput(f"A picture of this model has at most {self.cells} codes, each from 0 to {self.codes - 1}.")
        all_codes = drawn_codes + [drawn_codes[-1] if drawn_codes else 0] * (self.cells - len(drawn_codes))
        pixels = self.pixels(torch.tensor(all_codes, device=self.device))
        rgb = ((pixels.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu().numpy()
        side = rgb.shape[0] // self.grid
        for cell in range(len(drawn_codes), self.cells):
            row, column = divmod(cell, self.grid)
            rgb[row * side : (row + 1) * side, column * side : (column + 1) * side] = MISSING
        return rgb


def load_image_model(name: str, dtype: str = "auto", device: str = "auto", progress: Progress = no_progress) -> LoadedImage:
    """Load the image model called ``name``: "emoji-64" or "emoji-32". Models stay loaded while they fit.

    ``dtype`` and ``device`` are "auto" or the user's choice. Raises ModelUnavailable or BadInput.
    """
    where = choose_device(device)
    how = choose_dtype(dtype, where)
    if name not in SHIPPED:
        raise ModelUnavailable(f"There is no image model {name!r}; there are: {', '.join(SHIPPED)}.")
    path = WEIGHTS / f"{SHIPPED[name]}.safetensors"
    vq = WEIGHTS / "image_vq.safetensors"
    version = "-".join(str(file.stat().st_mtime_ns) for file in (path, vq) if file.is_file())
    key = (name, dtype_name(how), str(where), version)
    size = partial(room.memory_of, name, dtype_name(how))
    return MODELS.get(key, lambda: _shipped(name, path, vq, how, where, progress), size, str(where))


def weights_of(recipe: str) -> Path:
    """The shipped file of a recipe. Raises ModelUnavailable, with the command that makes it, if it is missing."""
    return shipped_file(WEIGHTS / f"{recipe}.safetensors")


def _shipped(name: str, path: Path, vq: Path, dtype: torch.dtype, device: torch.device, progress: Progress) -> LoadedImage:
    progress(f"Loading {name} in {dtype_name(dtype)} on {device}", None)
    tensors, card = read_weights(weights_of(path.stem))
    pixels, pixel_card = read_weights(weights_of(vq.stem))
    if card.get("codebook") != pixel_card.get("codebook"):
        raise ModelUnavailable(
            f"{path.name} was trained on other picture codes than those of {vq.name}: take both files from one version of "
            f"the project, or train it again with `python -m specviz train {path.stem}`."
        )
    model: Any = build(json.loads(card["config"]), {**tensors, **pixels})
    prompts, guidance = WordPrompts(card["prompts"]), float(card["guidance"])
    return janus(name, model.to(device, dtype), prompts, guidance, card["digest"], card["codebook"])


def build(config: dict[str, Any], tensors: dict[str, Tensor]) -> JanusForConditionalGeneration:
    """Build the standard class of this configuration with these weights, float32, frozen; codes are normalised to length one.

    Raises ModelUnavailable when weights that a picture needs are missing, or weights do not fit.
    """
    with exclusive_loading():
        model = JanusForConditionalGeneration(JanusConfig(**config))
    try:
        missing, unexpected = model.load_state_dict(tensors, strict=False)
    except RuntimeError as problem:
        raise ModelUnavailable(f"These weights do not fit the image model: {str(problem)[:300]}") from problem
    missing = [key for key in missing if not key.startswith(UNTRAINED)]
    if missing or unexpected:
        raise ModelUnavailable(f"The image model's weights are not whole ({[*missing, *unexpected][:3]}): fetch them again.")
    codebook = model.model.vqmodel.quantize.embedding
    codebook.weight.data = F.normalize(codebook.weight.data, dim=-1)
    return model.eval().requires_grad_(False)


def janus(name: str, model: Any, prompts: PromptReader, guidance: float, digest: str, codebook_digest: str) -> LoadedImage:
    """A LoadedImage around a Janus model."""
    quantizer, first_code = model.model.vqmodel.quantize, model.config.text_config.vocab_size
    codebook = F.normalize(quantizer.embedding.weight.float(), dim=-1)
    grid = int(quantizer.quant_state_dims[0])
    return LoadedImage(name, model, prompts, grid, first_code, codebook, guidance, digest, codebook_digest)


@torch.inference_mode()
def embedding_table(model: Any, first_code: int) -> Tensor:
    """Embeddings [id, hidden] of all prompt tokens and, from ``first_code`` on, all picture codes; made once per model."""

    def make() -> Tensor:
        codes = torch.arange(model.config.vq_config.num_embeddings, device=model.device)
        text = model.get_input_embeddings().weight[:first_code]
        return torch.cat((text, model.prepare_embeddings_for_image_generation(codes)))

    return cached(model, "embeddings", make)
