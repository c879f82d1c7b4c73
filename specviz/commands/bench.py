"""Run a benchmark suite on this machine. Speed-ups are ratios of two runs in the same process."""

from __future__ import annotations

import argparse

from specviz.commands.console import print_message, print_result


def execute(options: argparse.Namespace) -> int:
    """Run the suite. Rows go to the error stream as they are measured, the report to standard output."""
    from specviz.bench.runner import run_suite

    methods = tuple(name.strip() for name in options.methods.split(",") if name.strip())
    report = run_suite(options.suite, methods, options.target, print_message, options.quick, options.save, options.dtype)
    print_result(report.as_json() if options.json else report.as_table())
    return 0
