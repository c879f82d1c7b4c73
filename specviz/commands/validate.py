"""Check whether trace files follow the format; an error names the line and field that break it."""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.commands.console import say
from specviz.trace import store
from specviz.trace.schema import SCHEMA_VERSION

HELP = "check trace files, and bring older ones up to date"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="a .spectrace.jsonl file")
    rewrite = f"write each valid file anew, in version {SCHEMA_VERSION} of the format"
    parser.add_argument("--rewrite", action="store_true", help=rewrite)


def execute(options: argparse.Namespace) -> int:
    """Print that each file is valid. Raises BadTrace naming line and field of the first invalid one."""
    for file in options.files:
        trace = store.read(Path(file))
        ended = "still going on" if trace.end is None else f"ended by {trace.end.reason}"
        say(f"{file} is a valid trace: {trace.run.title}, {len(trace.steps)} steps, {ended}.")
        if options.rewrite:
            store.write(trace, file)
    return 0
