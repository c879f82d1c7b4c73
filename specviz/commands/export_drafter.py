"""Export a drafter trained in this project for another engine."""

from __future__ import annotations

import argparse
import json

from specviz.commands.console import ProgressLine, print_message, refuse_used
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET


def execute(options: argparse.Namespace) -> int:
    refuse_used(options.out)
    from specviz.models.heads.head_writer import write_head
    from specviz.models.heads.heads import load_heads
    from specviz.models.text.load import load_causal_lm
    from specviz.targets.text import TextTarget

    with ProgressLine() as progress:
        loaded = load_causal_lm(DEFAULT_TEXT_TARGET, "float32", "cpu", progress)
        target = TextTarget(loaded.model, loaded.name, sorted(loaded.eos_ids), "eager")
        head = load_heads(options.drafter, None, loaded, target, progress).as_head(options.drafter)
    write_head(head, options.out, options.to, options.verifier)
    print_message(f"Wrote {options.out}, a head for {options.verifier}, trained on a 4-bit {DEFAULT_TEXT_TARGET}.")
    if options.to == "speculators":
        settings = json.dumps({"method": "eagle3", "model": str(options.out), "num_speculative_tokens": 5})
        print_message(f"To serve with vLLM: vllm serve {options.verifier} --speculative-config '{settings}'")
    return 0
