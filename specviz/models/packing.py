"""Linear layers whose weights are packed once for the CPU's kernels, not in every pass.

In float32 a product with a few rows spends more time re-ordering the weights than multiplying: a tree of eight costs twice a
single token. In oneDNN's blocked layout, made once at loading, it costs about a fifth more (two AVX2 cores, SmolLM2-135M). In
bfloat16 the layout takes a third off the products of one row and a quarter off those of 25 (two Zen 5 cores): autoregressive
decoding gains most. Same arithmetic in another order: results agree to rounding, which is checked at loading.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.attention import Layout, plain
from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.network import Network
from specviz.engine.stop import heed
from specviz.models.device import cpu_has_bfloat16

# Layout hint: rows of a typical pass over a tree.
_ROWS = 32
_APART = {torch.float32: 1e-3, torch.bfloat16: 1e-2}
"""Largest allowed relative error of packed products, by number format."""


class PackedLinear(nn.Module):
    """A frozen linear layer in oneDNN's own layout. ``weight`` stays readable where another module shares it."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, keep_weight: bool = False) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
        self.bias = bias
        self.weight = weight if keep_weight else None

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:  # oneDNN's operator has no backward pass
            return F.linear(x, self.packed.to_dense(), self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def packs(weight: Tensor) -> bool:
    """Whether oneDNN's layout pays off for a matrix: float32, or bfloat16 where the processor multiplies in it, on a CPU whose
    packed products agree with plain ones."""
    if weight.device.type != "cpu" or weight.dtype not in _APART or (weight.dtype == torch.bfloat16 and not cpu_has_bfloat16()):
        return False
    return computes(PackedLinear, weight.dtype, weight.device, _APART[weight.dtype])


def pack(model: Any) -> bool:
    """Replace every plain linear layer of ``model`` in place; return False, with the model untouched, if it cannot be packed.

    The output head keeps its plain weight as well: drafters share it, and often it is the embedding itself.
    """
    first = next(model.parameters())
    if not packs(first):
        return False
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == first.dtype:  # some models hold modules in another format
                heed()
                setattr(module, name, PackedLinear(child.weight, child.bias, keep_weight=child is head))
    return True


def computes(layout: Layout, dtype: torch.dtype, device: torch.device, apart: float) -> bool:
    """Whether products in this ``layout`` are right on this machine up to the relative error ``apart``, and each row's is
    independent of the rows beside it: torch's operators for them are private, and machines differ."""
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(count, 96, generator=generator).to(device, dtype) for count in (64, 40))
    try:
        product = layout(weight)
        whole, *parts = [product(rows[:count]) for count in (40, 16, 3, 1)]
    except (AttributeError, RuntimeError, TypeError):
        return False
    expected = rows @ weight.T
    near = float((whole - expected).norm() / expected.norm()) < apart
    return near and all(torch.allclose(whole[: len(part)], part, rtol=1e-2, atol=1e-2) for part in parts)


def layout_for(network: Network | FeatureHead) -> Layout:
    """Return oneDNN's layout where it pays off, as it does for a target: a few rows then cost little more than one."""
    weights = network.tensors.values() if isinstance(network, FeatureHead) else network.parameters()
    return PackedLinear if packs(next(iter(weights))) else plain
