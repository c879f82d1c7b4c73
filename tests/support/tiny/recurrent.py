"""A random recurrence on a tiny random target."""

from __future__ import annotations

import torch

from specviz.drafting.networks.recurrent_net import RecurrentConfig, RecurrentNet
from specviz.targets.text import TextTarget


def recurrent_net(target: TextTarget, draft: int = 40, seed: int = 5) -> RecurrentNet:
    """Loud enough that what it drafts depends on all it reads."""
    torch.manual_seed(seed)
    embedding, head = target.model.get_input_embeddings().weight, target.model.get_output_embeddings().weight
    config = RecurrentConfig(embedding.shape[0], embedding.shape[1], target.config.num_hidden_layers, entry=24, word=16, width=20)
    ids = torch.randperm(len(embedding))[:draft].sort().values
    net = RecurrentNet(config, embedding.detach(), head.detach(), ids).to(target.dtype).requires_grad_(False)
    for weight in net.parameters():
        weight.normal_(std=1.5 * weight.shape[-1] ** -0.5 if weight.ndim == 2 else 1.0)
    return net.to(target.device)
