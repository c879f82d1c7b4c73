"""Retrain weights that ship with this project, from data and recipe."""

from __future__ import annotations

import argparse

HELP = "train weights that ship with this project"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("name", metavar="NAME", help="the weights, such as small_draft")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="the device")
    parser.add_argument("--minutes", type=float, metavar="N", help="the training time; the weights so far are then written")
    parser.add_argument("--data", metavar="FILE", nargs="+", default=(), help="dialogue files, in place of the default one")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")


def execute(options: argparse.Namespace) -> int:
    """Train the weights."""
    from specviz.prompts import reserved
    from specviz.training import train

    train(options.name, options.device, options.minutes, options.resume, tuple(options.data), reserved())
    return 0
