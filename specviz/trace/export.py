"""Export of a run to other tools' formats: Perfetto, GraphML, node-link JSON, a summary with vLLM's names, an HTML replay.

Perfetto does not draw overlapping events on one track, so every lane has its own track number. Event types are metadata ("M"),
complete ("X") and counter ("C"); ``ts`` is in microseconds since the prefill began, ``dur`` in microseconds.

GraphML and node-link JSON hold one step's draft tree as a networkx graph. networkx is slow to import and most exports do not
need it, so it is imported only when a graph is built.
"""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs, to_builtins

from specviz.errors import BadInput
from specviz.trace.metrics import histogram, ratio, summarise
from specviz.trace.schema import PHASES, PRUNED, Bonus, Node, Step, Trace, rounded
from specviz.trace.store import save

if TYPE_CHECKING:
    import networkx as nx

KINDS = {
    "perfetto": ".perfetto.json",
    "graphml": ".graphml",
    "nodelink": ".nodelink.json",
    "summary": ".summary.json",
    "html": ".html",
}
"""File suffix by export format."""

OF_ONE_STEP = ("graphml", "nodelink")

Unit = tuple[str, int, int, dict[str, Any]]
"""Name, nanoseconds, emitted tokens and details of a step or a token."""

_BONUS = "bonus"
_RUN, _PLAIN = 1, 2
"""Perfetto's process numbers: this run, and the target's own autoregressive run."""
_TRACKS = {lane: track for track, lane in enumerate(("steps", *PHASES, "tokens"), 1)}
"""Perfetto's track number by lane; no two processes share a track."""
_NOT_XML = re.compile("[^\t\n\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold, and the carriage return, which XML readers convert to a line feed."""

DEFINITIONS = (
    "The fields from mean_acceptance_length to per_step_drafted have the names and definitions of vLLM's per-request metrics: "
    "steps without a draft are left out; a drafted token is a tree node that the target scored; mean_acceptance_length is "
    "1 + num_accepted_draft_tokens / num_spec_steps; num_spec_tokens and the keys of "
    "acceptance_histogram_by_draft_length count depths, which for a chain is the same as tokens. The other fields are "
    "this app's own and count every step; per_step_nodes includes pruned candidates."
)


def summary(trace: Trace) -> dict[str, Any]:
    """Return the fields of vLLM's ``metrics.speculative_decoding`` at its level "detailed", then specviz's metrics (tree fields,
    times, speed-ups), then the run."""
    end, drafted = trace.end, [step for step in trace.steps if step.verified]
    outcome = ("unfinished", 0) if end is None else (end.reason, end.prefill_ns, end.baseline, end.capture_ns)
    accepted, proposed = sum(step.accepted for step in drafted), sum(step.verified for step in drafted)
    by_depth: dict[int, list[Step]] = {}
    for step in drafted:
        by_depth.setdefault(_deepest(step), []).append(step)
    most = max(by_depth, default=0)
    per_step = ratio(accepted, len(drafted))
    run = to_builtins(trace.run, enc_hook=rounded)
    fields = {
        "mean_acceptance_length": None if per_step is None else 1 + per_step,
        "draft_acceptance_rate": ratio(accepted, proposed),
        "acceptance_histogram": histogram(drafted, most),
        "acceptance_histogram_by_draft_length": {str(depth): histogram(by_depth[depth], depth) for depth in sorted(by_depth)},
        "num_spec_steps": len(drafted),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": proposed,
        "num_spec_tokens": most,
        "per_step_accepted": [step.accepted for step in drafted],
        "per_step_drafted": [step.verified for step in drafted],
        **summarise(trace.steps, *outcome),
        "per_step_nodes": [step.verified + step.pruned for step in trace.steps],
        "per_step_depth": [_deepest(step) for step in trace.steps],
        "per_step_emitted": [len(step.emitted) for step in trace.steps],
        "run": {name: value for name, value in run.items() if name not in ("kind", "prompt", "prompt_pieces")},
    }
    return {**rounded(fields), "definitions": DEFINITIONS}


def _deepest(step: Step) -> int:
    """Return the greatest depth of a scored node, which is the most drafted tokens that this step could have accepted."""
    return max(depth for node, depth in zip(step.nodes, step.depths, strict=True) if node.status != PRUNED)


def timeline(trace: Trace) -> dict[str, Any]:
    """Return the JSON object that Perfetto opens: one track per phase, and the autoregressive run on the same clock."""
    run, clock = trace.run, 0 if trace.end is None else trace.end.prefill_ns
    steps: list[Unit] = []
    for step in trace.steps:
        details = {name: getattr(step, name) for name in ("accepted", "verified", "padded", "draft_calls", "rule", "cut")}
        details |= {"emitted": len(step.emitted), "text": "".join(step.pieces)}
        steps.append((f"step {step.index}", step.time.total, len(step.emitted), details))
    events = [*_process(_RUN, f"{run.title} on {run.target}", ("steps", *PHASES), clock, steps)]
    # A step records only the total time of each phase, so the phases are drawn one after another, in the order of PHASES.
    for step in trace.steps:
        for phase in PHASES:
            spent = getattr(step.time, phase)
            events += _span(_RUN, phase, phase, clock, spent, {"step": step.index})
            clock += spent
    if (baseline := trace.baseline) is not None:
        tokens: list[Unit] = [(f"token {place}", spent, 1, {}) for place, spent in enumerate(baseline.token_ns)]
        events += _process(_PLAIN, f"One by one on {run.target}", ("tokens",), baseline.prefill_ns, tokens)
    names = ("method", "target", "draft", "device", "dtype", "tier", "machine", "recorded_at")
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {name: getattr(run, name) for name in names}}


