"""A simulated run about a picture: notes as drafters of pictures leave them, on the rounds of another story."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from typing import Any

from PIL import Image

from specviz.trace.schema import Note, Step, Trace
from tests.support.traces.recordings import beginning

GRID = 4
FIRST = 2
KEPT = [2, 3, 5, 6, 9, 10, 11, 14]


def png() -> list[str]:
    """A scene of three patches, cut into pieces as a trace carries it."""
    made = Image.new("RGB", (32, 32), (250, 250, 250))
    made.paste((210, 60, 40), (8, 8, 16, 16))
    made.paste((40, 90, 200), (24, 16, 32, 24))
    out = io.BytesIO()
    made.save(out, "PNG")
    text = base64.b64encode(out.getvalue()).decode()
    return [text[:60], text[60:]]


def spans(places: list[int]) -> list[list[int]]:
    return [[place, 1] for place in places]


def prompt_length(trace: Trace) -> int:
    return len(trace.run.prompt_pieces)


def picture() -> dict[str, Any]:
    return {
        "png": png(), "size": [32, 32], "grid": [GRID, GRID], "spans": [[FIRST, GRID * GRID]], "prompt": 40,
        "encoding_ns": 4_200_000,
    }  # fmt: skip


def visual_tokens(kept: list[int], length: int) -> dict[str, Any]:
    return {
        "target": length, "drafter": length - GRID * GRID + len(kept), "visual": [[FIRST, GRID * GRID]],
        "kept": spans(kept), "unseen": [],
    }  # fmt: skip


def entropy(length: int, whole: bool, path: list[int]) -> dict[str, Any]:
    looks = [
        {
            "tokens": path[:deep],
            "picture": 0.4 + 0.1 * deep,
            "at": [[3 + deep, 0.3], [9, 0.1 - 0.01 * deep], [14, 0.02]],
        }
        for deep in range(len(path) + 1)
    ]
    told: dict[str, Any] = {"looks": looks}
    if whole:
        rows = [[round(0.2 + (layer * place) % 7 / 3, 3) for place in range(length - 1)] for layer in range(6)]
        chosen = [1 + place % 3 for place in range(length - 1)]
        told |= {"entropy": rows, "middle": [1, 2, 3], "chosen": chosen}
    return told


def residuals(index: int, compared: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"norms": [0.4, 1.2, 1.9], "reached": [index + 1, index, 0], "kept": [index, index // 2, 0]}
    if compared:
        told |= {"asked": [index + 2, index + 1, 1], "with": [index + 1, index, 0], "without": [index // 2, 0, 0]}
    return told


def _told(step: Step, method: str, length: int) -> Step:
    path = [step.nodes[node].token for node in step.path]
    notes = list(step.notes)
    if method == "dream":
        notes += [
            Note("visual_tokens", visual_tokens(KEPT, length)),
            Note("entropy_map", entropy(length, not step.index, path)),
        ]
    else:
        notes += [Note("residuals", residuals(step.index, method == "compared"))]
        notes += [Note("visual_tokens", visual_tokens([], length))]
    if not step.index:
        notes.append(Note("picture", picture()))
    return replace(step, notes=tuple(notes))


def vision_trace(method: str = "dream", steps: int = 5, seed: int = 0) -> Trace:
    """A run of "dream", "hivis", or "compared" (HiViS that compares)."""
    trace = beginning("eagle2", steps)
    pieces = ("<user>", ":", *["<image>"] * GRID * GRID, *trace.run.prompt_pieces)
    run = replace(trace.run, modality="vision_language", method=method, prompt_pieces=pieces)
    more = len(pieces) - len(trace.run.prompt_pieces)
    told = tuple(replace(_told(step, method, len(pieces)), position=step.position + more) for step in trace.steps)
    return replace(trace, run=run, steps=told)
