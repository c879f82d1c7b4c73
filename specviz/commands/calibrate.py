"""Calibrate a method's draft tree or depth on decoded text, and store the result for later runs."""

from __future__ import annotations

import argparse
from functools import partial

from specviz.commands.console import print_message, print_result
from specviz.errors import BadInput


def execute(options: argparse.Namespace) -> int:
    from specviz.bench.calibrate import drafted as calibrate_drafted
    from specviz.bench.calibrate import replay as calibrate

    drafted = calibrate_drafted.RUNS.get(options.name)
    if options.draft and options.name != "polybasic":
        raise BadInput(f"{options.name} is calibrated without a draft model; omit --draft.")
    more = {"draft": options.draft} if options.draft else {}
    run = partial(calibrate.run, options.name) if drafted is None else drafted
    print_result(run(options.target, report=print_message, **more))
    return 0
