"""Command line of ``gpu_first_run.sh``: measure all or some parts, or print the results of an earlier run."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specviz.bench.first_run import parts
from specviz.bench.first_run.sizes import DRY, GPU, Sizes
from specviz.bench.report import Report, Row

OLDEST = (5, 23)
"""Oldest supported version of transformers, as in ``requirements.txt``; earlier versions index hidden states differently."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0 if every part finished, else 1."""
    parser = argparse.ArgumentParser(prog="gpu_first_run.sh", description="measure on a GPU")
    parser.add_argument("--cpu", action="store_true", help="do a dry run: every part at tiny sizes, on any machine")
    parser.add_argument("--out", type=Path, default=Path("gpu_first_run.json"), metavar="FILE", help="file for the results")
    parser.add_argument(
        "--parts", default=",".join(parts.PARTS), metavar="A,B", help=f"parts to run, from {', '.join(parts.PARTS)}"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="time limit for all parts together (default: 480; with --cpu: 900)"
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="print the results in FILE without measuring")
    parser.add_argument("--part", choices=tuple(parts.PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sizes = DRY if options.cpu else GPU
    if options.rows:
        print(rows_for_results(json.loads(options.rows.read_text(encoding="utf-8"))))
        return 0
    if options.part:
        measure(options.part, sizes, options.out)
        return 0
    names = options.parts.replace(" ", "").split(",")
    if unknown := sorted(set(names) - set(parts.PARTS)):
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(parts.PARTS)}")
    if (reason := _too_old()) is not None:
        parser.error(reason)
    if not options.cpu:
        import torch

        if not torch.cuda.is_available():
            parser.error("PyTorch finds no CUDA device; use --cpu for a dry run")
    record = parts.run(options.out.resolve(), names, options.cpu, options.seconds or sizes.whole)
    print(rows_for_results(record))
    return int(any(part["state"] != "done" for part in record["parts"].values()))


def rows_for_results(record: Mapping[str, Any]) -> str:
    """Return the machine and versions, the tables, the lines for ``assets/results.json`` and the unfinished parts, as text."""
    device, versions = record["device"], record["versions"]
    memory = f", {device['memory_gb']:g} GB" if "memory_gb" in device else ""
    where = {
        "machine": device["name"] + memory, "torch": f"{versions['torch']} (CUDA {versions['cuda']})",
        "transformers": versions["transformers"], "commit": versions["commit"][:9], "date": record["date"],
        "seconds": f"{record['seconds']:.0f}",
    }  # fmt: skip
    report = Report("dry run, no measurement" if record["dry"] else "first run", where)
    for part in record["parts"].values():
        for row in part["rows"]:
            report.rows.append(Row(**{key: value for key, value in row.items() if key != "reached"}))
    troubles = [
        f"- {name}: {part['state']}. {part['error']}" for name, part in record["parts"].items() if part["state"] != "done"
    ]
    entries = ["", "For results.json:", "", *(entry(row) for row in report.rows if row.value is not None)]
    return "\n".join([report.as_table(), *entries, *(["", "Not finished:", "", *troubles] if troubles else [])])


def entry(row: Row) -> str:
    """Return a line of ``results.json``: speed-up and τ for a row with cells, else value, unit, goal and detail."""
    name = row.name
    cells: list[Any] = [row.unit, row.bound or None, row.detail or None]
    if row.cells:
        name, cells = f"{row.table} {row.cells['method']}", [float(row.cells["τ"])]
    key = re.sub(r"\W+", "_", name).strip("_")
    return f'"{key}": {json.dumps([name, round(row.value or 0.0, 2), *cells], ensure_ascii=False)},'


def _too_old() -> str | None:
    """Return an error message if transformers is too old, else None."""
    found = version("transformers")
    if tuple(map(int, found.split(".")[:2])) >= OLDEST:
        return None
    wanted = ".".join(map(str, OLDEST))
    return f"transformers {found} is too old: {wanted} or newer is required. Put a newer wheel first on PYTHONPATH."


def measure(name: str, sizes: Sizes, file: Path) -> None:
    """Run one part in this process; rewrite ``file`` after every row."""
    part = parts.PARTS[name]

    def log(line: str) -> None:
        print(line, flush=True)
        file.write_text(report.as_json(), encoding="utf-8")

    report = Report(name, {}, say=log)
    function = getattr(importlib.import_module(f"specviz.bench.first_run.{part.module}"), part.function)
    function(*([report, part.argument, sizes] if part.argument else [report, sizes]))


if __name__ == "__main__":
    sys.exit(main())
