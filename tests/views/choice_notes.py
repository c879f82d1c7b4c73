"""Notes of drafters that compete and of halves that take turns, written out by hand for the seven nodes of ``made.TREE``."""

from __future__ import annotations

from typing import Any

CHOICE: dict[str, dict[str, Any]] = {
    "arms": {
        "names": ["code", "maths", "copy"], "chances": [0.7, 0.25, 0.05], "drafted": 0, "informed": True,
        "loss": "length", "ahead": 4, "tokens": [2, 4, 8], "texts": [" sky", " is", " blue"],
        "ghosts": [[0.9, 0.8, 0.1], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]], "expected": [2.75, 1.5, 1.0], "settled": 2,
        "waiting": [{"place": 14, "known": 2}, {"place": 15, "known": 1}], "after": [0.8, 0.2, 0.0],
    },
    "last_state": {"half": "tree", "length": 13, "score": 0.75, "threshold": 1.5, "probed": True},
}  # fmt: skip
