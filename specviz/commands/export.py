"""Write a trace file in another tool's format, or as one HTML page that plays without a network."""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.commands.console import print_message
from specviz.trace import export, store

HELP = "write a trace file in another format"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a .spectrace.jsonl file")
    parser.add_argument("--to", required=True, choices=tuple(export.KINDS), help="the format")
    parser.add_argument("--out", required=True, metavar="F", help="the file to write")
    step = f"the step of the tree, from 0, for {' and '.join(export.OF_ONE_STEP)}"
    parser.add_argument("--step", type=int, metavar="N", help=step)


def execute(options: argparse.Namespace) -> int:
    """Write the export and print its path."""
    from specviz.viewer import replay

    written = export.write(store.read(Path(options.file)), options.to, options.out, options.step, replay.of_trace)
    print_message(f"Wrote {written}.")
    return 0
