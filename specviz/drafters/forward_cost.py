"""What one forward of a feature drafter's network costs on this machine, measured as a target's passes are."""

from __future__ import annotations

import statistics
import threading
import time
import weakref

import torch

from specviz.drafters.feature_stepper import FeatureStepper
from specviz.engine.cost import CONTEXT, REPEATS

_LOCK = threading.Lock()
_KEPT: weakref.WeakKeyDictionary[FeatureStepper, dict[int, float]] = weakref.WeakKeyDictionary()


def forward_cost(network: FeatureStepper, rows: int) -> float:
    """Milliseconds of a forward over ``rows`` nodes and of its head: measured once, kept with the network."""
    with _LOCK:
        known = _KEPT.setdefault(network, {})
        if rows not in known:
            known[rows] = _measured(network, rows)
        return known[rows]


@torch.inference_mode()
def _measured(network: FeatureStepper, rows: int) -> float:
    """The median of a few forwards behind 128 cached inputs, each over nodes that do not see each other."""
    device, whole = network.embedding.device, CONTEXT + rows
    tokens, places = torch.ones(whole, dtype=torch.long, device=device), torch.arange(whole, device=device)
    states = network.embedding[tokens]
    seen = (places[None] < CONTEXT) | (places[None] == places[:, None])
    cache = network.open(whole)
    network.reach(whole)
    causal = places[None, :CONTEXT] <= places[:CONTEXT, None]
    network(tokens[:CONTEXT], states[:CONTEXT], places[:CONTEXT], cache, 0, causal)
    taken = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        network.logits(network(tokens[CONTEXT:], states[CONTEXT:], places[CONTEXT:], cache, CONTEXT, seen[CONTEXT:]))
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append((time.perf_counter() - started) * 1e3)
    return statistics.median(taken[1:])  # the first is warm-up
