"""Write a trace file in another tool's format, or as one HTML page that plays without a network."""

from __future__ import annotations

import argparse

from specviz.commands.console import print_message
from specviz.trace import export, store


def execute(options: argparse.Namespace) -> int:
    """Write the export and print its path."""
    written = export.write(store.read(options.file), options.to, options.out, options.step)
    print_message(f"Wrote {written}.")
    return 0
