"""Autoregressive image models as runs use them: embeddings, forward passes, pictures, and a map of the codebook for display.

Conventions for callers:

- Token ids: a prompt token keeps its id in the prompt tokenizer; image code ``c`` has id ``first_code + c``. One list of ids
  describes a whole run. ``codes`` is the number of codes, ``grid`` the number of rows and of cells per row.
- Embeddings: rows of ``loaded.table``, which starts with the codes. A pass is ``loaded.stack(inputs_embeds=…)``, then
  ``loaded.head(last_hidden_state)`` for logits [.., code]. ``model.forward`` computes text logits only.
- Guidance: a batch of two rows, ``loaded.prompts.rows(prompt)``; logits = u + guidance (c - u). Both rows have the same length
  and start at position 0.
- ``codebook`` [code, dim] has rows of unit length, as in the decoder, so distances between codes are the decoder's.
- ``picture(codes)`` decodes codes to pixels.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.engine.cached import cached
from specviz.errors import BadInput
from specviz.models.image.prompts import PromptReader
from specviz.paths import ASSETS
from specviz.trace.schema import Codebook

UNTRAINED = ("model.vision_model.", "model.aligner.", "lm_head.")
"""Parts of the standard class that image generation does not use: vision encoder and text head."""
CELL = 2
"""Side in pixels of the patches that are the codes of the shipped sprite model."""
MISSING = 238
"""Grey level of cells that are not generated yet."""
_FEW = 4096
"""Size of the largest codebook whose codes a CPU decodes individually."""
COLOURS = (
    "No pixel decoder comes with this model: the picture shows each code as a colour, given by the codebook's three principal "
    "components."
)


@dataclass(frozen=True)
class LoadedImage:
    """Image model ready to run: frozen, in eval mode, shared between runs.

    ``stack``: the transformer, which takes embeddings. ``head``: function from last hidden states [.., hidden] to logits [..,
    code]. ``cell``: side of a code's cell in pixels. ``digest``, ``codebook_digest``: identification of the weights, by content
    for shipped models, else the model's name.
    """

    name: str
    model: Any
    stack: Any
    head: Callable[[Tensor], Tensor]
    prompts: PromptReader
    grid: int
    cell: int
    first_code: int
    codebook: Tensor
    guidance: float
    digest: str
    codebook_digest: str
    warnings: ClassVar[tuple[str, ...]] = ()

    @property
    def codes(self) -> int:
        """Number of codes in the codebook."""
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
        """Number of codes in a whole picture."""
        return self.grid * self.grid

    @property
    def table(self) -> Tensor:
        """Embeddings [id, hidden] of the codes, followed by the prompt's tokens."""
        table = embedding_table(self.model, self.first_code)
        return torch.cat((table[self.first_code :], table[: self.first_code]))

    def pixels(self, codes: Tensor) -> Tensor:
        """Decode the codes [cell] of a whole picture to float [row, column, rgb] in [-1, 1]."""
        return self.model.decode_image_tokens(codes[None])[0].float()

    @property
    def side(self) -> int:
        """Side of a whole picture in pixels."""
        return self.grid * self.cell

    @torch.inference_mode()
    def picture(self, codes: Sequence[int]) -> np.ndarray:
        """Decode codes in reading order, without ``first_code``, to uint8 [row, column, 3]; missing cells are grey.

        Raises BadInput for an unknown code, or for more codes than cells.
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


@dataclass(frozen=True)
class LoadedSprites(LoadedImage):
    """A model whose codes are patches of pixels, so that decoding is a look-up. ``codebook`` holds the patches as rows.

    ``patches`` [code, row, column, rgb]: float in [-1, 1].
    """

    patches: Tensor

    def pixels(self, codes: Tensor) -> Tensor:
        cells = self.patches[codes].unflatten(0, (self.grid, self.grid))
        return cells.transpose(1, 2).reshape(self.side, self.side, 3)


@dataclass(frozen=True)
class LoadedAnole(LoadedImage):
    """Anole: transformers' Chameleon with a head trained for image generation (Chern et al. 2024, arXiv 2407.06135).

    ``code_ids`` [code]: text tokens of the codes, in the codebook's order. ``model.forward`` masks their logits, so layers and
    head are called directly. transformers has no pixel decoder for Anole, so pictures show one colour per code.
    """

    code_ids: Tensor

    @property
    def table(self) -> Tensor:
        every = self.model.get_input_embeddings().weight
        return torch.cat((every[self.code_ids], every))

    def pixels(self, codes: Tensor) -> Tensor:
        return self._colours[codes].view(self.grid, self.grid, 3)

    @cached_property
    def _colours(self) -> Tensor:
        return direction_colours(self.codebook)


def janus_config(
    grid: int, *, prompts: int = 2048, width: int = 192, inner: int = 512, layers: int = 14, heads: int = 3, codes: int = 512,
    dim: int = 8, multiplier: Sequence[int] = (1, 1, 2), latent: int = 64
) -> dict[str, Any]:  # fmt: skip
    """Arguments of ``JanusConfig(**…)`` for ``grid`` x ``grid`` codes; the defaults are those of the shipped models.

    ``prompts``: size of the prompt vocabulary. ``codes``, ``dim``: size of the codebook. The vision encoder is as small as
    possible.
    """
    patch = 2 ** (len(multiplier) - 1)
    config: dict[str, Any] = json.loads((ASSETS / "configs.json").read_text("utf-8"))["janus"]
    config["text_config"] |= {
        "vocab_size": prompts, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": width // heads,
    }  # fmt: skip
    config["vision_config"] |= {
        "image_size": grid * patch, "patch_size": patch, "projection_dim": width, "num_image_tokens": grid * grid,
    }  # fmt: skip
    config["vq_config"] |= {
        "num_embeddings": codes, "embed_dim": dim, "latent_channels": latent, "channel_multiplier": list(multiplier),
        "num_patches": grid,
        "projection_dim": width, "image_token_embed_dim": width,
    }  # fmt: skip
    return config


def janus(name: str, model: Any, prompts: PromptReader, guidance: float, digest: str, codebook_digest: str) -> LoadedImage:
    """Build a LoadedImage from a Janus model."""
    quantizer, first_code = model.model.vqmodel.quantize, model.config.text_config.vocab_size
    codebook = F.normalize(quantizer.embedding.weight.float(), dim=-1)
    grid, cell = int(quantizer.quant_state_dims[0]), cell_side(model.config.vq_config)
    stack, head = model.model.language_model, model.model.generation_head
    return LoadedImage(name, model, stack, head, prompts, grid, cell, first_code, codebook, guidance, digest, codebook_digest)


def cell_side(config: Any) -> int:
    """Side of a cell in pixels: each level of the pixel decoder but the last doubles the side."""
    return int(2 ** (len(config.channel_multiplier) - 1))


@torch.inference_mode()
def embedding_table(model: Any, first_code: int) -> Tensor:
    """Embeddings [id, hidden] of prompt tokens and, from ``first_code`` on, image codes; cached per model."""

    def make() -> Tensor:
        codes = torch.arange(model.config.vq_config.num_embeddings, device=model.device)
        text = model.get_input_embeddings().weight[:first_code]
        return torch.cat((text, model.prepare_embeddings_for_image_generation(codes)))

    return cached(model, "embeddings", make)


def _principal_components(codebook: Tensor, count: int) -> Tensor:
    """First ``count`` principal components [code, component] of ``codebook`` [code, dim]."""
    centred = codebook.double() - codebook.double().mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    signs = axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()  # signs would otherwise differ between machines
    return centred @ (axes * signs)[:count].T


def direction_colours(codebook: Tensor) -> Tensor:
    """Colours [code, rgb] in [-1, 1]: ranks of the codes along the codebook's first three principal components."""
    ranks = _principal_components(codebook, 3).argsort(0).argsort(0)
    return (ranks.double() / max(1, len(ranks) - 1) * 2 - 1).float()


