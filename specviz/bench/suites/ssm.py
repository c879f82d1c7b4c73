"""The state-space suite: trees against chains of as many nodes, against a state per node, and against the baseline."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from specviz.bench.kit.measure import Bencher, TimedRun, in_own_thread, median_ratio, range_text
from specviz.bench.kit.prompts import KINDS
from specviz.bench.kit.report import Report, Row
from specviz.engine.interfaces import Session
from specviz.engine.tree import DraftTree
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET
from specviz.runner import Prepared

TARGET = "hybrid-small"
BUDGETS = (4, 8, 12)
TEMPERATURES = (0.0, 0.8)
MODEL_FREE = ("prompt_lookup", "token_recycling", "suffix_decoding")
REPEATS = 9
CONTEXT = 128


def run(report: Report, target: str, methods: Sequence[str] = (), quick: bool = False) -> None:
    """Every part. The target is the hybrid that ships unless another one was asked for."""
    name = TARGET if target == DEFAULT_TEXT_TARGET else target
    report.where["target"] = name
    bench = Bencher(name, tokens=64 if quick else 128)
    prompts = [texts[0] for texts in KINDS.values()][: 3 if quick else None]
    for part in (against_chains, default_against_chains, exact, memory, against_paths, speeds):
        in_own_thread(partial(part, report, bench, prompts))


def _tree(nodes: int) -> Mapping[str, Any]:
    return {"depth": min(4, nodes), "width": 3, "nodes": nodes}


def _deep(nodes: int) -> Mapping[str, Any]:
    """May be as deep as the chain of as many nodes: as many drafter passes, and only branching is compared."""
    return {"depth": nodes, "width": 3, "nodes": nodes}


def _chain(nodes: int) -> Mapping[str, Any]:
    return {"depth": nodes, "width": 1, "nodes": nodes}


def _tree_and_chain(bench: Bencher, prompt: str, nodes: int, temperature: float) -> tuple[Prepared, Prepared]:
    ready = (
        bench.prepared("stree", prompt, temperature, parameters=dict(parameters)) for parameters in (_deep(nodes), _chain(nodes))
    )
    return next(ready), next(ready)


def against_chains(report: Report, bench: Bencher, prompts: Sequence[str]) -> None:
    """The same drafter, as many nodes and drafter passes: once as a tree and once as a chain."""
    for nodes in BUDGETS:
        for temperature in TEMPERATURES:
            pairs = [_tree_and_chain(bench, prompt, nodes, temperature) for prompt in prompts]
            _add_comparison(report, bench, f"tree over chain of {nodes} nodes, T = {temperature:g}", pairs)


def default_against_chains(report: Report, bench: Bencher, prompts: Sequence[str]) -> None:
    """The tree that a user gets unless he asks for another one, against chains of several lengths."""
    for temperature in TEMPERATURES:
        trees = [bench.prepared("stree", prompt, temperature) for prompt in prompts]
        for nodes in BUDGETS:
            chains = [bench.prepared("stree", prompt, temperature, parameters=dict(_chain(nodes))) for prompt in prompts]
            name = f"the default tree over a chain of {nodes} nodes, T = {temperature:g}"
            _add_comparison(report, bench, name, list(zip(trees, chains, strict=True)))


def _add_comparison(report: Report, bench: Bencher, name: str, pairs: Sequence[tuple[Prepared, Prepared]]) -> None:
    """Rows on τ and time of a tree over a chain, prompt by prompt."""
    taus, gains = [], []
    for tree, chain in pairs:
        taus.append((bench.timed_run(tree).tau, bench.timed_run(chain).tau))
        gains.append(_faster(bench, chain, tree))
    ours, theirs = (statistics.mean(column) for column in zip(*taus, strict=True))
    report.add(Row(f"{name}: τ", ours / theirs, goal=1.0, detail=f"τ {ours:.2f} and {theirs:.2f}"))
    each = ", ".join(f"{gain:.2f}" for gain in gains)
    report.add(Row(f"{name}: time", statistics.mean(gains), goal=1.0, detail=f"each: {each}"))


def _faster(bench: Bencher, slow: Prepared, fast: Prepared, pairs: int = 3) -> float:
    return median_ratio(lambda: bench.timed_run(slow).per_token, lambda: bench.timed_run(fast).per_token, pairs)[0]


def exact(report: Report, bench: Bencher, prompts: Sequence[str]) -> None:
    """How many runs write what the target writes alone, with the same seed."""
    equal, tried = 0, 0
    for temperature in TEMPERATURES:
        for prompt in prompts:
            alone = bench.timed_run(bench.prepared("autoregressive", prompt, temperature)).ids
            for tree in ("beam", "fixed", "drawn"):
                values = {**_tree(12), "tree": tree}
                equal += bench.timed_run(bench.prepared("stree", prompt, temperature, parameters=values)).ids == alone
                tried += 1
    report.add(Row("token for token the autoregressive run", 100 * equal / tried, "%", 100.0, detail=f"{equal} of {tried} runs"))


def memory(report: Report, bench: Bencher, prompts: Sequence[str]) -> None:
    """What a state for each node would take beside the activations that the replay needs, as recorded by the passes."""
    ready = bench.prepared("stree", prompts[0], parameters=dict(_tree(12)))
    steps = bench.timed_run(ready, record="tree").steps
    notes = [note.data for step in steps for note in step.notes if note.type == "ssm_mask"]
    each, replay = (statistics.mean(note[name] for note in notes) for name in ("per_node_bytes", "replay_bytes"))
    detail = f"{each / 1e3:.0f} kB and {replay / 1e3:.0f} kB a pass, {len(notes)} passes"
    report.add(Row("memory: a state a node over activations", each / replay, goal=1.0, detail=detail))


def against_paths(report: Report, bench: Bencher, prompts: Sequence[str]) -> None:
    """One pass over a tree against its paths to the leaves, each scored behind the prompt as a chain of its own."""
    ready = bench.prepared("stree", prompts[0], parameters=dict(_tree(12)))
    steps = bench.timed_run(ready, record="tree").steps
    step = max(steps, key=lambda step: step.verified)
    verified = [node for node in step.nodes if node.status != "pruned"]
    tree = DraftTree.of([node.token for node in verified], [node.parent for node in verified], ready.target.device)
    leaves = [node for node in range(len(tree)) if not tree.shape.children[node]]
    chains = [
        DraftTree.of([tree.host_tokens[place] for place in path], range(-1, len(path) - 1), ready.target.device)
        for path in map(tree.shape.path, leaves)
    ]
    session = ready.target.open(CONTEXT + 1)
    session.prefill((ready.prompt_ids * CONTEXT)[:CONTEXT])
    median, ratios = median_ratio(lambda: _scoring_seconds(session, chains), lambda: _scoring_seconds(session, [tree]), REPEATS)
    session.close()
    detail = f"{len(tree)} nodes, {len(leaves)} paths of {sum(map(len, chains))} nodes: {range_text(ratios)}"
    report.add(Row("one pass over the tree, against its paths", median, goal=1.0, detail=detail))


def _scoring_seconds(session: Session, trees: Sequence[DraftTree]) -> float:
    started = time.perf_counter()
    for tree in trees:
        session.score(tree)
        session.rewind(session.length)
    return time.perf_counter() - started


def speeds(report: Report, bench: Bencher, prompts: Sequence[str]) -> None:
    """Seconds a token of the target alone, over each method's."""
    cases: list[tuple[str, str, Mapping[str, Any]]] = [
        ("stree, tree of 12", "stree", _tree(12)),
        ("stree, tree of 6, depth 2", "stree", {"depth": 2, "width": 3, "nodes": 6}),
        ("stree, chain of 3", "stree", _chain(3)),
        *((name, name, {}) for name in MODEL_FREE),
    ]
    for label, method, values in cases:
        gains, runs = [], list[TimedRun]()
        for prompt in prompts:
            ready = bench.prepared(method, prompt, parameters=dict(values))
            runs.append(bench.timed_run(ready))
            gains.append(_faster(bench, bench.prepared("autoregressive", prompt), ready))
        spent = ", ".join(f"{name} {share:.0f} %" for name, share in _shares(runs).items())
        tau = statistics.mean(timed.tau for timed in runs)
        report.add(Row(f"{label}, over decoding alone", statistics.mean(gains), detail=f"τ {tau:.2f}; {spent}"))


def _shares(runs: Sequence[TimedRun]) -> dict[str, float]:
    """Where the time of these runs went, in percent."""
    times = [step.time for timed in runs for step in timed.steps]
    whole = max(1, sum(step_time.total for step_time in times))
    return {name: 100 * sum(getattr(step_time, name) for step_time in times) / whole for name in ("draft", "verify", "host")}
