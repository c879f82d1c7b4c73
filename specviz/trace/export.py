"""Export of a run to other tools' formats: Perfetto, GraphML, node-link JSON, a summary with vLLM's names, an HTML replay.

GraphML and node-link JSON hold one step's draft tree as a networkx graph. networkx is slow to import and most exports do not
use it, so it is imported only when a graph is made.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from specviz.errors import BadInput
from specviz.trace import perfetto
from specviz.trace.metrics import histogram, ratio, summarise
from specviz.trace.schema import PRUNED, Bonus, Node, Run, Step, Trace, rounded
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
"""Export formats, with their file suffixes."""

OF_ONE_STEP = ("graphml", "nodelink")

_BONUS = "bonus"
_NOT_XML = re.compile("[^\t\n\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold, and the carriage return, which XML readers convert to a line feed."""

DEFINITIONS = (
    "mean_acceptance_length to per_step_drafted have the names and definitions of vLLM's per-request metrics: steps "
    "without a draft are left out; a drafted token is a tree node that the target scored; mean_acceptance_length is "
    "1 + num_accepted_draft_tokens / num_spec_steps; num_spec_tokens and the keys of "
    "acceptance_histogram_by_draft_length count depths, which for a chain is the same as tokens. The other fields are "
    "this app's own and count every step: per_step_nodes has pruned candidates too."
)


def vllm(steps: tuple[Step, ...]) -> dict[str, Any]:
    """Return the fields of vLLM's ``metrics.speculative_decoding`` at its level "detailed"."""
    drafted = [step for step in steps if step.verified]
    depths = [_deepest(step) for step in drafted]
    accepted, proposed = sum(step.accepted for step in drafted), sum(step.verified for step in drafted)
    most = max(depths, default=0)
    by_length = {
        str(depth): _dense([step for step, deep in zip(drafted, depths, strict=True) if deep == depth], depth)
        for depth in sorted(set(depths))
    }
    per_step = ratio(accepted, len(drafted))
    return {
        "mean_acceptance_length": None if per_step is None else 1 + per_step,
        "draft_acceptance_rate": ratio(accepted, proposed),
        "acceptance_histogram": _dense(drafted, most),
        "acceptance_histogram_by_draft_length": by_length,
        "num_spec_steps": len(drafted),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": proposed,
        "num_spec_tokens": most,
        "per_step_accepted": [step.accepted for step in drafted],
        "per_step_drafted": [step.verified for step in drafted],
    }


def _deepest(step: Step) -> int:
    """Return the maximum depth of nodes that the target scored, which is the most tokens that this step could have accepted."""
    return max(depth for node, depth in zip(step.nodes, step.depths, strict=True) if node.status != PRUNED)


def _dense(steps: list[Step], most: int) -> list[int]:
    counts = histogram(steps)
    return counts + [0] * (most + 1 - len(counts))


def summary(trace: Trace) -> dict[str, Any]:
    """Return vLLM's fields, then specviz's metrics (tree fields, times, speed-ups), then the run."""
    end = trace.end
    outcome = ("unfinished", 0) if end is None else (end.reason, end.prefill_ns, end.baseline, end.capture_ns)
    trees = {
        "per_step_nodes": [step.verified + step.pruned for step in trace.steps],
        "per_step_depth": [_deepest(step) for step in trace.steps],
        "per_step_emitted": [len(step.emitted) for step in trace.steps],
    }
    metrics = summarise(trace.steps, *outcome)
    fields: dict[str, Any] = rounded({**vllm(trace.steps), **metrics, **trees, "run": _about(trace.run)})
    return {**fields, "definitions": DEFINITIONS}


def _about(run: Run) -> dict[str, Any]:
    return {
        name: value
        for name, value in to_builtins(run, enc_hook=rounded).items()
        if name not in ("kind", "prompt", "prompt_pieces")
    }


def content(trace: Trace, kind: str, step: int | None = None, page: Callable[[Trace], str] | None = None) -> str:
    """Return the text of an export. ``step`` selects the tree of graphml and nodelink; the viewer's ``page`` makes the html.

    Raises BadInput for an unknown kind or step.
    """
    if kind not in KINDS:
        raise BadInput(f"There is no export called {kind!r}; choose one of {', '.join(KINDS)}.")
    if kind == "html":
        if page is None:
            raise ValueError("the caller hands in what makes the page, because the trace does not know the viewer")
        return page(trace)
    if kind in OF_ONE_STEP:
        return _tree(_chosen(trace, kind, step), kind)
    return json.dumps(perfetto.document(trace) if kind == "perfetto" else summary(trace), ensure_ascii=False)


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
    path = set(step.path)
    for place, (node, depth) in enumerate(zip(step.nodes, step.depths, strict=True)):
        tree.add_node(str(place), **_attributes(node), depth=depth, status=node.status, on_path=place == 0 or place in path)
        if node.parent >= 0:
            tree.add_edge(str(node.parent), str(place), on_path=place in path)
    if step.bonus is not None:
        depth = step.depths[step.bonus.parent] + 1
        tree.add_node(_BONUS, **_attributes(step.bonus), depth=depth, status=_BONUS, on_path=True, source=step.bonus.source)
        tree.add_edge(str(step.bonus.parent), _BONUS, on_path=True)
    return tree


def _attributes(node: Node | Bonus) -> dict[str, Any]:
    row, column = node.grid or (None, None)
    attributes = {
        "token": node.token, "text": node.text, "p": node.p, "q": getattr(node, "q", None), "row": row,
        "column": column, "threshold": getattr(node, "threshold", None), "draw": getattr(node, "draw", None),
    }  # fmt: skip
    return {name: value for name, value in attributes.items() if value is not None}


def _tree(step: Step, kind: str) -> str:
    """Return the graph as node-link JSON, with its edges under "edges", or as GraphML, with \\xNN for characters invalid in
    XML."""
    import networkx as nx

    tree = graph(step)
    if kind == "nodelink":
        return json.dumps(nx.node_link_data(tree, edges="edges"), ensure_ascii=False)
    for attributes in (tree.graph, *(data for _, data in tree.nodes(data=True))):
        for name, value in attributes.items():
            if isinstance(value, str):
                attributes[name] = _NOT_XML.sub(lambda match: f"\\x{ord(match[0]):02X}", value)
    buffer = io.BytesIO()
    nx.write_graphml_xml(tree, buffer, encoding="utf-8", infer_numeric_types=True)
    return buffer.getvalue().decode("utf-8")


def _chosen(trace: Trace, kind: str, step: int | None) -> Step:
    if not trace.steps:
        raise BadInput("This run has no step, so there is no tree to export.")
    last = len(trace.steps) - 1
    if step is None:
        raise BadInput(f"A {kind} export is the tree of one step; choose it with --step, from 0 to {last}.")
    if not 0 <= step <= last:
        raise BadInput(f"There is no step {step}; this run's steps go from 0 to {last}.")
    return trace.steps[step]


def write(trace: Trace, kind: str, out: str | Path, step: int | None = None, page: Callable[[Trace], str] | None = None) -> Path:
    """Write an export to the file ``out`` and return its path. Arguments and errors are as in ``content``."""
    return save(content(trace, kind, step, page), out)
