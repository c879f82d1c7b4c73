"""Linear layers whose weights are packed once for the CPU's kernels instead of anew in every pass.

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

from specviz.drafting.networks.attention import Layout, Product, plain
from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.network import Network
from specviz.engine.stop import heed
from specviz.models.device import cpu_has_bfloat16

# Layout hint: rows of a typical pass over a tree.
_ROWS = 32
AGREE = {torch.float32: 1e-3, torch.bfloat16: 1e-2}
"""Absolute and relative tolerance between packed and plain products, by number format."""


class PackedLinear(nn.Module):
    """A frozen linear layer in oneDNN's own layout. ``weight`` stays readable where another module shares it."""

    def __init__(self, linear: nn.Linear, keep_weight: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().contiguous(), _ROWS)
        self.bias = linear.bias
        self.weight = linear.weight if keep_weight else None

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:  # oneDNN's operator has no backward pass
            return F.linear(x, self.packed.to_dense(), self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def can_pack(model: nn.Module) -> bool:
    """Whether oneDNN's layout pays off for this model's matrices; other models keep their layers."""
    return packs(next(model.parameters()))


def packs(weight: Tensor) -> bool:
    """Whether oneDNN's layout pays off for a matrix: float32, or bfloat16 where the processor multiplies in it, on a CPU with
    oneDNN."""
    operators = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not (operators and weight.device.type == "cpu" and torch.backends.mkldnn.is_available()):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported() and cpu_has_bfloat16()
    return weight.dtype == torch.float32


def pack(model: Any) -> bool:
    """Replace every plain linear layer of ``model`` in place; return False, with the model untouched, if it cannot be packed.

    The output head keeps its plain weight as well: drafters share it, and often it is the embedding itself.
    """
    dtype = next(model.parameters()).dtype
    if not can_pack(model) or not _agrees(dtype):
        return False
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == dtype:  # some classes keep a part in another format
                heed()
                setattr(module, name, PackedLinear(child, keep_weight=child is head))
    return True


def _agrees(dtype: torch.dtype) -> bool:
    """Whether packed and plain products agree on this machine, for one row and for several: torch's operators are private."""
    generator = torch.Generator().manual_seed(0)
    plain = nn.Linear(96, 64, bias=True, dtype=dtype).requires_grad_(False)
    packed = PackedLinear(plain, keep_weight=False)
    for rows in (1, 3, 16, 40):
        x = torch.randn(1, rows, 96, generator=generator).to(dtype)
        if not torch.allclose(plain(x), packed(x), atol=AGREE[dtype], rtol=AGREE[dtype]):
            return False
    return True


def layout_for(network: Network | FeatureHead) -> Layout:
    """Return oneDNN's layout where it pays off, as it does for a target: a few rows then cost little more than one."""
    weights = network.tensors.values() if isinstance(network, FeatureHead) else network.parameters()
    return packed if packs(next(iter(weights))) else plain


def packed(weight: Tensor) -> Product:
    """Product with a matrix [out, in] in the layout of the processor's kernels; the plain product if the two results disagree."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    module = PackedLinear(linear, keep_weight=False)
    probe = torch.linspace(-1, 1, 3 * weight.shape[1], dtype=weight.dtype).view(3, -1)
    apart = AGREE[weight.dtype]
    agrees = torch.allclose(module(probe), F.linear(probe, weight), atol=apart, rtol=apart)
    return module if agrees else plain(weight)
