"""Export a trace file to another format, such as an HTML page that works offline."""

from __future__ import annotations

import argparse

from specviz.commands.console import print_message
from specviz.trace import export, store


def execute(options: argparse.Namespace) -> int:
    written = export.write(store.read(options.file), options.to, options.out, options.step)
    print_message(f"Wrote {written}.")
    return 0