def _process(number: int, title: str, lanes: Sequence[str], prefill: int, units: Iterable[Unit]) -> Iterator[dict[str, Any]]:
    """Yield the names and sort order of a process and its tracks. Then yield the prefill and the units, one after another on the
    first track, each followed by the output length so far."""
    for track, name in ((0, title), *((_TRACKS[lane], lane) for lane in lanes)):
        what = "thread" if track else "process"
        yield _event("M", f"{what}_name", number, track, {"name": name})
        yield _event("M", f"{what}_sort_index", number, track, {"sort_index": track or number})
    clock = written = 0
    for name, spent, tokens, details in (("prefill", prefill, 0, {}), *units):
        yield from _span(number, lanes[0], name, clock, spent, details)
        clock += spent
        written += tokens
        yield _event("C", "output tokens", number, 0, {"tokens": written}, ts=clock / 1000)


def _span(process: int, lane: str, name: str, start: int, length: int, about: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one event, unless its length is 0: nanoseconds in, microseconds out."""
    if length > 0:
        yield _event("X", name, process, _TRACKS[lane], about, cat="specviz", ts=start / 1000, dur=length / 1000)


def _event(kind: str, name: str, process: int, track: int, about: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"ph": kind, "name": name, "pid": process, "tid": track, "args": about, **more}


def content(trace: Trace, kind: str, step: int | None = None) -> str:
    """Return the text of an export. ``step`` selects the tree of graphml and nodelink.

    GraphML writes \\xNN for characters invalid in XML. Raises BadInput for an unknown kind or step.
    """
    if kind not in KINDS:
        raise BadInput(f"There is no export called {kind!r}; choose one of {', '.join(KINDS)}.")
    if kind == "html":  # imported here: the viewer depends on the trace room, never the reverse
        return str(importlib.import_module("specviz.viewer.replay").of_trace(trace))
    if kind not in OF_ONE_STEP:
        return json.dumps(timeline(trace) if kind == "perfetto" else summary(trace), ensure_ascii=False)
    last = len(trace.steps) - 1
    if last < 0:
        raise BadInput("This run has no steps, so there is no tree to export.")
    if step is None:
        raise BadInput(f"A {kind} export holds one step's tree; choose the step with --step, from 0 to {last}.")
    if not 0 <= step <= last:
        raise BadInput(f"There is no step {step}; this run's steps are 0 to {last}.")
    import networkx as nx

    tree = graph(trace.steps[step])
    if kind == "nodelink":
        return json.dumps(nx.node_link_data(tree, edges="edges"), ensure_ascii=False)
    for attributes in (tree.graph, *(data for _, data in tree.nodes(data=True))):
        for name, value in attributes.items():
            if isinstance(value, str):
                attributes[name] = _NOT_XML.sub(lambda match: f"\\x{ord(match[0]):02X}", value)
    buffer = io.BytesIO()
    nx.write_graphml_xml(tree, buffer, encoding="utf-8", infer_numeric_types=True)
    return buffer.getvalue().decode("utf-8")


def graph(step: Step) -> nx.DiGraph:
    """Return one step's draft tree: nodes are "0" (the root) to "n", and "bonus".

    Their attributes are scalars; unknown ones are omitted.
    """
    import networkx as nx

    tree = nx.DiGraph(
        step=step.index, position=step.position, rule=step.rule, emitted="".join(step.pieces), accepted=step.accepted,
        verified=step.verified,
    )  # fmt: skip
    if step.cut is not None:
        tree.graph["cut"] = step.cut
    depths, path = step.depths, {0, *step.path}
    shown: list[tuple[str, int, Node | Bonus, bool]] = [
        (str(place), depths[place], node, place in path) for place, node in enumerate(step.nodes)
    ]
    if step.bonus is not None:
        shown.append((_BONUS, depths[step.bonus.parent] + 1, step.bonus, True))
    for name, depth, node, on_path in shown:
        fields = {"status": _BONUS, **structs.asdict(node), "depth": depth, "on_path": on_path}
        fields["row"], fields["column"] = fields.pop("grid") or (None, None)
        parent = fields.pop("parent")
        tree.add_node(name, **{attribute: value for attribute, value in fields.items() if value is not None})
        if parent >= 0:
            tree.add_edge(str(parent), name, on_path=on_path)
    return tree


def write(trace: Trace, kind: str, out: str | Path, step: int | None = None) -> Path:
    """Write an export to the file ``out`` and return its path. Arguments and errors are as in ``content``."""
    return save(content(trace, kind, step), out)
