"""Benchmark suites by name, and a report with the machine and versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import torch
import transformers

from specviz.bench import contention, costs, lengths, load, overheads, page, recognition, suites
from specviz.bench.kit import COMMON, Bencher, in_own_thread
from specviz.bench.report import Report
from specviz.errors import BadInput
from specviz.methods.registry import all_methods
from specviz.models.device import choose_dtype, dtype_name

Part = Callable[[Report, str, Sequence[str], bool], object]


def _of_engine(part: Callable[[Report, Bencher], None], method: str) -> Part:
    """Return a part of a suite that measures the engine with ``method``, unless the requested methods exclude ``method``."""

    def run(report: Report, target: str, methods: Sequence[str], quick: bool) -> None:
        if not methods or method in methods:
            in_own_thread(partial(part, report, Bencher(target)))

    return run


SUITES: dict[str, tuple[Part, ...]] = {
    "quick": (
        _of_engine(overheads.against_transformers, "autoregressive"),
        _of_engine(overheads.recording, "token_recycling"),
        *(suite.run for suite in suites.SUITES["memory"]),
    ),
    "live": (load.watching,),
    **{name: tuple(suite.run for suite in several) for name, several in suites.SUITES.items() if name != "memory"},
    "length": (lengths.run_length,),
    "text": (suites.SUITES["all"][0].run,),
    "all": (suites.run_all,),
    "recognition": (recognition.run,),
    "costs": (costs.run,),
    "contention": (contention.run,),
    "load": (load.load,),
    "page": (page.run,),
}


OWN_PROCESSES = ("contention", "load", "page", "live")
"""Suites that start other processes, which ``dtype`` would not reach."""


def run_suite(
    name: str,
    methods: Sequence[str] = (),
    target: str = "smollm2-135m-instruct",
    report: Callable[[str], None] = print,
    short: bool = False,
    save: bool = False,
    dtype: str = "auto",
) -> Report:
    """Run the suite ``name`` and return the report. ``report`` is called with every new line.

    ``methods``: methods to measure; empty for all. ``short``: fewer prompts. ``save``: also write the curves for the app.
    ``dtype``: dtype of all models. Raises BadInput for unknown names and for options that the suite does not support.
    """
    if name not in SUITES:
        raise BadInput(f"There is no suite {name!r}; choose one of {', '.join(SUITES)}.")
    unknown = sorted(set(methods) - set(all_methods()))
    if unknown:
        raise BadInput(f"There is no method {unknown[0]!r}; choose one of {', '.join(all_methods())}.")
    if save and name != "length":
        raise BadInput(f"The suite {name} does not support --save; use --save with the suite length.")
    if save and short:
        raise BadInput("--save requires a complete measurement; omit --quick.")
    if dtype != "auto" and name in OWN_PROCESSES:
        raise BadInput(f"The suite {name} does not support --dtype; omit --dtype.")
    said = {} if dtype == "auto" else {"dtype": dtype_name(choose_dtype(dtype))}
    targets = dict.fromkeys(one.target_of(target) for one in suites.SUITES.get(name, ())) or [target]
    suite_report = Report(name, {**where(", ".join(targets)), **said}, say=report)
    COMMON.update(said)
    try:
        for part in (partial(lengths.run_length, keep=True),) if save else SUITES[name]:
            part(suite_report, target, methods, short)
    finally:
        COMMON.clear()
    return suite_report


def where(target: str) -> dict[str, str]:
    """Return the target, machine, library versions and date."""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else f"{platform.machine()} CPU"
    return {
        "target": target,
        "machine": f"{device}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
