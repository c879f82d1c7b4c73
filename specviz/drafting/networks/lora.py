"""Merging of a LoRA delta (B·A) into a network's matrices at load time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from specviz.errors import ModelUnavailable

TALL = ".tall"
WIDE = ".wide"


@torch.no_grad()
def merge_lora(network: nn.Module, factors: Mapping[str, Tensor], name: str) -> None:
    """Add ``tall`` [row, rank] times ``wide`` [rank, column] to matrices [row, column] of ``network``, in place.

    ``factors``: tensors named after the matrices, with the suffixes ``.tall`` and ``.wide``. ``name``: name of the delta in
    messages. Raises ModelUnavailable if a factor is missing or does not fit the network.
    """
    known = dict(network.named_parameters())
    changed = {key.removesuffix(TALL) for key in factors if key.endswith(TALL)}
    if set(factors) != {key + end for key in changed for end in (TALL, WIDE)}:
        raise ModelUnavailable(f"{name} is incomplete: every matrix needs both factors. Download the file again.")
    for key in changed:
        tall, wide = factors[key + TALL], factors[key + WIDE]
        fits = key in known and tall.shape[1] == wide.shape[0]
        if not fits or known[key].shape != (tall.shape[0], wide.shape[1]):
            raise ModelUnavailable(f"{name} changes a matrix {key} that this drafter does not have in that shape.")
    for key in changed:
        where = known[key]
        tall, wide = (factors[key + end].to(where.device).float() for end in (TALL, WIDE))
        where.add_((tall @ wide).to(where.dtype))
