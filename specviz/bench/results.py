"""Printer of ``RESULTS.md`` from ``assets/results.json``: ``python -m specviz.bench.results``."""

from __future__ import annotations

import json

from specviz.methods.results import FILE, tables

HEAD = """# Measurements

Printed by `python -m specviz.bench.results` from [results.json](../assets/results.json), which has further
tables; the [log](LOG.md) describes how the numbers were obtained. The text target is SmolLM2-135M-Instruct. "1.3×" is
the time of the target's own run divided by the method's, in one process; τ is the number of tokens per target pass,
bonus included. A *goal* was set before measuring. **Short runs vary by a tenth: smaller differences mean nothing.**
`bench` is `python -m specviz bench`. The machines:
"""


def page() -> str:
    """Return the text of ``RESULTS.md``, with every table that has a title."""
    shown = [table for table in tables().values() if table.title]
    machines = json.loads(FILE.read_text("utf-8"))["machines"]
    named = [f"- **{name}**: {machines[name]}." for name in dict.fromkeys(table.machine for table in shown)]
    sections = []
    for table in shown:
        columns = [name for name in table.columns if name != "unit"]
        rows = [[table.columns[name][0] for name in columns], ["---", *["---:"] * (len(columns) - 1)]]
        rows += [[table.figure(row, name) for name in columns] for row in table.rows]
        lines = "\n".join(f"|{'|'.join(row)}|" for row in rows)
        sections.append(
            f"\n## {table.title}\n\n{table.says} *{table.machine}, {table.date}:* "
            f"`{table.command}`{table.commit and f' (commit {table.commit})'}\n\n{lines}"
        )
    return "\n".join([HEAD, *named, *sections, ""])


if __name__ == "__main__":
    print(page(), end="")