def places(codebook: Tensor) -> np.ndarray:
    """First two principal components of ``codebook`` [code, dim] as uint16 [code, 2], scaled to the full range."""
    flat = _principal_components(codebook.cpu(), 2).numpy()
    low, high = flat.min(0), flat.max(0)
    return np.round((flat - low) / np.maximum(high - low, 1e-12) * 65535).astype("<u2")


def coloured_by_direction(loaded: LoadedImage) -> bool:
    """Whether the map takes its colours from principal components, because decoding a large codebook takes a CPU minutes."""
    return loaded.codes > _FEW and loaded.device.type == "cpu"


@torch.inference_mode()
def tiles(loaded: LoadedImage) -> Tensor:
    """Decoded cell of each code surrounded by cells of the same code, float [code, row, column, rgb] in [-1, 1].

    Each code fills a square of three by three cells, and the middle cell is taken. A large codebook gets single cells, which are
    cheaper but show the neighbouring codes too. ``load.code_patches`` has the average appearance of a code in real pictures.
    """
    width = 3 if loaded.codes <= _FEW and loaded.grid >= 3 else 1
    squares = loaded.grid // width
    tile = (torch.arange(loaded.grid) // width).clamp_max(squares - 1)
    layout = tile[:, None] * squares + tile[None]
    middle = torch.arange(squares) * width + width // 2
    batches = []
    for start in range(0, loaded.codes, squares * squares):
        codes = (start + layout.flatten()) % loaded.codes
        picture = loaded.pixels(codes.to(loaded.device)).cpu()
        side = picture.shape[0] // loaded.grid
        cells = picture.unflatten(0, (loaded.grid, side)).unflatten(2, (loaded.grid, side)).transpose(1, 2)
        batches.append(cells[middle][:, middle].flatten(0, 1))
    return torch.cat(batches)[: loaded.codes]


def _bytes(colour: Tensor) -> bytes:
    return ((colour.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu().numpy().tobytes()


def codebook_map(loaded: LoadedImage, patches: Tensor | None = None) -> Codebook:
    """Positions, colours and optional ``patches`` [code, row, column, rgb] of all codes, in the trace's format."""
    if patches is None and coloured_by_direction(loaded):
        colours = direction_colours(loaded.codebook)
    else:
        colours = (tiles(loaded) if patches is None else patches).mean((1, 2))
    parts = [places(loaded.codebook).tobytes(), _bytes(colours), b"" if patches is None else _bytes(patches)]
    return Codebook(loaded.codes, *(base64.b64encode(part).decode() for part in parts))
