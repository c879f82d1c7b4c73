"""List the decoding methods with their exactness, parameters, weights and papers."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from specviz.commands.console import print_json, print_result, table
from specviz.methods.registry import Method, all_methods, describe


def execute(options: argparse.Namespace) -> int:
    known = [method for _, method in sorted(all_methods().items())]
    if options.json:
        print_json([card(method) for method in known])
        return 0
    texts = []
    for method in known:
        rows = [("output", f"{method.exactness}{f': {method.bound}' if method.bound else ''}")]
        for parameter in describe(method.parameters):
            bounds = parameter.bounds
            values = "true or false" if parameter.kind == "bool" else " or ".join(bounds.choices)
            values = values or f"{bounds.low:g} to {bounds.high:g}{f' {bounds.unit}' if bounds.unit else ''}"
            rows.append((parameter.name, f"{values}, default {parameter.default}. {bounds.help}"))
        rows += [("weights", name) for name in method.weights]
        if paper := method.paper:
            where = f"arXiv {paper.arxiv}" if paper.arxiv else paper.venue
            rows.append(("paper", f"{paper.title} ({paper.authors}, {paper.year}) {where}".strip()))
        lines = [f"{method.name}: {method.title}. {method.summary}", *table(rows).split("\n")]
        texts.append("\n  ".join(lines))
    print_result("\n\n".join(texts))
    return 0


def card(method: Method) -> dict[str, Any]:
    """Return a method as plain data."""
    return {
        **method.plain(),
        **{name: getattr(method, name) for name in ("bound", "family", "claim", "differs", "needs_draft", "look_at")},
        "parameters": [
            {"name": one.name, "kind": one.kind, "default": one.default, **asdict(one.bounds)}
            for one in describe(method.parameters)
        ],
        "weights": list(method.weights),
        "paper": method.paper and asdict(method.paper),
    }
