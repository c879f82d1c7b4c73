"""A tiny random block network on a tiny random target, and a plain way to compute what it should draft."""

from __future__ import annotations

import torch
from torch import Tensor

from specviz.drafting.networks.block_net import BlockConfig, BlockNet
from specviz.targets.text import TextTarget

TAP = 2


def block_net(target: TextTarget, block: int = 2, seed: int = 5, draft: int = 40, scale: float = 0.3) -> BlockNet:
    """A random network for ``target`` whose draft vocabulary leaves a few tokens out."""
    torch.manual_seed(seed)
    model, config = target.model, target.config
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    shape = BlockConfig(
        vocab_size=target.vocab_size, hidden=config.hidden_size, heads=4, kv_heads=2, head_size=8, inner=48,
        tap=TAP, draft_vocab=draft, block=block, width=24,
    )  # fmt: skip
    ids = torch.randperm(target.vocab_size)[:draft].sort().values
    network = BlockNet(shape, embedding, head, ids)
    for weight in network.parameters():
        weight.data.normal_(std=scale)
    return network.to(target.dtype).to(target.device).eval().requires_grad_(False)


def whole(network: BlockNet, tokens: list[int], features: Tensor) -> Tensor:
    """Training's forward over a committed text: its last k outputs, blocks laid so that the last one ends with the text.

    ``features`` [input, hidden] are those of inputs 0 …, ``tokens`` the tokens after each.
    """
    found = network(torch.tensor([tokens]), features[None], phase=len(tokens) % network.block)
    return found[0, -network.block :]


def random_text(length: int, seed: int = 0) -> tuple[list[int], Tensor]:
    """Tokens and features of a made-up text, float64."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 48, (length,), generator=generator).tolist()
    return tokens, torch.randn(length, 32, generator=generator, dtype=torch.float64)
