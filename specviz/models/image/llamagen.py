"""LlamaGen (Sun et al. 2024, arXiv 2406.06525): a Llama decoder over VQ codes, prompted by a class or a caption.

transformers has no such class. The decoder is its Llama with rotary positions in two dimensions (``grid_rotary``). A picture
follows one embedding of its class, or 120 positions of T5 features of a caption, padded on the left with masked positions.
The empty prompt is a separate class, or 120 learned features. A folder holds

    config.json          {"model_type": "llamagen", "block_size": codes in a picture}, or that of LANTERN's conversion;
    *.safetensors        the decoder, named as its authors store it, or as LANTERN does;
    vq/*.safetensors     the VQ tokenizer;
    t5/                  flan-t5-xl, for captions alone.

Published files are torch zips: ``python -m specviz convert`` turns them into such folders, on the user's machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.drafting.networks.rotary import grid_rotary
from specviz.errors import ModelUnavailable
from specviz.models.hub.published import Repository, open_repository
from specviz.models.image.image import LoadedImage
from specviz.models.image.prompts import CaptionPrompts, ClassPrompts, load_captions
from specviz.models.loading_lock import exclusive_loading

HEADS = {768: 12, 1024: 16, 1280: 20, 1536: 24, 2048: 32, 2560: 40, 3200: 32, 4096: 32}
"""Number of heads by width of the authors' models, whose checkpoints omit it."""
CLASS_GUIDANCE, CAPTION_GUIDANCE = 4.0, 7.5
"""Defaults of its authors' samplers."""
_LABELS, _EMPTY = "cls_embedding.embedding_table.weight", "cls_embedding.uncond_embedding"
_DROPPED = ("freqs_cis", "causal_mask")
_LANTERN = {
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Authors' names of a layer's tensors, by LANTERN's and transformers'."""
_GROUPS, _EPS = 32, 1e-6
_CODEBOOK = "quantize.embedding.weight"
_PARTS = ("decoder.", "post_quant_conv.", _CODEBOOK)
"""Parts of the file that drawing needs; the rest is for encoding and training."""


class GridRotary(nn.Module):
    """Table of cosines and sines [2, position, rate], in the interface of transformers' Llama; kept in float32 at least."""

    table: Tensor

    def __init__(self, table: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("table", table.to(torch.promote_types(dtype, torch.float32)), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        # A node drafted beyond the last cell is never committed: any position will do.
        cosine, sine = self.table[:, position_ids.clamp_max(self.table.shape[1] - 1)]
        return torch.cat((cosine, cosine), dim=-1).to(x.dtype), torch.cat((sine, sine), dim=-1).to(x.dtype)


class VQDecoder:
    """Pixel decoder of LlamaGen's VQ tokenizers (``vq_ds16_c2i``, ``vq_ds16_t2i``, ``vq_ds8_c2i``), from its tensors by name.

    The layout is VQGAN's (Esser et al. 2021, arXiv 2012.09841): a middle, then levels of residual blocks with attention in the
    deepest, each level but the last doubled in size. ``codebook`` [code, dim] has rows of length one; a code covers
    ``scale`` x ``scale`` pixels.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.codebook = F.normalize(tensors[_CODEBOOK], dim=-1)
        levels = {int(name.split(".")[2]) for name in tensors if name.startswith("decoder.conv_blocks.")}
        self._levels = len(levels)
        self.scale = 2 ** sum(f"decoder.conv_blocks.{level}.upsample.conv.weight" in tensors for level in levels)

    @torch.inference_mode()
    def __call__(self, codes: Tensor, grid: int) -> Tensor:
        """Decode a picture's codes [cell] to float [row, column, rgb], about from -1 to 1."""
        x = self.codebook[codes].view(1, -1, grid, self.codebook.shape[1]).permute(0, 3, 1, 2)
        x = self._conv("decoder.conv_in", self._conv("post_quant_conv", x))
        x = self._residual("decoder.mid.0", x)
        x = self._residual("decoder.mid.2", self._attention("decoder.mid.1", x))
        for level in range(self._levels):
            x = self._level(f"decoder.conv_blocks.{level}", x)
        return self._conv("decoder.conv_out", F.silu(self._norm("decoder.norm_out", x)))[0].permute(1, 2, 0)

    def _level(self, name: str, x: Tensor) -> Tensor:
        block = 0
        while f"{name}.res.{block}.conv1.weight" in self._tensors:
            x = self._residual(f"{name}.res.{block}", x)
            if f"{name}.attn.{block}.q.weight" in self._tensors:
                x = self._attention(f"{name}.attn.{block}", x)
            block += 1
        if f"{name}.upsample.conv.weight" not in self._tensors:
            return x
        return self._conv(f"{name}.upsample.conv", F.interpolate(x, scale_factor=2.0, mode="nearest"))

    def _residual(self, name: str, x: Tensor) -> Tensor:
        inner = self._conv(f"{name}.conv1", F.silu(self._norm(f"{name}.norm1", x)))
        inner = self._conv(f"{name}.conv2", F.silu(self._norm(f"{name}.norm2", inner)))
        shortcut = f"{name}.nin_shortcut"
        return inner + (self._conv(shortcut, x) if f"{shortcut}.weight" in self._tensors else x)

    def _attention(self, name: str, x: Tensor) -> Tensor:
        """One head over all cells."""
        normed = self._norm(f"{name}.norm", x)
        queries, keys, values = (self._conv(f"{name}.{part}", normed).flatten(2).transpose(1, 2) for part in "qkv")
        attended = F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).reshape(x.shape)
        return x + self._conv(f"{name}.proj_out", attended)

    def _conv(self, name: str, x: Tensor) -> Tensor:
        weight = self._tensors[f"{name}.weight"]
        return F.conv2d(x, weight, self._tensors[f"{name}.bias"], padding=weight.shape[-1] // 2)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.group_norm(x, _GROUPS, self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"], eps=_EPS)


@dataclass(frozen=True, kw_only=True)
class LoadedLlamaGen(LoadedImage):
    """A LlamaGen. ``labels`` [class, hidden] embed the classes, the last the empty prompt; they are empty for captions.
    ``first`` is the number of positions before the picture."""

    decoder: VQDecoder
    labels: Tensor
    first: int

    @property
    def stack(self) -> Any:
        return self.model.model

    @property
    def head(self) -> Any:
        return self.model.lm_head

    @property
    def table(self) -> Tensor:
        codes = self.model.get_input_embeddings().weight
        return torch.cat((codes, self.labels)) if len(self.labels) else codes

    @property
    def side(self) -> int:
        return self.grid * self.decoder.scale

    def pixels(self, codes: Tensor) -> Tensor:
        return self.decoder(codes, self.grid)


def load_llamagen(name: str, folder: Path, dtype: torch.dtype, device: torch.device) -> LoadedLlamaGen:
    """Load the model in ``folder``. Raises ModelUnavailable if a part of it is missing, or does not fit the others."""
    stored = open_repository(str(folder))
    tensors = _authors_names(stored)
    config, grid, first = _config(stored, name, tensors)
    model = _model(name, config, tensors).to(dtype)
    turns = grid_rotary(first + grid * grid, grid, first, config.head_dim, config.rope_parameters["rope_theta"])
    model.model.rotary_emb = GridRotary(turns, dtype)
    model = model.to(device).eval().requires_grad_(False)
    vq = sorted((folder / "vq").glob("*.safetensors"))
    if not vq:
        raise ModelUnavailable(
            f"{name} has no VQ tokenizer: convert its authors' vq_ds16_c2i.pt (for captions vq_ds16_t2i.pt) with `python -m "
            f"specviz convert FILE --out {folder / 'vq'}`."
        )
    decoder = _vq_decoder(vq[0], config.vocab_size, device)
    labels = torch.empty(0)
    prompts: ClassPrompts | CaptionPrompts
    if _LABELS in tensors:
        labels = tensors[_LABELS].to(device, dtype)
        prompts = ClassPrompts(len(labels) - 1)
    else:
        projection = [tensors[f"cls_embedding.cap_proj.fc{number}.weight"].to(device, dtype) for number in (1, 2)]
        prompts = load_captions(name, folder / "t5", tensors[_EMPTY].to(device, dtype), projection)
    guidance = CLASS_GUIDANCE if len(labels) else CAPTION_GUIDANCE
    return LoadedLlamaGen(
        name, model, prompts, grid, 0, decoder.codebook, guidance, name, name, decoder=decoder, labels=labels, first=first
    )


def _authors_names(stored: Repository) -> dict[str, Tensor]:
    """All tensors by the names of LlamaGen's authors, queries, keys and values in one."""
    if "tok_embeddings.weight" in stored.files:
        return {name: stored.tensor(name) for name in stored.files if not name.endswith(_DROPPED)}
    if "model.cls_embedding.cap_proj.fc1.weight" not in stored.files and f"model.{_LABELS}" not in stored.files:
        raise ModelUnavailable(f"{stored.name} holds no LlamaGen: it lacks what embeds a class or a caption.")
    tensors: dict[str, Tensor] = {}
    for original in stored.files:
        name = original.removeprefix("model.").replace("embed_tokens.", "tok_embeddings.").replace("lm_head.", "output.")
        for theirs, authors in _LANTERN.items():
            name = name.replace(f".{theirs}.", f".{authors}.")
        if "self_attn.q_proj" in name:
            parts = [stored.tensor(original.replace("q_proj", f"{part}_proj")) for part in "qkv"]
            tensors[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(parts)
        elif not name.endswith(_DROPPED) and "self_attn." not in name:
            tensors[name] = stored.tensor(original)
    return tensors


def _config(stored: Repository, name: str, tensors: Mapping[str, Tensor]) -> tuple[Any, int, int]:
    """The decoder's configuration, its cells per row, and the number of positions before the picture."""
    said = stored.config
    missing = [
        part
        for part in ("tok_embeddings.weight", "output.weight", "norm.weight", "layers.0.feed_forward.w1.weight")
        if part not in tensors
    ]
    if missing or not ({_LABELS, _EMPTY} & set(tensors)):
        raise ModelUnavailable(f"{name} lacks {(*missing, _LABELS)[0]}: it is no LlamaGen, or not a whole one.")
    codes, hidden = tensors["tok_embeddings.weight"].shape
    cells = said.get("block_size")
    grid = math.isqrt(cells) if isinstance(cells, int) and cells > 0 else 0
    if grid == 0 or grid * grid != cells:
        raise ModelUnavailable(
            f"The config.json of {name} has block_size {cells!r}; it is the number of codes in a picture: 256, 576 or 1024 for "
            "256, 384 or 512 pixels a side."
        )
    heads = said.get("num_attention_heads") or said.get("n_head") or HEADS.get(hidden)
    if not isinstance(heads, int) or hidden % heads or hidden // heads % 4:
        raise ModelUnavailable(f"The config.json of {name} does not say how many heads (num_attention_heads) its {hidden} have.")
    first = 1 if _LABELS in tensors else len(tensors[_EMPTY])
    if said.get("cls_token_num", first) != first:
        raise ModelUnavailable(f"The config.json of {name} has cls_token_num {said['cls_token_num']}, and its weights {first}.")
    layers = len({part.split(".")[1] for part in tensors if part.startswith("layers.")})
    size = hidden // heads
    kv_heads = (tensors["layers.0.attention.wqkv.weight"].shape[0] // size - heads) // 2
    config = LlamaConfig(
        vocab_size=codes, hidden_size=hidden, intermediate_size=len(tensors["layers.0.feed_forward.w1.weight"]), head_dim=size,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=first + grid * grid, rms_norm_eps=float(said.get("rms_norm_eps") or 1e-5),
        rope_parameters={"rope_type": "default", "rope_theta": float(said.get("rope_base") or 10000.0)},
    )  # fmt: skip
    return config, grid, first


def _model(name: str, config: Any, tensors: Mapping[str, Tensor]) -> Any:
    """transformers' Llama with these weights. LlamaGen rotates neighbouring channels together, Llama the halves of a head."""
    heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    state = {
        "model.embed_tokens.weight": tensors["tok_embeddings.weight"],
        "model.norm.weight": tensors["norm.weight"],
        "lm_head.weight": tensors["output.weight"],
    }
    for number in range(config.num_hidden_layers):
        ours, theirs = f"model.layers.{number}.", f"layers.{number}."
        try:
            queries, keys, values = tensors[f"{theirs}attention.wqkv.weight"].split(
                [part * size for part in (heads, kv_heads, kv_heads)]
            )
            state |= {f"{ours}{new}.weight": tensors[f"{theirs}{old}.weight"] for new, old in _LANTERN.items()}
        except (KeyError, RuntimeError) as problem:
            raise ModelUnavailable(
                f"{name} lacks weights of layer {number}, or its heads are another number ({problem})."
            ) from problem
        state |= {
            f"{ours}self_attn.q_proj.weight": _by_halves(queries, size),
            f"{ours}self_attn.k_proj.weight": _by_halves(keys, size),
            f"{ours}self_attn.v_proj.weight": values,
        }
    with exclusive_loading(), torch.device("meta"):
        model = LlamaForCausalLM(config)
    try:
        model.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as problem:
        raise ModelUnavailable(f"The weights of {name} do not fit each other: {str(problem)[:300]}") from problem
    return model


def _by_halves(weight: Tensor, size: int) -> Tensor:
    """Rows of a projection [head * size, hidden] with even channels of each head before odd ones."""
    return weight.unflatten(0, (-1, size // 2, 2)).transpose(1, 2).flatten(0, 2)


def _vq_decoder(file: Path, codes: int, device: torch.device) -> VQDecoder:
    """Load the decoder in ``file``, in float32. Raises ModelUnavailable if it is no decoder, or not for this many ``codes``."""
    try:
        stored = load_file(file)
        decoder = VQDecoder({name: value.to(device).float() for name, value in stored.items() if name.startswith(_PARTS)})
        decoder(torch.zeros(4, dtype=torch.long, device=device), 2)  # checks that every tensor is present and fits
    except (OSError, SafetensorError, KeyError, RuntimeError) as problem:
        raise ModelUnavailable(
            f"{file} is no VQ tokenizer of LlamaGen's, or not a whole one ({str(problem)[:160]}): convert vq_ds16_c2i.pt or "
            "vq_ds16_t2i.pt into its folder."
        ) from problem
    if len(decoder.codebook) != codes:
        raise ModelUnavailable(f"{file} has {len(decoder.codebook)} codes, and the model draws with {codes}: take its own.")
    return decoder
