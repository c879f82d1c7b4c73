"""Export of a trace: Perfetto, GraphML, node-link JSON, a JSON summary with vLLM's field names, and an HTML page.

Perfetto events are metadata ("M"), complete ("X") or counter ("C") events. ``ts`` (from the start of the prefill) and ``dur`` are
in microseconds. Overlapping events need separate tracks, so each lane has a unique track number.

GraphML and node-link JSON hold the draft tree of one step. networkx is imported on first use because the import is slow.
"""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs, to_builtins

from specviz.errors import BadInput
from specviz.trace.metrics import histogram, ratio, summarise
from specviz.trace.schema import PHASES, PRUNED, Step, Trace, rounded

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
"""Name, duration in nanoseconds, number of emitted tokens and details of a step or token."""

_BONUS = "bonus"
_RUN, _PLAIN = 1, 2
"""Perfetto process ids of the run and of the autoregressive run."""
_TRACKS = {lane: track for track, lane in enumerate(("steps", *PHASES, "tokens"), 1)}
"""Perfetto track number by lane."""
_NOT_XML = re.compile("[^\t\n\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML forbids, and the carriage return, which XML readers convert to a line feed."""

DEFINITIONS = (
    "The fields from mean_acceptance_length to per_step_drafted have the names and definitions of vLLM's per-request metrics: "
    "steps without a draft are left out; a drafted token is a tree node that the target scored; mean_acceptance_length is "
    "1 + num_accepted_draft_tokens / num_spec_steps; num_spec_tokens and the keys of "
    "acceptance_histogram_by_draft_length count depths, which for a chain is the same as tokens; drafted tokens of which only "
    "the number was recorded count as a chain. The other fields are this app's own and count every step; per_step_nodes includes "
    "pruned candidates."
)


def summary(trace: Trace) -> dict[str, Any]:
    """Return a summary: the fields of vLLM's detailed ``metrics.speculative_decoding``, specviz's metrics and the run."""
    end, drafted = trace.end, [step for step in trace.steps if step.verified]
    outcome = (end.reason, end.prefill_ns, end.baseline, end.capture_ns) if end else ("unfinished", 0)
    accepted, proposed = sum(step.accepted for step in drafted), sum(step.verified for step in drafted)
    by_depth: dict[int, list[Step]] = {}
    for step in drafted:
        by_depth.setdefault(_deepest(step), []).append(step)
    most = max(by_depth, default=0)
    run = to_builtins(trace.run, enc_hook=rounded)
    fields = {
        "mean_acceptance_length": ratio(accepted + len(drafted), len(drafted)),
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
    """Return the greatest depth of a scored node, the maximum number of draft tokens that the step could accept.

    Draft tokens without a node count as a chain.
    """
    depths = [depth for node, depth in zip(step.nodes, step.depths, strict=True) if node.status != PRUNED]
    return max(depths) if len(depths) > step.verified else step.verified


def timeline(trace: Trace) -> dict[str, Any]:
    """Return a Perfetto trace with one track per phase, and the autoregressive run as a second process."""
    run, clock = trace.run, trace.end.prefill_ns if trace.end else 0
    steps: list[Unit] = []
    for step in trace.steps:
        details = {name: getattr(step, name) for name in ("accepted", "verified", "padded", "draft_calls", "rule", "cut")}
        details |= {"emitted": len(step.emitted), "text": "".join(step.pieces)}
        steps.append((f"step {step.index}", step.time.total, len(step.emitted), details))
    events = [*_process(_RUN, f"{run.title} on {run.target}", ("steps", *PHASES), clock, steps)]
    # A step records only the total time of each phase, so phases appear in the order of PHASES.
    for step in trace.steps:
        for phase in PHASES:
            spent = getattr(step.time, phase)
            events += _span(_RUN, phase, phase, clock, spent, {"step": step.index})
            clock += spent
    if baseline := trace.baseline:
        tokens: list[Unit] = [(f"token {place}", spent, 1, {}) for place, spent in enumerate(baseline.token_ns)]
        events += _process(_PLAIN, f"One by one on {run.target}", ("tokens",), baseline.prefill_ns, tokens)
    names = ("method", "target", "draft", "device", "dtype", "tier", "machine", "recorded_at")
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {name: getattr(run, name) for name in names}}


def _process(number: int, title: str, lanes: Sequence[str], prefill: int, units: Iterable[Unit]) -> Iterator[dict[str, Any]]:
    """Yield the events of a process: names and sort order of the tracks, then the prefill and the units.

    The prefill and the units are on the first track, each followed by a counter event with the output length.
    """
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
    """Yield an event of ``length`` nanoseconds, or nothing if ``length`` is 0."""
    if length > 0:
        yield _event("X", name, process, _TRACKS[lane], about, cat="specviz", ts=start / 1000, dur=length / 1000)


def _event(kind: str, name: str, process: int, track: int, about: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"ph": kind, "name": name, "pid": process, "tid": track, "args": about, **more}


def content(trace: Trace, kind: str, step: int | None = None) -> str:
    """Return the text of an export. ``step``: step whose tree is exported, required for graphml and nodelink.

    In GraphML, \\xNN replaces characters that XML forbids. Raises BadInput for an unknown kind or step.
    """
    if kind not in KINDS:
        raise BadInput(f"There is no export called {kind!r}; choose one of {', '.join(KINDS)}.")
    if kind == "html":  # imported here: the viewer depends on specviz.trace, never the reverse
        return str(importlib.import_module("specviz.viewer.replay").of_trace(trace))
    if kind not in OF_ONE_STEP:
        return json.dumps(timeline(trace) if kind == "perfetto" else summary(trace), ensure_ascii=False)
    last = len(trace.steps) - 1
    if last < 0:
        raise BadInput("This run has no steps, so there is no tree to export.")
    if step is None or not 0 <= step <= last:
        raise BadInput(f"A {kind} export holds one step's tree; choose the step with --step, from 0 to {last}.")
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
    """Return a step's draft tree with nodes "0" (the root), "1", … and "bonus".

    Node attributes are scalars; attributes without a value are omitted.
    """
    import networkx as nx

    tree = nx.DiGraph(
        step=step.index, position=step.position, rule=step.rule, emitted="".join(step.pieces), accepted=step.accepted,
        verified=step.verified,
    )  # fmt: skip
    if step.cut:
        tree.graph["cut"] = step.cut
    depths, path = step.depths, {0, *step.path}
    shown: list[tuple[str, int, Any, bool]] = [
        (str(place), depths[place], node, place in path) for place, node in enumerate(step.nodes)
    ]
    if step.bonus:
        shown.append((_BONUS, depths[step.bonus.parent] + 1, step.bonus, True))
    for name, depth, node, on_path in shown:
        fields = {"status": _BONUS, **structs.asdict(node), "depth": depth, "on_path": on_path}
        fields["row"], fields["column"] = fields.pop("grid") or (None, None)
        parent = fields.pop("parent")
        tree.add_node(name, **{attribute: value for attribute, value in fields.items() if value is not None})
        if parent >= 0:
            tree.add_edge(str(parent), name, on_path=on_path)
    return tree
