"""Inspect a drafter: how well it predicts the target, and whether another reading of the weights does better."""

from __future__ import annotations

import argparse

from specviz.commands.console import ProgressLine, print_json, print_message, print_result, read_prompts

MISREAD = 1
MOST_PROMPTS = 256


def execute(options: argparse.Namespace) -> int:
    """Inspect the drafter. The exit status is 1 if another reading of the weights is clearly better."""
    from specviz.inspection import PROMPTS, QUESTIONS
    from specviz.inspection.report import inspect

    own = PROMPTS if options.image is None else QUESTIONS
    prompts = own if options.prompts is None else read_prompts(options.prompts, MOST_PROMPTS)
    with ProgressLine() as progress:
        report = inspect(
            options.head, options.target, prompts, options.tokens, options.depth, bool(options.out), progress, options.image
        )
    if options.json:
        print_json(report.as_json())
    else:
        print_result(report.as_text())
    for file in report.draw(options.out) if options.out else ():
        print_message(f"Wrote {file}.")
    return MISREAD if report.diagnosis.steps else 0
