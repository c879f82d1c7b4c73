"""Tiny random image models of the standard class, and their partners: what the image methods' tests stand on."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import JanusConfig, JanusForConditionalGeneration

from specviz.drafting.networks.eagle_head import EagleConfig, EagleHead
from specviz.drafting.networks.latent_samplers import LatentSamplers, SamplerConfig
from specviz.models.image.image import LoadedImage, embedding_table, janus, janus_config
from specviz.models.image.prompts import SPECIAL, WordPrompts

CODES = 24


def tiny_prompts() -> WordPrompts:
    """Prompts letter by letter."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate([*SPECIAL, *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    return WordPrompts(tokenizer.to_str())


def tiny_image(
    seed: int = 0,
    grid: int = 6,
    codes: int = CODES,
    dtype: torch.dtype = torch.float64,
    layers: int = 2,
    width: int = 32,
    device: str = "cpu",
) -> LoadedImage:
    """A random Janus of two layers that draws ``grid`` x ``grid`` codes, neither constant nor hopeless."""
    torch.manual_seed(seed)
    prompts = tiny_prompts()
    shape = {"width": width, "inner": 2 * width, "layers": layers, "heads": 2, "codes": codes, "multiplier": (1, 1), "latent": 32}
    config = JanusConfig(**janus_config(grid, prompts=prompts.size, **shape))
    model = JanusForConditionalGeneration(config).eval().requires_grad_(False)
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "vqmodel" not in name:
            weight.normal_(std=0.25)
    model.model.generation_embeddings.weight.normal_()
    codebook = model.model.vqmodel.quantize.embedding.weight
    codebook.copy_(F.normalize(torch.randn_like(codebook), dim=-1))
    weights = model.to(dtype).to(device)
    return janus(f"tiny-{grid * 2}", weights, prompts, 2.0, digest=f"tiny-{seed}-{grid}", codebook_digest=f"tiny-{seed}")


def tiny_pair(
    seed: int = 0, grid: int = 6, codes: int = CODES, layers: int = 2, device: str = "cpu", dtype: torch.dtype = torch.float64
) -> tuple[LoadedImage, LoadedImage]:
    """A model and its partner of half the grid; both mean the same by a code."""
    large = tiny_image(seed, grid, codes, dtype, layers, device=device)
    small = tiny_image(seed + 1, grid // 2, codes, dtype, device=device)
    small.model.model.vqmodel.load_state_dict(large.model.model.vqmodel.state_dict())
    return large, replace(small, codebook=large.codebook, codebook_digest=large.codebook_digest)


def tiny_image_drafter(loaded: LoadedImage, seed: int = 0) -> EagleHead:
    """A random drafter for this model."""
    torch.manual_seed(seed)
    text = loaded.model.config.text_config
    config = EagleConfig(
        vocab_size=loaded.first_code + loaded.codes, hidden=text.hidden_size, heads=2, kv_heads=2,
        head_size=text.hidden_size // 2, inner=2 * text.hidden_size, taps=(text.num_hidden_layers,), wide=False,
    )  # fmt: skip
    head = torch.randn(loaded.codes, text.hidden_size) / 2
    table = embedding_table(loaded.model, loaded.first_code)
    ids = torch.arange(loaded.codes, device=loaded.device) + loaded.first_code
    net = EagleHead(config, table, head.to(loaded.device, loaded.dtype), ids)
    return net.to(loaded.device, loaded.dtype).eval().requires_grad_(False)


def tiny_samplers(loaded: LoadedImage, seed: int = 0) -> LatentSamplers:
    """Random samplers over this model's codes."""
    torch.manual_seed(seed)
    net = LatentSamplers(SamplerConfig(dim=loaded.codebook.shape[1], width=16, layers=2), loaded.codebook.float())
    return net.eval().requires_grad_(False).to(loaded.device)


def tiny_patches(loaded: LoadedImage, seed: int = 0) -> torch.Tensor:
    """Random patches of this model's codes, two pixels a side."""
    torch.manual_seed(seed)
    return 2 * torch.rand(loaded.codes, 2, 2, 3) - 1
