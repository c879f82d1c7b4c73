"""Semantic checks beyond the schema: parents before children, one connected path, tokens that add up."""

from __future__ import annotations

from typing import NoReturn

from specviz.errors import BadTrace
from specviz.trace.schema import ACCEPTED, PRUNED, RELAXED, RESAMPLED, ROOT, End, Step

MAX_DEPTH = 512
"""Maximum depth of a tree."""


def check_step(step: Step) -> None:
    """Raise BadTrace, with the field of the step's line, if the step is inconsistent."""
    _check_tree(step)
    _check_path(step)
    _check_tokens(step)
    _check_counts(step)


def check_follows(step: Step, before: Step | None) -> None:
    """Raise BadTrace if ``step`` cannot follow ``before`` (None for the first step)."""
    index = 0 if before is None else before.index + 1
    if step.index != index:
        _wrong("index", f"is {step.index}, and {index} steps come before this one.")
    if before is None:
        return
    if before.cut is not None:
        _wrong("index", "a step follows one that was cut, and a cut ends the run.")
    if step.position != before.position + len(before.emitted):
        _wrong("position", f"is {step.position}; the step before ended at {before.position + len(before.emitted)}.")
    if before.emitted and step.nodes[0].token != before.emitted[-1]:
        _wrong("nodes[0][1]", "the root is not the last token of the step before.")


def check_end(end: End) -> None:
    """Raise BadTrace if the baseline of an end line is inconsistent."""
    baseline = end.baseline
    if baseline is None:
        return
    if baseline.equal and baseline.first_divergence is not None:
        _wrong("baseline.equal", "is true, and yet there is a first_divergence.")
    if baseline.first_divergence is not None and baseline.first_divergence.position > len(end.output_ids):
        _wrong("baseline.first_divergence.position", "lies behind the end of the output.")
    parting = len(baseline.token_ns) if baseline.first_divergence is None else baseline.first_divergence.position
    if baseline.pieces and len(baseline.pieces) != len(baseline.token_ns) - parting:
        _wrong("baseline.pieces", "is not one text for each of its tokens from first_divergence on.")
    if baseline.picture and baseline.first_divergence is None:
        _wrong("baseline.picture", "stands only where there is a first_divergence.")


def _wrong(field: str, message: str) -> NoReturn:
    raise BadTrace(message, field=field)


def _check_tree(step: Step) -> None:
    if step.nodes[0].parent != -1 or step.nodes[0].status != ROOT:
        _wrong("nodes[0]", "the first node is the root: its parent is -1 and its status root.")
    for place, node in enumerate(step.nodes[1:], 1):
        if not 0 <= node.parent < place:
            _wrong(f"nodes[{place}][0]", f"the parent is {node.parent}; a parent comes before its child.")
        if node.status == ROOT:
            _wrong(f"nodes[{place}][5]", "only the first node is the root.")
        if step.nodes[node.parent].status == PRUNED and node.status != PRUNED:
            _wrong(f"nodes[{place}][5]", "its parent was pruned, so the target never saw it: it is pruned too.")
    if max(step.depths) > MAX_DEPTH:
        _wrong("nodes", f"a node is deeper than {MAX_DEPTH}.")


def _check_path(step: Step) -> None:
    above = 0
    for place, number in enumerate(step.path):
        if not 0 < number < len(step.nodes):
            _wrong(f"path[{place}]", f"there is no drafted node {number}.")
        if step.nodes[number].parent != above:
            _wrong(f"path[{place}]", f"node {number} is not a child of node {above}, the one before it on the path.")
        above = number
    on_path = set(step.path)
    for place, node in enumerate(step.nodes):
        if node.status == RESAMPLED:  # on the path it has its new token, elsewhere the drafted one
            continue
        if (node.status in (ACCEPTED, RELAXED)) != (place in on_path):
            on = "on" if place in on_path else "not on"
            _wrong(f"nodes[{place}][5]", f"the status is {node.status}, and the node is {on} the path.")
    if step.bonus is not None and step.bonus.parent != above:
        _wrong("bonus[0]", f"the bonus token hangs from {step.bonus.parent}; the path ends at {above}.")


def _check_tokens(step: Step) -> None:
    tokens = [step.nodes[number].token for number in step.path]
    if step.bonus is not None:
        tokens.append(step.bonus.token)
    if list(step.emitted) != tokens[: len(step.emitted)]:
        _wrong("emitted", "is not the path's tokens followed by the bonus token.")
    if step.cut is None and len(step.emitted) < len(tokens):
        _wrong("emitted", "is shorter than path and bonus, and nothing says why (cut is null).")
    if len(step.pieces) != len(step.emitted):
        _wrong("pieces", f"has {len(step.pieces)} texts for {len(step.emitted)} emitted tokens.")


def _check_counts(step: Step) -> None:
    scored = sum(node.status != PRUNED for node in step.nodes) - 1
    if step.verified < scored:  # verified may be larger: a sparse recording keeps only the path
        _wrong("verified", f"is {step.verified}, and {scored} nodes below the root were not pruned.")
    if step.padded < step.verified + 1:
        _wrong("padded", f"is {step.padded}; root and verified nodes alone are {step.verified + 1} rows.")
    nodes_with_row: set[int] = set()
    for place, row in enumerate(step.rows):
        if row.node >= len(step.nodes) or row.node in nodes_with_row:
            _wrong(f"rows[{place}][0]", f"node {row.node} has a row already, or does not exist.")
        nodes_with_row.add(row.node)
