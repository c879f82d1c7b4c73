"""Pictures of one prompt with ever looser acceptance: ``python -m specviz.bench.relaxation`` writes ``assets/relaxation.json``.

The page draws them beside the target's own picture. Each run is timed behind one of the target alone, and all have seed 0.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

from PIL import Image

from specviz.bench.kit import Bencher
from specviz.bench.quality import code_distances
from specviz.methods.registry import all_methods
from specviz.models.device import cores, processor
from specviz.paths import ASSETS

FILE = ASSETS / "relaxation.json"
TARGET, PROMPT = "emoji-64", "potato, noto style"
SETTINGS: dict[str, tuple[str, str, tuple[float, ...], dict[str, Any]]] = {
    "lantern_pp": ("factor", "λ", (1.0, 2.0, 5.0, 10.0, 20.0, 40.0), {"k": 100, "tree": "12"}),
    "mulo_sd": ("tau", "threshold", (0.5, 0.2, 0.1, 0.05, 0.02, 0.01), {}),
}
"""Parameter, its name on the page and its values, strict ones first, by method; and its other parameters."""
TIMES = 3
"""Timed runs of each setting."""


def measure() -> dict[str, Any]:
    """Return the target's own picture and, by method and setting, the picture, τ, speed-up and distances of its cells."""
    bencher = Bencher(TARGET, 256)
    plain = bencher.prepared("autoregressive", PROMPT, 1.0)
    rows = []
    for method, (parameter, name, values, others) in SETTINGS.items():
        for value in values:
            ready, gains = bencher.prepared(method, PROMPT, 1.0, parameters={**others, parameter: value}), []
            for _ in range(TIMES):
                own, run = bencher.timed_run(plain), bencher.timed_run(ready)
                gains.append(own.per_token / run.per_token)
            distances = code_distances(ready, run.ids, 0)
            rows.append({
                "method": method, "title": all_methods()[method].title, "name": name, "value": value,
                "picture": _webp(ready, run.ids), "tau": round(run.tau, 2), "speedup": round(sorted(gains)[TIMES // 2], 2),
                "distance": round(distances.own, 3), "cells": [round(100 * gap) for gap in distances.cells],
            })  # fmt: skip
            print(*(rows[-1][key] for key in ("method", "value", "tau", "speedup", "distance")))
    return {
        "prompt": PROMPT, "target": TARGET, "machine": f"{processor()}, {cores()} cores", "columns": plain.run_fields["grid"][1],
        "independent": round(distances.independent, 3), "picture": _webp(plain, own.ids), "rows": rows,
    }  # fmt: skip


def _webp(ready: Any, codes: Sequence[int]) -> str:
    """Return a picture as base64 of a lossless WebP file."""
    file = io.BytesIO()
    Image.fromarray(ready.loaded.picture(list(codes))).save(file, "WEBP", lossless=True, method=6)
    return base64.b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    FILE.write_text(json.dumps(measure(), ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
