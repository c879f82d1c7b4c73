"""Linear layers whose weights are packed once for the CPU's kernels, and models in int8.

In float32, a product with a few rows spends more time reordering weights than multiplying: a tree of eight nodes costs twice as
much as a single token. In oneDNN's blocked layout, made once at loading, the tree costs about a fifth more (two AVX2 cores,
SmolLM2-135M). In bfloat16, the layout saves a third of the time for products of one row, and a quarter for 25 rows (two Zen 5
cores). Results agree up to rounding, which is checked at loading.

A model in int8 reads half the bytes of bfloat16. Integer sums are exact, and each row has its own scale. Everything between the
products is computed in float64, whose rounding never changes an integer in practice. A row's product, and thus the text, does
not depend on the other rows: a pass over a tree equals autoregressive passes.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.decoder_layer import Layout, Product, plain
from specviz.drafting.networks.eagle_head import PublishedEagleHead
from specviz.drafting.networks.network import Network
from specviz.engine.stop import heed
from specviz.errors import ModelUnavailable
from specviz.models.device import cpu_has_bfloat16

# Layout hint: rows of a typical pass over a tree.
_ROWS = 32
_APART = {torch.float32: 1e-3, torch.bfloat16: 1e-2}
"""Largest allowed relative error of packed products, by dtype."""
_MIDDLE = 128
"""Zero point of the unsigned bytes of the integer kernel. Signed bytes would select a kernel that is a hundred times slower."""
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers that read the same input, as transformers names them."""
INT8_ERROR = 0.02
"""Largest allowed relative error of products in int8."""


class PackedLinear(nn.Module):
    """Frozen linear layer in oneDNN's layout. ``keep_weight``: whether ``weight`` stays readable for modules that share it."""

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
    """Whether oneDNN's layout pays off for a matrix on this machine.

    It does for float32, and for bfloat16 if the CPU multiplies in it, provided that packed products agree with plain ones.
    """
    if weight.device.type != "cpu" or weight.dtype not in _APART or (weight.dtype == torch.bfloat16 and not cpu_has_bfloat16()):
        return False
    return computes(PackedLinear, weight.dtype, weight.device, _APART[weight.dtype])


def pack(model: Any) -> bool:
    """Replace the plain linear layers of ``model`` in place. Returns False, with the model untouched, if it cannot be packed.

    The output head keeps its plain weight too, because drafters share it and it is often the embedding itself.
    """
    first = next(model.parameters())
    if not packs(first):
        return False
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == first.dtype:  # some models hold modules in another dtype
                heed()
                setattr(module, name, PackedLinear(child.weight, child.bias, keep_weight=child is head))
    return True


def computes(layout: Layout, dtype: torch.dtype, device: torch.device, apart: float) -> bool:
    """Whether products in this ``layout`` have a relative error below ``apart`` on this machine and do not depend on other rows.

    torch's operators for packed products are private, and machines differ.
    """
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


def layout_for(network: Network | PublishedEagleHead) -> Layout:
    """Return oneDNN's layout if it pays off for the network, else the plain layout."""
    weights = network.tensors.values() if isinstance(network, PublishedEagleHead) else network.parameters()
    return PackedLinear if packs(next(iter(weights))) else plain


def eight_bits(weight: Tensor) -> Product:
    """Product with one byte per weight, a scale per row of the matrix and of the input, and exact integer sums."""
    return _bytes(weight, _steps())


@lru_cache(maxsize=1)
def _steps() -> int:
    """Largest integer of a weight: 127, or 63 on processors with AVX2 but without VNNI.

    Such processors add two adjacent products in 16 bits, with saturation.
    """
    ones = torch.ones(32, 64)
    return 127 if torch.allclose(_bytes(ones, 127)(ones[:1]), torch.tensor(64.0), rtol=1e-3) else 63


def rounded(values: Tensor, steps: int = 127) -> tuple[Tensor, Tensor]:
    """Return integers up to ``steps`` as float32, and the scale [row, 1] of each row."""
    wide = values.detach().float()
    scale = wide.abs().amax(-1, keepdim=True).clamp_min(1e-12) / steps
    return (wide / scale).round_(), scale


