"""Kernels that a GPU would run in a region, counted without one.

Inductor writes its Triton code, which is read and not run: each Triton kernel, product and attention is one launch. The C++
code that it writes for a CPU is no measure, since it fuses by other rules: for a layer of one row 7 loops, in Triton 4 kernels.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch._inductor import config
from torch._inductor.graph import GraphLowering
from transformers import AutoModelForCausalLM

from specviz.engine.tiers import COLUMNS
from specviz.targets.decoder import Decoder

LAUNCH = re.compile(r"\.run\(|extern_kernels\.\w+\(|torch\.ops\.aten\.\w+\.\w+\(")


class _Driver:
    """What inductor asks Triton about the GPU."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0


def triton_code(function: Callable[..., Any], given: Sequence[Any]) -> str:
    """The host code of a region with these arguments. Needs Triton, but no GPU."""
    import triton

    written: list[str] = []

    def stop(graph: GraphLowering) -> None:
        written.append(graph.codegen()[0].value)
        raise InterruptedError

    triton.runtime.driver.set_active(_Driver())
    torch._dynamo.reset()
    with (
        config.patch(cpu_backend="triton", force_disable_caches=True),
        mock.patch.object(GraphLowering, "compile_to_module", stop),
        torch.inference_mode(),
    ):
        try:
            torch.compile(function, fullgraph=True, dynamic=False)(*given)
        except Exception:
            if not written:
                raise
    torch._dynamo.reset()
    return written[0].partition("def call(")[2]


def pass_kernels(config: Any, rows: int) -> tuple[int, int]:
    """Launches of one layer, and of a whole compiled pass over so many rows, of a model with this configuration."""
    small = copy.deepcopy(config)
    small.num_hidden_layers = 1
    model = AutoModelForCausalLM.from_config(small).bfloat16().eval().requires_grad_(False)
    enter, layer, leave = (kernels(*call) for call in Decoder(model)._calls(rows, COLUMNS[0]))
    return layer, enter + config.num_hidden_layers * layer + leave


def kernels(function: Callable[..., Any], given: Sequence[Any]) -> int:
    """Launches of one call of a region."""
    return len(LAUNCH.findall(triton_code(function, given)))
