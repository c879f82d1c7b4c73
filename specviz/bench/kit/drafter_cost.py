"""Relative cost of a drafter's layer: a target must be deep enough for speculation to pay."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from specviz.bench.kit.report import Row
from specviz.engine.tree import DraftTree
from specviz.errors import SpecvizError
from specviz.runner import Prepared

NAME = "one row through the drafter's layer, of a target pass"
GOAL = 0.1


def layer_cost(prepare: Callable[[], Prepared], drafter: str, times: int = 60) -> Row:
    """One token through the network of ``drafter``, head left out, against one through the target, both behind the prompt.

    A guided target reads a token in two rows, and so does its drafter.
    """
    try:
        ready = prepare()
        network = ready.parts.drafter_weights(drafter)
    except SpecvizError as problem:
        return Row(NAME, None, detail=str(problem))
    if isinstance(network, tuple):
        network = network[0]  # a network that was trained for pictures comes with what it reads of them
    ids, device = ready.prompt_ids, ready.target.device
    rows = 1 if ready.parts.guidance is None else 2
    root = DraftTree.of([ids[-1]], [-1], device)
    cache, width = network.open(rows * (len(ids) + 1)), network.config.hidden
    network.reach(len(ids) + 1)

    def draft(tokens: Sequence[int], start: int) -> None:
        features = torch.zeros(rows * len(tokens), width, dtype=ready.target.dtype, device=device)
        token_ids = torch.tensor(tokens, device=device).repeat_interleave(rows)
        places = torch.arange(start, start + len(tokens), device=device).repeat_interleave(rows)
        cache.reserve(rows * (start + len(tokens)))
        network(token_ids, features, places, cache, rows * start, _same_kind(rows, len(tokens), start + len(tokens), device))

    def verify() -> None:
        session.score(root)
        session.rewind(session.length)

    session = ready.target.open(len(ids) + 1)
    try:
        session.prefill(ids[:-1])
        with torch.inference_mode():
            draft(ids[:-1], 0)
            ours = median(lambda: draft(ids[-1:], len(ids) - 1), times, device)
            whole = median(verify, times, device)
    finally:
        session.close()
    detail = f"{ours * 1e3:.2f} and {whole * 1e3:.2f} ms, medians over {times}"
    return Row(NAME, ours / whole, "×", GOAL, True, detail)


def _same_kind(rows: int, tokens: int, columns: int, device: torch.device) -> torch.Tensor | None:
    """Bool [token and row, column and row]: a row sees its own kind; None where there is one kind alone."""
    if rows == 1:
        return None
    kind = torch.arange(rows, device=device)
    return kind.repeat(tokens)[:, None] == kind.repeat(columns)[None]


def median(work: Callable[[], None], times: int, device: torch.device) -> float:
    """Seconds that ``work`` takes; a tenth of the times goes before, uncounted."""
    seconds = []
    for number in range(times + times // 10):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number >= times // 10:
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
