"""Notes of drafts that are looked up, written out by hand for the seven nodes of ``made.TREE``."""

from __future__ import annotations

from typing import Any

RETRIEVAL: dict[str, dict[str, Any]] = {
    "suffix": {
        "source": "context", "suffix_start": 6, "suffix_length": 2, "occurrences": 3, "limit": 4, "score": 2.5,
        "threshold": 1.0, "used": True, "scores": {"context": 2.5, "outputs": 0.75}, "remembered": 120,
        "tried": [{"length": 1, "limit": 1, "score": 0.5}, {"length": 2, "limit": 4, "score": 2.5}],
        "rows": [
            {"node": 0, "count": 3, "tokens": [2, 3, 9], "texts": [" sky", " sea", " sun"], "counts": [2, 1, 1],
             "others": 0},
            {"node": 1, "count": 2, "tokens": [4, 5], "texts": [" is", " was"], "counts": [1, 1], "others": 2},
        ],
    },
    "merged": {
        "sources": ["root", "drafter", "context", "drafter+outputs", "drafter", "outputs", "context"],
        "value": [1.0, 0.8, 0.15, 0.5, 0.2, 0.1, 0.02], "kept": 6, "considered": 9, "expected": 2.75, "fitted": True,
        "grafts": [{"node": 0, "source": "context", "matched": 2, "count": 2}],
    },
    "rows": {
        "row": 1, "round": 3, "every": 4, "swept": True,
        "rows": [{"row": 0, "runs": [12, 3, 4], "holes": 3}, {"row": 1, "runs": [9], "holes": 0}],
    },
}  # fmt: skip
