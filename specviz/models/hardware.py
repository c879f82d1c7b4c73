"""Hardware available to runs, as one JSON object: ``python -m specviz.models.hardware``.

The page runs it in a separate process, so that a page without runs needs no torch.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from specviz.engine.tiers import choose_tier
from specviz.models.device import choose_device, choose_dtype, dtype_name

CPU_FACTS = Path("/proc/cpuinfo")
DRIVER = Path("/proc/driver/nvidia/version")
NOISE = re.compile(r"\((?:R|TM|C)\)|\bCPU\b|\bProcessor\b|\b\d+-Core\b|@.*$|\bwith\b.*$", re.IGNORECASE)
"""Parts of a processor's name that do not identify it."""


def describe(device: str = "auto") -> dict[str, Any]:
    """Hardware of a run on ``device``: kind, name, memory or cores, number format and tier. ``unused_gpu`` marks a GPU that
    this torch was not built for."""
    where = choose_device(device)
    facts = {"kind": where.type, "dtype": dtype_name(choose_dtype("auto", where)), "tier": choose_tier("auto", where)[0]}
    if where.type == "cuda":
        gpu = torch.cuda.get_device_properties(where)
        return facts | {"name": gpu.name, "memory_gb": gpu.total_memory / 1e9, "count": torch.cuda.device_count()}
    idle_gpu = DRIVER.is_file() and not torch.cuda.is_available()
    return facts | {"name": processor(), "cores": cores(), "unused_gpu": idle_gpu}


@cache
def processor() -> str:
    """The processor's name, without generic words such as "CPU"."""
    name = platform.processor() or platform.machine()
    if CPU_FACTS.is_file():
        named = re.search(r"^model name\s*:\s*(.+)$", CPU_FACTS.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        name = named.group(1) if named else platform.machine()
    return " ".join(NOISE.sub(" ", name).split()) or platform.machine()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    print(json.dumps(describe(*sys.argv[1:2])))
