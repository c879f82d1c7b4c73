"""Notes of every family of methods, written out by hand for the seven nodes of ``tests.support.traces.made.TREE``."""

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

CHOICE: dict[str, dict[str, Any]] = {
    "arms": {
        "names": ["code", "maths", "copy"], "chances": [0.7, 0.25, 0.05], "drafted": 0, "informed": True,
        "loss": "length", "ahead": 4, "tokens": [2, 4, 8], "texts": [" sky", " is", " blue"],
        "ghosts": [[0.9, 0.8, 0.1], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]], "expected": [2.75, 1.5, 1.0], "settled": 2,
        "waiting": [{"place": 14, "known": 2}, {"place": 15, "known": 1}], "after": [0.8, 0.2, 0.0],
    },
    "last_state": {"half": "tree", "length": 13, "score": 0.75, "threshold": 1.5, "probed": True},
}  # fmt: skip

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
