"""Measure a benchmark suite on this machine. Every speed-up is a ratio of two runs in one process."""

from __future__ import annotations

import argparse

from specviz.commands.console import print_message, print_result
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET

HELP = "measure a benchmark suite on this machine"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--suite", required=True, metavar="NAME", help="the suite, such as quick")
    parser.add_argument("--methods", default="", metavar="A,B,C", help="only these methods, separated by commas")
    parser.add_argument("--target", default=DEFAULT_TEXT_TARGET, metavar="T", help="the model that verifies")
    parser.add_argument("--dtype", default="auto", metavar="D", help="the number format of all runs, such as float32")
    parser.add_argument("--quick", action="store_true", help="fewer prompts, for suites with many")
    parser.add_argument("--save", action="store_true", help="store the results for the app (only the suite `length`)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def execute(options: argparse.Namespace) -> int:
    """Run the suite; print rows on the error stream as they are measured, then the whole report."""
    from specviz.bench.runner import run_suite

    methods = tuple(name.strip() for name in options.methods.split(",") if name.strip())
    report = run_suite(options.suite, methods, options.target, print_message, options.quick, options.save, options.dtype)
    print_result(report.as_json() if options.json else report.as_table())
    return 0
