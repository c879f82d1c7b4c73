"""Trace lines made by hand for the viewer's tests: trees of a given shape, long chains, hostile words, open ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

PATCHES = (
    '<img src=x onerror="window.pwned=1">',
    "<script>window.pwned=1</script>",
    "</script><svg onload=window.pwned=1>",
)
WORDS = (
    " the", " light", " of", " day", " scatters", " more", " than", " blue", ",", " and", ".", " sky", " waves", " red",
    "\n", " seen", " evening", " is", " because", " air",
)  # fmt: skip
RECYCLING = (
    (8, 4, 3, 2, 2, 1, 1),
    (6, 3, 2, 2, 1, 1, 2, 3, 2, 2, 1),
    (4, 3, 2, 1, 1, 2, 1, 1),
    (3, 2, 1, 1, 1),
    (2, 1),
)


def run(method: str = "token_recycling", **more: Any) -> dict[str, Any]:
    """A run line."""
    pieces = ["Why", " is", " the", " sky", " blue", "?"]
    return {
        "v": 2, "seq": 0, "kind": "run", "modality": "text", "target": "smollm2-135m-instruct", "method": method,
        "title": method.replace("_", " ").capitalize(), "exactness": "exact", "parameters": {"nodes": 80},
        "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0}, "device": "cpu", "dtype": "bfloat16",
        "tier": "eager", "prompt": "".join(pieces), "prompt_pieces": pieces, "max_new_tokens": 64, **more,
    }  # fmt: skip


def node(parent: int, text: str, status: str, *numbers: float | None) -> list[Any]:
    """A node as it is written: q, p, then threshold and draw."""
    q, p, *rest = [*numbers, None, None][:4] if numbers else (None, None, None, None)
    return [parent, 1000 + sum(map(ord, text)) % 900, text, q, p, status, *rest]


def step(index: int, nodes: Sequence[list[Any]], path: Sequence[int], bonus: list[Any] | None, **more: Any) -> dict[str, Any]:
    """A step line whose emitted tokens are its path and its bonus. ``position`` assumes that all steps emit as many."""
    said = [nodes[one] for one in path] + ([bonus] if bonus else [])
    return {
        "v": 2, "seq": index + 1, "kind": "step", "index": index, "position": 5 + index * len(said),
        "nodes": list(nodes), "path": list(path),
        "bonus": bonus, "emitted": [one[1] for one in said], "pieces": [one[2] for one in said],
        "rule": "greedy", "time": [4_000_000, 42_000_000, 600_000, 400_000, 1_000_000],
        "verified": sum(one[5] != "pruned" for one in nodes) - 1, "padded": len(nodes), **more,
    }  # fmt: skip


def end(seq: int, reason: str = "budget", message: str = "", **more: Any) -> dict[str, Any]:
    """An end line without a baseline."""
    return {
        "v": 2, "seq": seq, "kind": "end", "reason": reason, "message": message, "output_ids": [], "text": "",
        "prefill_ns": 60_000_000, "metrics": {}, "baseline": None, **more,
    }  # fmt: skip


def bushy(index: int = 0, kept: int = 3, levels: Sequence[Sequence[int]] = RECYCLING) -> dict[str, Any]:
    """A static tree in the manner of token recycling: about 80 nodes, six deep, eight children at the root."""
    nodes = [node(-1, " because", "root")]
    depth, parents, path = [0], [0], [0]
    for level in (levels[0][:1], *levels):
        born: list[int] = []
        for parent, count in zip(parents, level, strict=False):
            for rank in range(count):
                on = parent == path[-1] and rank == min(1, index % 3) and len(path) <= kept and len(path) == depth[parent] + 1
                judged = parent in path
                numbers = (None, round(0.7 / (1 + rank), 3)) if judged else ()
                nodes.append(node(parent, WORDS[(len(nodes) * 7 + index) % len(WORDS)], _status(on, judged), *numbers))
                depth.append(depth[parent] + 1)
                born.append(len(nodes) - 1)
        path += [one for one in born if nodes[one][5] == "accepted"]
        parents = born
    bonus = [path[-1], 77, " physics", 0.61, "target"]
    return step(index, nodes, path[1:], bonus)


def _status(on: bool, judged: bool) -> str:
    return "accepted" if on else "rejected" if judged else "skipped"


def chain(index: int = 0, length: int = 13, kept: int = 8, texts: Sequence[str] = WORDS) -> dict[str, Any]:
    """A draft without branches, accepted up to ``kept``, judged by the ratio test."""
    nodes = [node(-1, " because", "root")]
    for at in range(length):
        word = texts[(index + at * 3) % len(texts)]
        if at < kept:
            nodes.append(node(at, word, "accepted", 0.6, 0.55, 0.9167, round(0.05 * at, 3)))
        elif at == kept:
            nodes.append(node(at, word, "rejected", 0.5, 0.1, 0.2, 0.63))
        else:
            nodes.append(node(at, word, "skipped", 0.4))
    bonus = [kept, 77, " physics", 0.4, "residual" if kept < length else "target"]
    return step(index, nodes, range(1, kept + 1), bonus, rule="ratio")


def hostile(index: int = 0) -> dict[str, Any]:
    """A tree whose every word would do harm if it were ever read as markup."""
    nodes = [
        node(-1, PATCHES[0], "root"),
        node(0, PATCHES[0], "accepted", 0.5, 0.5),
        node(1, PATCHES[1], "rejected", 0.4, 0.1),
    ]
    nodes += [node(1, PATCHES[2], "rejected", 0.2, 0.1), node(2, "\u202egnp.exe", "skipped", 0.3)]
    notes = [
        {"type": PATCHES[0], "what": PATCHES[1]},
        {"type": "copy", "suffix_start": "x", "source": PATCHES[0], "length": 3},
    ]
    rows = [[0, [[1, PATCHES[0], 0.6], [2, PATCHES[1], 0.3]]]]
    return step(index, nodes, [1], [1, 9, PATCHES[1], 0.3, PATCHES[0]], notes=notes, rows=rows)


def wide(children: int = 900) -> dict[str, Any]:
    """A tree with far more nodes than anybody can look at: one crowded level and a bushy one below it."""
    nodes = [node(-1, " a", "root"), node(0, " the", "accepted", 0.5, 0.9)]
    nodes += [node(0, f" w{at}", "rejected", 0.001, 0.0001) for at in range(30)]
    nodes += [node(2 + at % 30, f" x{at}", "skipped", 0.01) for at in range(children)]
    return step(0, nodes, [1], [1, 9, " end", 0.3, "target"])


def text(lines: Sequence[dict[str, Any]]) -> str:
    """The lines as a trace file."""
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def trace(*steps: dict[str, Any], ended: bool = True, **more: Any) -> str:
    """A whole trace file around some steps, renumbered."""
    numbered = [{**one, "seq": at + 1, "index": at} for at, one in enumerate(steps)]
    return text([run(**more), *numbered, *([end(len(steps) + 1)] if ended else [])])
