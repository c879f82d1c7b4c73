"""LlamaGen (Sun et al. 2024, arXiv 2406.06525): a Llama decoder over VQ codes, conditioned on a class or a caption.

transformers has no such class. The decoder is its Llama with two-dimensional rotary positions (``grid_rotary``). A picture
follows one class embedding, or 120 positions of T5 caption features, left-padded with masked positions. The empty prompt is a
separate class, or 120 learned features. A folder holds

    config.json          {"model_type": "llamagen", "block_size": codes in a picture}, or that of LANTERN's conversion;
    *.safetensors        the decoder, with its authors' or LANTERN's tensor names;
    vq/*.safetensors     the VQ tokenizer;
    t5/                  flan-t5-xl, only for captions.

Published files are torch zips: ``python -m specviz convert`` turns them into such folders on the user's machine.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import JanusVQVAE, JanusVQVAEConfig, LlamaConfig, LlamaForCausalLM

from specviz.drafting.networks.rotary import grid_rotary
from specviz.errors import ModelUnavailable
from specviz.models.cache import exclusive_loading
from specviz.models.hub.published import Repository, open_repository
from specviz.models.image.image import LoadedImage, cell_side
from specviz.models.image.prompts import CaptionPrompts, ClassPrompts, load_captions
from specviz.paths import ASSETS

CLASS_GUIDANCE, CAPTION_GUIDANCE = 4.0, 7.5
"""Default guidance of the authors' samplers."""
_LABELS, _EMPTY, _PROJECTION = (
    f"cls_embedding.{part}" for part in ("embedding_table.weight", "uncond_embedding", "cap_proj.fc{}.weight")
)
_TABLES = tomllib.loads((ASSETS / "llamagen.toml").read_text("utf-8"))
_CODEBOOK = "quantize.embedding.weight"


