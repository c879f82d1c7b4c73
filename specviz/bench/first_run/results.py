"""What the first run left, as rows for RESULTS.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specviz.bench.kit.report import Report, Row


def rows_for_results(record: Mapping[str, Any]) -> str:
    """Markdown: where it was measured, what has a goal or a number of its own, a table for each suite, what went wrong."""
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
    return "\n".join([report.as_table(), *(["", "Not done:", "", *troubles] if troubles else [])])
