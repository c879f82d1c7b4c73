"""The shipped recordings: found by their first lines, and their beginnings as whole runs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from specviz.trace import metrics, schema, store
from specviz.trace.schema import Baseline, End, Step, Trace

TRACES = Path(__file__).resolve().parents[3] / "assets" / "traces"
RECORDINGS = sorted(TRACES.glob("*.jsonl.gz"))


def run_line(path: Path) -> dict[str, Any]:
    """The ``run`` record of a recording."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.loads(file.readline())


def name(path: Path) -> str:
    return path.name.split(".")[0]


def said(steps: Sequence[Step]) -> tuple[tuple[int, ...], str]:
    """Tokens and text of these steps."""
    tokens = tuple(token for step in steps for token in step.emitted)
    return tokens, "".join(piece for step in steps for piece in step.pieces)


@cache
def noted() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The run line and the first step with it, of every type of note that a recording has."""
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for path in RECORDINGS:
        run, *rest = map(json.loads, gzip.decompress(path.read_bytes()).decode("utf-8").splitlines())
        for step in rest:
            for note in step.get("notes", ()):
                found.setdefault(note["type"], (run, step))
    return found


@cache
def beginning(method: str, steps: int = 8) -> Trace:
    """The first steps of the recording of this name, as a run of that length with its timed baseline."""
    whole = store.read(TRACES / f"{method}.spectrace.jsonl.gz")
    assert whole.end is not None and whole.end.baseline is not None
    begun = whole.steps[:steps]
    output, text = said(begun)
    plain = Baseline(whole.end.baseline.token_ns[: len(output)], whole.end.baseline.prefill_ns, True)
    counted = schema.rounded(metrics.summarise(begun, "budget", whole.end.prefill_ns, plain))
    end = End("budget", output, text, whole.end.prefill_ns, counted, "", plain)
    return Trace(replace(whole.run, max_new_tokens=len(output)), begun, end)


def told(method: str, note: str, step: int = 0) -> Any:
    """What a note says of a step of this recording."""
    return next(one.data for one in beginning(method).steps[step].notes if one.type == note)
