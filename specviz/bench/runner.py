"""Runs a suite by name and says where it was measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import torch
import transformers

from specviz.bench.kit.measure import COMMON
from specviz.bench.kit.report import Report
from specviz.bench.suites import (
    arms,
    batch,
    chain,
    contention,
    costs,
    diffusion,
    dispatch,
    eagle,
    image,
    learning,
    length,
    load,
    page,
    quick,
    ssm,
    table,
    uploads,
    vision,
)
from specviz.errors import BadInput
from specviz.methods.registry import all_methods
from specviz.models.device import choose_dtype, dtype_name

Suite = Callable[[Report, str, Sequence[str]], None]
SUITES: dict[str, Suite] = {
    "quick": quick.run,
    "chain": chain.run,
    "batch": batch.run,
    "eagle": eagle.run,
    "acceptance": eagle.acceptance,
    "speed": eagle.speed,
    "diffusion": diffusion.run,
    "dispatch": dispatch.run,
    "image": image.run,
    "image-sweeps": partial(image.run, sweeps=True),
    "ssm": ssm.run,
    "vision": vision.run,
    "length": length.run,
    "learning": learning.run,
    "arms": arms.run,
    "contention": contention.run,
    "costs": costs.run,
    "load": load.run,
    "uploads": uploads.run,
    "page": page.run,
    "text": partial(table.run, only="text"),
    "all": table.run,
}
SHORT: dict[str, Suite] = {
    "chain": partial(chain.run, quick=True),
    "eagle": partial(eagle.run, quick=True),
    "acceptance": partial(eagle.acceptance, quick=True),
    "speed": partial(eagle.speed, quick=True),
    "diffusion": partial(diffusion.run, quick=True),
    "image": partial(image.run, quick=True),
    "image-sweeps": partial(image.run, quick=True, sweeps=True),
    "ssm": partial(ssm.run, quick=True),
    "vision": partial(vision.run, quick=True),
    "length": partial(length.run, quick=True),
    "arms": partial(arms.run, quick=True),
    "contention": partial(contention.run, quick=True),
    "costs": partial(costs.run, quick=True),
    "load": partial(load.run, quick=True),
    "uploads": partial(uploads.run, quick=True),
    "page": partial(page.run, quick=True),
    "text": partial(table.run, only="text", quick=True),
    "all": partial(table.run, quick=True),
}
"""The same on fewer prompts, where a suite takes hours."""


OWN_PROCESSES = ("contention", "load", "uploads", "page", "learning")
"""Suites that run the app or other processes as they come, or nothing at all."""
KEEPING: dict[str, Suite] = {"length": partial(length.run, keep=True)}
"""Suites whose measurement the app draws, and which keep it where the app looks."""


def run_suite(
    name: str,
    methods: Sequence[str] = (),
    target: str = "smollm2-135m-instruct",
    report: Callable[[str], None] = print,
    short: bool = False,
    save: bool = False,
    dtype: str = "auto",
) -> Report:
    """Measure the suite called ``name``; ``report`` hears each row as it is known. With ``save`` the app's copy of it is
    written anew, but for methods that were not asked for. ``dtype`` is the number format of all its runs. Raises BadInput for
    unknown names, and where there is nothing whole to save."""
    if name not in SUITES:
        raise BadInput(f"There is no suite {name!r}; there are: {', '.join(SUITES)}.")
    unknown = sorted(set(methods) - set(all_methods()) - {"recording", "live"})
    if unknown:
        raise BadInput(f"There is no method {unknown[0]!r}; there are: {', '.join(all_methods())}.")
    if save and name not in KEEPING:
        raise BadInput(f"The app draws nothing of the suite {name}; --save goes with {', '.join(KEEPING)}.")
    if save and short:
        raise BadInput("--save keeps a whole measurement; leave out --quick.")
    if dtype != "auto" and name in OWN_PROCESSES:
        raise BadInput(f"The suite {name} asks for no number format; leave out --dtype.")
    said = {} if dtype == "auto" else {"dtype": dtype_name(choose_dtype(dtype))}
    suite_report = Report(name, {**where(target), **said}, say=report)
    COMMON.update(said)
    try:
        (KEEPING if save else SHORT if short else SUITES).get(name, SUITES[name])(suite_report, target, methods)
    finally:
        COMMON.clear()
    return suite_report


def where(target: str) -> dict[str, str]:
    """Target, machine, libraries and date: without them a number means nothing."""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else f"{platform.machine()} CPU"
    return {
        "target": target,
        "machine": f"{device}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
