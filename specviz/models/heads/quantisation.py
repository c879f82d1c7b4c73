"""Low-bit matrices: storage of a frozen matrix that halves or quarters the bytes which a pass over a few rows reads.

A pass over one to eight tokens costs as much as reading the weights. Every input row is treated by itself, with its own scale in
the eight-bit product and none in the four-bit one. A row's result does not depend on the rows beside it: the distribution after a
text is the same however many drafted tokens are scored with it.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.attention import Layout, Product
from specviz.errors import ModelUnavailable

GROUP = 32
"""Number of weights that share a scale and an offset in the four-bit layout."""
_SIDE = 8
_ROWS = 32
"""Sides of an integer product on a GPU must be multiples of ``_SIDE``, and it needs at least ``_ROWS`` rows."""
_MIDDLE = 128
"""Zero point of the unsigned bytes that the kernel takes."""


def as_stored(weight: Tensor) -> Product:
    """Product with the matrix in its own number format; inputs and outputs keep theirs."""
    return lambda x: F.linear(x.to(weight.dtype), weight).to(x.dtype)


def eight_bits(weight: Tensor) -> Product:
    """Product with one byte per weight, and a scale for each row of the matrix and of the input; integer sums are exact."""
    return _bytes(weight, _steps())


@lru_cache(maxsize=1)
def _steps() -> int:
    """Largest integer of a weight: 127, or 63 on processors with AVX2 but without VNNI, which add two neighbouring products in
    16 bits, with saturation."""
    ones = torch.ones(32, 64)
    return 127 if torch.allclose(_bytes(ones, 127)(ones[:1]), torch.tensor(64.0), rtol=1e-3) else 63


def _rounded(values: Tensor, steps: int = 127) -> tuple[Tensor, Tensor]:
    """Whole numbers up to ``steps`` in float32, and the scale [row, 1] of each row."""
    wide = values.detach().float()
    scale = wide.abs().amax(-1, keepdim=True).clamp_min(1e-12) / steps
    return (wide / scale).round_(), scale


def _bytes(weight: Tensor, steps: int) -> Product:
    integers, scale = _rounded(weight, steps)
    packed = torch.ops.onednn.qlinear_prepack(integers.to(torch.int8), None)
    zeros = torch.zeros(len(scale), dtype=torch.int32)

    def product(x: Tensor) -> Tensor:
        rows, share = _rounded(x)
        output = torch.ops.onednn.qlinear_pointwise(
            rows.add_(_MIDDLE).to(torch.uint8), 1.0, _MIDDLE, packed, scale[:, 0], zeros, None, 1.0, 0, torch.float32, "none", [],
            "",
        )  # fmt: skip
        return (output * share).to(x.dtype)

    return product


def integer_product(weight: Tensor) -> Product:
    """As :func:`eight_bits`, by torch's own integer product, which runs on GPUs too and needs no read-back to the host.

    It requires more than 16 rows and sides that are multiples of 8, so inputs are padded with zeros. This costs little, since
    reading the weights dominates.
    """
    rows, columns = weight.shape
    integers, scale = _rounded(weight)
    padded = F.pad(integers.to(torch.int8), (0, -columns % _SIDE, 0, -rows % _SIDE)).T

    def product(x: Tensor) -> Tensor:
        wide, share = _rounded(x)
        most = max(_ROWS, len(x) + -len(x) % _SIDE)
        sums = torch._int_mm(F.pad(wide.to(torch.int8), (0, -columns % _SIDE, 0, most - len(x))), padded)[: len(x), :rows]
        return (sums.float() * scale[:, 0] * share).to(x.dtype)

    return product


def four_bits(weight: Tensor) -> Product:
    """Product with half a byte per weight, a scale and an offset for every 32 weights, and inputs in bfloat16."""
    rows, columns = weight.shape
    wide = weight.detach().float().view(rows, columns // GROUP, GROUP)
    low, high = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp_min(1e-12)
    integers = ((wide - low) / scale).round_().clamp_(0, 15).to(torch.int32).view(rows, columns)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1)
    # The kernel's zero point is the middle of the sixteen steps.
    both = torch.stack((scale[..., 0], low[..., 0] + 8 * scale[..., 0]), -1).transpose(0, 1)
    scales = both.contiguous().to(torch.bfloat16)

    def product(x: Tensor) -> Tensor:
        output = torch.ops.aten._weight_int4pack_mm_for_cpu(x.to(torch.bfloat16), packed, GROUP, scales)
        return output.to(x.dtype)

    return product


KINDS: dict[str, dict[str, tuple[Layout, Layout]]] = {
    "cpu": {"int8": (eight_bits, eight_bits), "int4": (four_bits, eight_bits)},
    "cuda": {"int8": (integer_product, integer_product)},
}
"""By type of device and kind: layouts of a model's layers and of its head, which would lose the most accuracy in four bits."""


def layouts_of(kind: str, device: torch.device) -> tuple[Layout, Layout]:
    """Layouts of layers and head in this low-bit ``kind``. Raises ModelUnavailable if the machine has no kernel for it."""
    layouts = KINDS.get(device.type, {}).get(kind)
    if layouts is None or not _works(layouts[0], device, 0.02 if kind == "int8" else 0.12):
        raise ModelUnavailable(
            f"This torch has no {kind} product for {device}: choose another intermediate model, such as small_draft, or run on "
            "a device that has one."
        )
    return layouts


@lru_cache(maxsize=8)
def _works(layout: Layout, device: torch.device, apart: float) -> bool:
    """Whether this product is correct on this machine: torch's operators for it are private, and machines differ."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 96, generator=generator).to(device)
    rows = torch.randn(5, 96, generator=generator).to(device)
    try:
        product = layout(weight)
        output, alone = product(rows), product(rows[2:3])
    except (AttributeError, RuntimeError, TypeError):
        return False
    expected = rows @ weight.T
    near = float((output - expected).norm() / expected.norm()) < apart
    return near and torch.allclose(output[2:3], alone, rtol=1e-2, atol=1e-2)
