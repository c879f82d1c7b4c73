"""List published targets with published heads, sizes, and the commands to run each pair."""

from __future__ import annotations

import argparse
from typing import Any

from specviz.commands.console import print_json, print_result
from specviz.models.hub.pairs import PAIRS, Pair


def execute(options: argparse.Namespace) -> int:
    if options.json:
        print_json([card(pair) for pair in PAIRS])
        return 0
    texts = []
    for pair in PAIRS:
        stored = "a torch checkpoint" if pair.pickled else "safetensors"
        sizes = f"heads about {pair.head_bytes / 1e9:.1f} GB, target {pair.entry.source.size / 1e9:.1f} GB"
        lines = [
            f"{pair.heads}  for {pair.target}",
            f"  {pair.method}, layout {pair.layout}, {stored}; {sizes}; {pair.memory / 1e9:.1f} GB of memory in bfloat16",
            f"  {' '.join(word for word in (pair.status, pair.note) if word)}",
        ]
        texts.append("\n".join([*lines, *(f"    {command}" for command in pair.commands)]))
    print_result("\n\n".join(texts))
    return 0


def card(pair: Pair) -> dict[str, Any]:
    """Return a pair as plain data, with sizes in bytes."""
    names = ("target", "heads", "method", "layout", "pickled", "head_bytes", "memory", "status", "note", "commands")
    return {name: getattr(pair, name) for name in names} | {"target_bytes": pair.entry.source.size}
