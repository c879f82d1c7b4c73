"""Fetch a model to this machine ahead of time. Files that are already present are checked, not fetched again."""

from __future__ import annotations

import argparse

from specviz.commands.console import ProgressLine, print_result


def execute(options: argparse.Namespace) -> int:
    """Fetch a model and print the folder that holds it; progress goes to the error stream."""
    from specviz.models.hub.prepare import prepare

    with ProgressLine() as progress:
        folder = prepare(options.name, progress)
    print_result(folder)
    return 0
