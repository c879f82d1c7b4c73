"""Validate trace files. An error names the invalid line and field."""

from __future__ import annotations

import argparse

from specviz.commands.console import print_result
from specviz.trace import store


def execute(options: argparse.Namespace) -> int:
    for file in options.files:
        trace = store.read(file)
        ended = f"ended by {trace.end.reason}" if trace.end else "unfinished"
        print_result(f"{file} is a valid trace: {trace.run.title}, {len(trace.steps)} steps, {ended}.")
        if options.rewrite:
            store.write(trace, file)
    return 0
