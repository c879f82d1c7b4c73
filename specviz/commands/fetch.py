"""Fetch a model to this machine ahead of time. Files that are already present are checked, not fetched again."""

from __future__ import annotations

import argparse

from specviz.commands.console import ProgressLine, print_result
from specviz.models.hub.catalog import entries

HELP = "fetch a model to this machine"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    names = ", ".join(entry.name for entry in entries())
    parser.add_argument("name", metavar="NAME", help=f"a catalogue name ({names}), a hub id or a .gguf file")


def execute(options: argparse.Namespace) -> int:
    """Fetch a model and print the folder that holds it; progress goes to the error stream."""
    from specviz.models.hub.prepare import prepare

    progress = ProgressLine()
    try:
        folder = prepare(options.name, progress)
    finally:
        progress.close()
    print_result(folder)
    return 0
