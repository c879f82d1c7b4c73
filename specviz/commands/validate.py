"""Check whether a trace file follows the format; an error names the line and field that break it."""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.commands.console import say
from specviz.trace import store

HELP = "check a trace file"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a .spectrace.jsonl file")


def execute(options: argparse.Namespace) -> int:
    """Print that the file is valid. Raises BadTrace with the line and field if it is not."""
    trace = store.read(Path(options.file))
    ended = "still going on" if trace.end is None else f"ended by {trace.end.reason}"
    say(f"{options.file} is a valid trace: {trace.run.title}, {len(trace.steps)} steps, {ended}.")
    return 0
