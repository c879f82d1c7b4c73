"""Measure a benchmark suite on this machine. Every speed-up is a ratio of two runs in one process."""

from __future__ import annotations

import argparse

from specviz.commands.console import print_message, print_result


def execute(options: argparse.Namespace) -> int:
    """Run the suite; print rows on the error stream as they are measured, then the whole report."""
    from specviz.bench.runner import run_suite

    methods = tuple(name.strip() for name in options.methods.split(",") if name.strip())
    report = run_suite(options.suite, methods, options.target, print_message, options.quick, options.save, options.dtype)
    print_result(report.as_json() if options.json else report.as_table())
    return 0
