"""Write a trained drafter of this project in the layout of another engine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specviz.commands.console import ProgressLine, print_message
from specviz.errors import BadInput
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET

HELP = "write a trained drafter for another engine"
_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The hub id of the shipped drafters' target."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("drafter", choices=("eagle3",), help="the drafter to write")
    parser.add_argument("--to", required=True, choices=("speculators", "flat"), help="the layout: vLLM's, or EAGLE's authors'")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument("--verifier", default=_HUB, metavar="ID", help=f"the target's hub id, by default {_HUB}")


def execute(options: argparse.Namespace) -> int:
    """Write the drafter and print the command that serves it."""
    folder = Path(options.out).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} already exists and is not an empty folder; name another with --out.")
    from specviz.models.heads.head_writer import write_head
    from specviz.models.heads.heads import load_heads
    from specviz.models.text.load import load_causal_lm
    from specviz.targets.text import TextTarget

    progress = ProgressLine()
    try:
        loaded = load_causal_lm(DEFAULT_TEXT_TARGET, "float32", "cpu", progress)
        target = TextTarget(loaded.model, loaded.name, sorted(loaded.eos_ids), "eager")
        head = load_heads(options.drafter, None, loaded, target, progress).as_head(options.drafter)
    finally:
        progress.close()
    write_head(head, folder, options.to, options.verifier)
    print_message(f"Wrote {folder}, a head for {options.verifier}. It learned from {DEFAULT_TEXT_TARGET} in four bits.")
    if options.to == "speculators":
        settings = json.dumps({"method": "eagle3", "model": str(folder), "num_speculative_tokens": 5})
        print_message(f"vLLM serves it: vllm serve {options.verifier} --speculative-config '{settings}'")
    return 0
