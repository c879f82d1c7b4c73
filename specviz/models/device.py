"""Choice of device and dtype (the user's, or the best on this machine), and a description of the machine.

``python -m specviz.models.device`` prints the hardware available to runs as a JSON object. The page calls it as a separate
process, so a page without runs needs no torch.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from specviz.engine.tiers import choose_tier
from specviz.errors import BadInput, ModelUnavailable
from specviz.models import room
from specviz.models.hub.catalog import NUMBER_BYTES, resolve

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in NUMBER_BYTES}
DEVICES = ("cpu", "cuda")
CPU_FACTS = Path("/proc/cpuinfo")
DRIVER = Path("/proc/driver/nvidia/version")
NOISE = re.compile(r"\((?:R|TM|C)\)|\bCPU\b|\bProcessor\b|\b\d+-Core\b|@.*$|\bwith\b.*$", re.IGNORECASE)
"""Parts of a processor's name that do not identify it."""


def choose_device(name: str = "auto") -> torch.device:
    """Return the device ``name``; for "auto", CUDA if available, else the CPU. A GPU's device has an index, like a tensor's.

    Raises BadInput or ModelUnavailable if no such device exists.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in DEVICES:
        raise BadInput(f"There is no device {name!r}; choose auto, cpu, cuda or cuda:0.")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ModelUnavailable(
            "CUDA was requested, but this PyTorch sees no CUDA device. Choose cpu, or install a PyTorch built for CUDA."
        )
    # cuDNN plans attention anew for each shape, and every text has a different shape. In training on an H200, planning took the
    # host 2.3 ms per call, thirty times as long as a matrix product.
    torch.backends.cuda.enable_cudnn_sdp(False)
    if device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if device.index >= torch.cuda.device_count():
        raise ModelUnavailable(f"There is no {name}: this machine has {torch.cuda.device_count()} CUDA device(s).")
    return device


def choose_devices(name: str = "auto") -> tuple[torch.device, ...]:
    """Return one device as :func:`choose_device` does, or several for ``cuda:all`` or a list such as ``cuda:0,cuda:1``.

    Raises BadInput or ModelUnavailable if a device is missing or named twice.
    """
    if name == "cuda:all":
        choose_device("cuda")
        return tuple(torch.device("cuda", number) for number in range(torch.cuda.device_count()))
    devices = tuple(choose_device(part.strip()) for part in name.split(","))
    if len(set(devices)) < len(devices):
        raise BadInput(f"{name!r} names a device twice; choose different ones, such as cuda:0,cuda:1.")
    return devices


def choose_dtype(name: str = "auto", device: torch.device | str = "cpu") -> torch.dtype:
    """Return the dtype ``name``. For "auto": bfloat16 if ``device`` computes in it, else float16 on CUDA and float32 on a CPU."""
    if name != "auto":
        if name not in DTYPES:
            raise BadInput(f"There is no number format {name!r}; choose auto, {', '.join(DTYPES)}.")
        return DTYPES[name]
    if torch.device(device).type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if cpu_has_bfloat16() else torch.float32


def check_room(names: Sequence[str], dtype: str = "auto", device: str = "auto") -> None:
    """Raise a SpecvizError, before any download, if these models, the target first, cannot fit together."""
    devices = choose_devices(device)
    room.check(names, dtype_name(format_of(names[0], dtype, devices[-1])), [str(one) for one in devices])


def format_of(name: str, dtype: str, device: torch.device) -> torch.dtype:
    """Return the dtype of the model called ``name``: the user's choice, or for "auto" the model's own or the device's."""
    entry = resolve(name).entry
    if entry is not None and dtype == "auto":
        integers = entry.int8 and device.type == "cpu" and "AVX512" in torch.backends.cpu.get_cpu_capability()
        dtype = "int8" if integers else entry.dtype or dtype
    return choose_dtype(dtype, device)


def dtype_name(dtype: torch.dtype) -> str:
    """Return "bfloat16" for ``torch.bfloat16``, and so on."""
    return str(dtype).removeprefix("torch.")


@cache
def cpu_has_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16. A timing would depend on other programs, and so would the text.

    Without them, bfloat16 still gains on one token, which is bound by memory traffic. It loses several times as much on a draft
    tree, which is bound by arithmetic.
    """
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return True
    # oneDNN also emulates the instructions on an x86 CPU with AVX-512.
    x86 = platform.machine() in ("x86_64", "AMD64")
    return not x86 and torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def describe(device: str = "auto") -> dict[str, Any]:
    """Return the hardware of a run on ``device``: kind, name, memory or cores, dtype and tier.

    ``unused_gpu``: whether there is a GPU for which this torch was not built.
    """
    where = choose_device(device)
    facts = {"kind": where.type, "dtype": dtype_name(choose_dtype("auto", where)), "tier": choose_tier("auto", where)[0]}
    if where.type == "cuda":
        gpu = torch.cuda.get_device_properties(where)
        return facts | {"name": gpu.name, "memory_gb": gpu.total_memory / 1e9, "count": torch.cuda.device_count()}
    idle_gpu = DRIVER.is_file() and not torch.cuda.is_available()
    return facts | {"name": processor(), "cores": cores(), "unused_gpu": idle_gpu}


@cache
def processor() -> str:
    """Return the processor's name, without generic words such as "CPU"."""
    name = platform.processor() or platform.machine()
    if CPU_FACTS.is_file():
        named = re.search(r"^model name\s*:\s*(.+)$", CPU_FACTS.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        name = named.group(1) if named else platform.machine()
    return " ".join(NOISE.sub(" ", name).split()) or platform.machine()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    print(json.dumps(describe(*sys.argv[1:2])))
