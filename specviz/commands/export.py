"""Export a trace file to another format, such as an HTML page that works offline."""

from __future__ import annotations

import argparse

from specviz.commands.console import print_message
from specviz.trace import export, store


def execute(options: argparse.Namespace) -> int:
    content = export.content(store.read(options.file), options.to, options.step)
    print_message(f"Wrote {store.save(content, options.out)}.")
    return 0
