"""Retrain shipped weights."""

from __future__ import annotations

import argparse


def execute(options: argparse.Namespace) -> int:
    from specviz.prompts import reserved
    from specviz.training import train

    train(options.name, options.device, options.minutes, options.resume, tuple(options.data), reserved())
    return 0
