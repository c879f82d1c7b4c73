"""Notes of chains of models and of layers side by side, written out by hand for the seven nodes of ``made.TREE``."""

from __future__ import annotations

from typing import Any

CHAINS: dict[str, dict[str, Any]] = {
    "belts": {
        "middle": "int4", "gathered": 5, "length": 6,
        "passes": [
            {"drafted": 3, "kept": 1, "calls": 2, "tokens": [2, 4], "texts": [" sky", " is"], "drafting": 4.0, "verifying": 16.0},
            {"drafted": 2, "kept": 0, "calls": 2, "tokens": [8], "texts": [" blue"], "drafting": 4.0, "verifying": 14.0},
            {"drafted": 4, "kept": 2, "calls": 2, "tokens": [3, 5, 6], "texts": [" sea", " was", " foam"], "drafting": 5.0,
             "verifying": 17.0},
        ],
        "so_far": {"rounds": 3, "kept": 8, "buffered": 18, "passes": 9, "calls": 18, "drafting": 39.0, "verifying": 144.0},
        "forecast": {
            "target": 40.0, "target_block": 46.0, "middle": 15.0, "drafter": 2.8, "without": 1.9, "with": 5.5, "below": 1.8,
            "ratio": 0.375, "bound": 0.62, "margin": 0.245, "before": 24.0, "gain": 1.21,
        },
    },
    "layers": {
        "layers": 6, "groups": [[0], [1, 2, 3, 4], [5]], "stages": 3, "calibrated": True, "cached": 20, "drafted": 3,
        "devices": [], "exact": 3, "repaired": 2, "fuzzy": 0,
        "likeness": [[1.0, 1.0], [0.99, 0.98], [0.9, 0.85], [0.8, 0.7], [0.75, 0.7], [0.7, 0.65]],
    },
}  # fmt: skip
