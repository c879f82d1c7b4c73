"""Inspect a drafter: its layout, how well it predicts the target as loaded, and whether another reading does better."""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.commands.console import ProgressLine, print_json, print_message, print_result, read_prompts
from specviz.errors import BadInput
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET

HELP = "inspect a drafter: does it fit the target, and is it loaded correctly?"
MISREAD = 1
MOST_PROMPTS = 256


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("head", metavar="HEAD", help="a folder or hub id with heads; or eagle3, eagle or medusa, which ship")
    parser.add_argument("--target", default=DEFAULT_TEXT_TARGET, metavar="T", help="the model that verifies")
    parser.add_argument("--image", metavar="FILE", help="the picture of the questions, for a target that reads pictures")
    parser.add_argument("--prompts", metavar="F", help="a file with one prompt per line, by default four built-in ones")
    parser.add_argument(
        "--tokens", type=int, default=64, metavar="N", help="the maximum number of tokens in each answer of the target"
    )
    parser.add_argument("--depth", type=int, default=5, metavar="K", help="number of drafted tokens in a chain")
    parser.add_argument("--out", metavar="DIR", help="a folder for figures: acceptance, calibration, logit lens of every state")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a report")


def execute(options: argparse.Namespace) -> int:
    """Inspect the drafter. The exit status is 1 if another reading of the weights is clearly better than the loaded one."""
    for name, low, high in (("tokens", 16, 1024), ("depth", 1, 12)):
        if not low <= getattr(options, name) <= high:
            raise BadInput(f"--{name} is {getattr(options, name)}; choose a whole number from {low} to {high}.")
    from specviz.inspection import PROMPTS, QUESTIONS
    from specviz.inspection.report import inspect

    own = PROMPTS if options.image is None else QUESTIONS
    prompts = own if options.prompts is None else read_prompts(options.prompts, MOST_PROMPTS)
    asked = (options.head, options.target, prompts, options.tokens, options.depth, bool(options.out))
    progress = ProgressLine()
    try:
        report = inspect(*asked, progress, image=options.image)
    finally:
        progress.close()
    if options.json:
        print_json(report.as_json())
    else:
        print_result(report.as_text())
    for file in report.draw(Path(options.out)) if options.out else ():
        print_message(f"Wrote {file}.")
    return MISREAD if report.verdict.steps else 0