def _bytes(weight: Tensor, steps: int) -> Product:
    integers, scale = rounded(weight, steps)
    packed = torch.ops.onednn.qlinear_prepack(integers.to(torch.int8), None)
    scale, zeros = scale[:, 0].contiguous(), torch.zeros(len(scale), dtype=torch.int32)

    def product(x: Tensor) -> Tensor:
        rows, share = rounded(x)
        output = torch.ops.onednn.qlinear_pointwise(
            rows.add_(_MIDDLE).to(torch.uint8), 1.0, _MIDDLE, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return output.mul_(share).to(x.dtype)

    return product


class FewBitLinear(nn.Module):
    """Frozen linear layer with its matrix in this ``layout``."""

    def __init__(self, linear: nn.Linear, layout: Layout) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.product = layout(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        output = self.product(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return output if self.bias is None else output + self.bias


class JointPart(nn.Module):
    """One of several layers with the same input: ``columns`` of their ``joint`` product, which the first layer computes."""

    def __init__(self, joint: FewBitLinear, columns: slice, memory: threading.local) -> None:
        super().__init__()
        self.joint, self.columns, self.memory = joint, columns, memory

    def forward(self, x: Tensor) -> Tensor:
        if getattr(self.memory, "x", None) is not x:
            self.memory.x, self.memory.output = x, self.joint(x)
        part: Tensor = self.memory.output[..., self.columns]
        if self.columns.stop == self.joint.out_features:
            self.memory.x = self.memory.output = None
        return part


def join(module: nn.Module) -> None:
    """Replace the linear layers of ``module`` that read the same input by parts of one product in int8."""
    for names in _TOGETHER:
        layers: list[Any] = [getattr(module, name, None) for name in names]
        biases: list[Any] = [getattr(layer, "bias", None) for layer in layers]
        if any(type(layer) is not nn.Linear for layer in layers) or len({bias is None for bias in biases}) > 1:
            continue
        heed()
        wide: Any = nn.Linear(layers[0].in_features, sum(layer.out_features for layer in layers), device="meta")
        wide.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]), requires_grad=False)
        wide.bias = None if biases[0] is None else nn.Parameter(torch.cat(biases), requires_grad=False)
        joint, memory, start = FewBitLinear(wide, eight_bits), threading.local(), 0
        for name, layer in zip(names, layers, strict=True):
            setattr(module, name, JointPart(joint, slice(start, start := start + layer.out_features), memory))


class Int8Rows(nn.Module):
    """Frozen embedding in int8 with a scale per row; its vectors are float64."""

    integers: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = weight.shape
        integers, scale = rounded(weight)
        self.register_buffer("integers", integers.to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.integers[ids] * self.scale[ids]).double()

    @cached_property
    def weight(self) -> Tensor:
        """The whole matrix in float32, for drafters that share it."""
        return self.integers * self.scale


class Int8Head(FewBitLinear):
    """Output head in int8 with float32 logits. ``rows``: the head's matrix, for drafters that share it."""

    def __init__(self, linear: nn.Linear, rows: Int8Rows) -> None:
        super().__init__(linear, eight_bits)
        self.rows = rows

    @property
    def weight(self) -> Tensor:
        return self.rows.weight

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).float()


def check_int8(device: torch.device) -> None:
    """Raise ModelUnavailable if models cannot run in int8 on this device."""
    if device.type != "cpu":
        raise ModelUnavailable("int8 runs only on a CPU: choose bfloat16 or float16 on a GPU, or the device cpu.")
    # Without AVX, the operators are missing or run in a reference kernel.
    if "AVX" not in torch.backends.cpu.get_cpu_capability() or not computes(eight_bits, torch.float32, device, INT8_ERROR):
        raise ModelUnavailable(
            "This processor, or this PyTorch, has no fast int8 matrix products: they need AVX2 or AVX-512 and oneDNN. "
            "Choose bfloat16 or float32."
        )


def pack_int8(model: Any, name: str) -> None:
    """Convert ``model`` in place: linear layers and embedding to int8, other numbers to float64.

    Raises ModelUnavailable if the model has matrices of other kinds.
    """
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    modules = [module for module in model.modules() if type(module) is nn.Linear or module is table]
    known = {id(weight) for module in modules for weight in module.parameters(recurse=False)}
    others = [key for key, weight in model.named_parameters() if weight.dim() > 1 and id(weight) not in known]
    if others or type(table) is not nn.Embedding or type(head) is not nn.Linear:
        what = others[0] if others else "embedding or head"
        raise ModelUnavailable(
            f"{name} cannot run in int8: its {what} belongs to no plain linear layer or embedding. Choose bfloat16 or float32."
        )
    rows = Int8Rows(table.weight)
    ends = rows if head.weight is table.weight else Int8Rows(head.weight)
    for module in list(model.modules()):
        join(module)
        for part, child in list(module.named_children()):
            if type(child) is nn.Linear:
                heed()
                setattr(module, part, Int8Head(child, ends) if child is head else FewBitLinear(child, eight_bits))
    model.set_input_embeddings(rows)
    for parameter in model.parameters():
        parameter.data = parameter.data.double()
    model.number_format = torch.int8
    with suppress(AttributeError, OSError, TypeError):  # glibc keeps the temporary matrices, half of the model's size
        ctypes.CDLL(None).malloc_trim(0)
