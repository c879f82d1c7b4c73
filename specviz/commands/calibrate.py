"""``calibrate``: find a method's draft tree, or its depth, from decoded text, and keep it where the method looks."""

from __future__ import annotations

import argparse

from specviz.commands.console import tell
from specviz.models.catalog import DEFAULT_TEXT_TARGET

HELP = "find a method's draft tree from decoded text"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the user may say."""
    parser.add_argument("name", metavar="METHOD", help="a method whose tree is found from data, such as stand")
    parser.add_argument("--target", default=DEFAULT_TEXT_TARGET, metavar="T", help="the model that verifies")


def execute(options: argparse.Namespace) -> int:
    """Calibrate, and print the file that holds the tree."""
    from specviz.bench import calibrate, calibrate_drafted

    drafted = calibrate_drafted.RUNS.get(options.name)
    print(drafted(options.target, report=tell) if drafted else calibrate.run(options.name, options.target, report=tell))
    return 0
