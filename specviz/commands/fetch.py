"""Fetch a model to this machine. Files already present are checked, not fetched again."""

from __future__ import annotations

import argparse

from specviz.commands.console import ProgressLine, print_result


def execute(options: argparse.Namespace) -> int:
    from specviz.models.hub.prepare import prepare

    with ProgressLine() as progress:
        folder = prepare(options.name, progress)
    print_result(folder)
    return 0
