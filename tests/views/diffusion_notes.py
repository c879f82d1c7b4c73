"""Notes of blocks that are filled at once, written out by hand for the nodes of ``made.TREE``."""

from __future__ import annotations

from typing import Any

DIFFUSION: dict[str, dict[str, Any]] = {
    "denoised": {
        "places": [
            {"tokens": [2, 3, 9], "texts": [" sky", " sea", " sun"], "probability": [0.6, 0.2, 0.1]},
            {"tokens": [4, 9], "texts": [" is", " sun"], "probability": [0.5, 0.3]},
        ]
    },
    "lattice": {
        "columns": [
            {"tokens": [2, 3], "texts": [" sky", " sea"], "probability": [0.6, 0.3], "size": 2},
            {"tokens": [4, 5, 9], "texts": [" is", " was", " sun"], "probability": [0.4, 0.3, 0.1], "size": 9},
        ],
        "beams": [
            {"parents": [0, 0], "picks": [0, 1], "score": [-1.0, -1.5]},
            {"parents": [1, 0], "picks": [1, 0], "score": [-2.0, -2.5]},
        ],
        "fence": 2,
        "ended": False,
        "gauge": {"length": 2, "shortest": 2, "longest": 8, "drafted": 3.5, "accepted": 1.25, "adaptive": True},
        "weight": 0.5,
    },
}  # fmt: skip