class GridRotary(nn.Module):
    """Table of cosines and sines [2, position, rate], with the interface of transformers' rotary module; at least float32."""

    table: Tensor

    def __init__(self, table: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("table", table.to(torch.promote_types(dtype, torch.float32)), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        # Nodes drafted beyond the last cell are never committed, so their position does not matter.
        cosine, sine = self.table[:, position_ids.clamp_max(self.table.shape[1] - 1)]
        return torch.cat((cosine, cosine), dim=-1).to(x.dtype), torch.cat((sine, sine), dim=-1).to(x.dtype)


@dataclass(frozen=True, kw_only=True)
class LoadedLlamaGen(LoadedImage):
    """LlamaGen model ready to run.

    ``labels`` [class, hidden]: class embeddings, the last for the empty prompt; empty for captions. ``first``: number of
    positions before the picture.
    """

    vq: Any
    labels: Tensor
    first: int

    @property
    def table(self) -> Tensor:
        codes = self.model.get_input_embeddings().weight
        return torch.cat((codes, self.labels)) if len(self.labels) else codes

    def pixels(self, codes: Tensor) -> Tensor:
        return self.vq.decode(codes[None])[0].permute(1, 2, 0)


def load_llamagen(name: str, folder: Path, dtype: torch.dtype, device: torch.device) -> LoadedLlamaGen:
    """Load the model in ``folder``. Raises ModelUnavailable if a part is missing or does not fit the rest."""
    stored, hidden, tensors = open_repository(str(folder)), 0, dict[str, Tensor]()  # named as in transformers
    for original in stored.files:
        part = original.removeprefix("model.")
        for theirs, ours in _TABLES["names"].items():
            part = part.replace(theirs, ours)
        tensors[part] = tensor = stored.tensor(original)
        hidden = tensor.shape[-1] if part == "embed_tokens.weight" else hidden
    for part in [part for part in tensors if "attention.wqkv." in part]:
        rows = tensors.pop(part)
        sizes = [hidden, *[(len(rows) - hidden) // 2] * 2]
        for kind, matrix in zip("qkv", rows.split(sizes), strict=True):
            tensors[part.replace("attention.wqkv", f"self_attn.{kind}_proj")] = matrix
    config, grid, first = _config(stored, name, tensors)
    with exclusive_loading(), torch.device("meta"):
        model: Any = LlamaForCausalLM(config)
    state = {part: tensors[part.removeprefix("model.")] for part in model.state_dict() if part.removeprefix("model.") in tensors}
    try:
        model.load_state_dict(state, assign=True)
    except RuntimeError as problem:
        raise ModelUnavailable(f"The weights of {name} are incomplete or inconsistent: {str(problem)[:300]}") from problem
    turns = grid_rotary(first + grid * grid, grid, first, config.head_dim, config.rope_parameters["rope_theta"])
    model.to(dtype).model.rotary_emb = GridRotary(turns, dtype)
    model = model.to(device).eval().requires_grad_(False)
    files = sorted((folder / "vq").glob("*.safetensors"))
    if not files:
        raise ModelUnavailable(
            f"{name} has no VQ tokenizer: convert its authors' vq_ds16_c2i.pt (for captions vq_ds16_t2i.pt) with `python -m "
            f"specviz convert FILE --out {folder / 'vq'}`."
        )
    vq = _vq(files[0], config.vocab_size, grid, device)
    prompts: ClassPrompts | CaptionPrompts
    if _LABELS in tensors:
        labels, guidance = tensors[_LABELS].to(device, dtype), CLASS_GUIDANCE
        prompts = ClassPrompts(len(labels) - 1)
    else:
        labels, guidance = torch.empty(0), CAPTION_GUIDANCE
        projection = [tensors[_PROJECTION.format(number)].to(device, dtype) for number in (1, 2)]
        prompts = load_captions(name, folder / "t5", tensors[_EMPTY].to(device, dtype), projection)
    codebook = F.normalize(vq.quantize.embedding.weight, dim=-1)
    return LoadedLlamaGen(
        name, model, model.model, model.lm_head, prompts, grid, cell_side(vq.config), 0, codebook, guidance, name, name, vq=vq,
        labels=labels, first=first,
    )  # fmt: skip


def _config(stored: Repository, name: str, tensors: dict[str, Tensor]) -> tuple[Any, int, int]:
    """Return the decoder's config, the cells per row, and the number of positions before the picture.

    Reorders query and key channels in ``tensors``: LlamaGen rotates adjacent channels together, Llama the two halves of a head.
    """
    said, layer = stored.config, "layers.0."
    prompt = (_LABELS,) if _LABELS in tensors else (_EMPTY, _PROJECTION.format(1), _PROJECTION.format(2))
    wanted = ("embed_tokens.weight", f"{layer}self_attn.k_proj.weight", f"{layer}mlp.gate_proj.weight", *prompt)
    if missing := [part for part in wanted if part not in tensors]:
        raise ModelUnavailable(f"{name} lacks {missing[0]}: it is not a LlamaGen model, or it is incomplete.")
    codes, hidden = tensors["embed_tokens.weight"].shape
    cells = said.get("block_size")
    grid = math.isqrt(cells) if isinstance(cells, int) and cells > 0 else 0
    if grid == 0 or grid * grid != cells:
        raise ModelUnavailable(
            f"The config.json of {name} has block_size {cells!r}, which must be the number of codes in a picture: 256, 576 or "
            "1024 for 256, 384 or 512 pixels a side."
        )
    heads = said.get("num_attention_heads") or said.get("n_head") or _TABLES["heads"].get(str(hidden))
    if not isinstance(heads, int) or hidden % heads or hidden // heads % 4:
        raise ModelUnavailable(f"The config.json of {name} has no num_attention_heads that fits width {hidden}.")
    first = 1 if _LABELS in tensors else len(tensors[_EMPTY])
    if said.get("cls_token_num", first) != first:
        raise ModelUnavailable(
            f"The config.json of {name} sets cls_token_num to {said['cls_token_num']}, but its weights have {first}."
        )
    size = hidden // heads
    for part in tensors:
        if part.endswith(("q_proj.weight", "k_proj.weight")):  # even channels of each head first
            tensors[part] = tensors[part].unflatten(0, (-1, size // 2, 2)).transpose(1, 2).flatten(0, 2)
    config = LlamaConfig(
        vocab_size=codes, hidden_size=hidden, intermediate_size=len(tensors[f"{layer}mlp.gate_proj.weight"]), head_dim=size,
        num_hidden_layers=len({part.split(".")[1] for part in tensors if part.startswith("layers.")}),
        num_attention_heads=heads, num_key_value_heads=len(tensors[f"{layer}self_attn.k_proj.weight"]) // size,
        max_position_embeddings=first + grid * grid, rms_norm_eps=float(said.get("rms_norm_eps") or 1e-5),
        rope_parameters={"rope_type": "default", "rope_theta": float(said.get("rope_base") or 10000.0)},
    )  # fmt: skip
    return config, grid, first


def _vq(file: Path, codes: int, grid: int, device: torch.device) -> JanusVQVAE:
    """Load the pixel decoder in ``file`` in float32. Raises ModelUnavailable if it is invalid or not for this number of
    ``codes``."""
    try:
        tensors = {}
        for name, value in load_file(file).items():
            for theirs, ours in _TABLES["vq_names"].items():
                name = name.replace(theirs, ours)
            if name.startswith(("decoder.", "post_quant_conv.", _CODEBOOK)):  # the rest serves encoding and training
                tensors[name] = value.to(device).float()
        levels = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("decoder.up."))
        channels = [len(tensors[f"decoder.up.{level}.block.0.conv1.weight"]) for level in reversed(range(levels))]
        blocks = sum(name.startswith("decoder.up.0.block.") and name.endswith("conv1.weight") for name in tensors)
        config = JanusVQVAEConfig(
            num_embeddings=len(tensors[_CODEBOOK]), embed_dim=tensors[_CODEBOOK].shape[1], num_patches=grid,
            base_channels=channels[0], latent_channels=len(tensors["post_quant_conv.weight"]), num_res_blocks=blocks - 1,
            channel_multiplier=[width // channels[0] for width in channels],
        )  # fmt: skip
        with exclusive_loading(), torch.device("meta"):
            vq: Any = JanusVQVAE(config)
        del vq.encoder, vq.quant_conv
        vq.load_state_dict(tensors, assign=True)
    except (OSError, SafetensorError, KeyError, ValueError, IndexError, RuntimeError) as problem:
        raise ModelUnavailable(
            f"{file} is not LlamaGen's VQ tokenizer, or is incomplete ({str(problem)[:160]}): convert vq_ds16_c2i.pt or "
            "vq_ds16_t2i.pt into its folder."
        ) from problem
    if config.num_embeddings != codes:
        raise ModelUnavailable(f"{file} has {config.num_embeddings} codes, but the model has {codes}: use the model's own.")
    return vq.eval().requires_grad_(False)
