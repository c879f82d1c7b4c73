"""Cost of one drafter forward on this machine, timed in advance and used until runs have measured it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from specviz.drafting.networks.block_net import BlockNet
from specviz.drafting.networks.eagle_head import EagleRuntime
from specviz.drafting.runtimes.block_drafter import BlockDrafter, BlockLevels
from specviz.engine.cached import cached
from specviz.engine.cost import CONTEXT
from specviz.engine.interfaces import Context, TargetPass
from specviz.engine.sampling import Noise, Warp

REPEATS = 5
LEVELS = 4
"""Number of forwards per round. The first reads weights from memory, the others from the caches."""
ELSEWHERE = 1 << 26
"""Bytes written before a round to evict the weights from the caches, as a target pass does."""


def forward_cost(network: EagleRuntime | BlockNet, rows: int) -> float:
    """Return the milliseconds of a forward over ``rows`` nodes (for a block network: seeds), head included; measured once per
    network.
    """

    def measure() -> float:
        return _blocks(network, rows) if isinstance(network, BlockNet) else _measure(network, rows)

    return cached(network, ("forward", rows), measure)


@torch.inference_mode()
def _measure(network: EagleRuntime, rows: int) -> float:
    """Return the time per level in the fastest of a few rounds after 128 cached inputs.

    A level is a forward over nodes that do not attend to each other, followed by the choice of the best children.
    """
    device, length = network.embedding.device, CONTEXT + rows
    tokens, places = torch.ones(length, dtype=torch.long, device=device), torch.arange(length, device=device)
    states = network.embedding[tokens]
    mask = (places[None] < CONTEXT) | (places[None] == places[:, None])
    cache: Any = network.open(length)
    network.reach(length)
    causal = places[None, :CONTEXT] <= places[:CONTEXT, None]
    network(tokens[:CONTEXT], states[:CONTEXT], places[:CONTEXT], cache, 0, causal)

    def round_of_levels() -> None:
        for _ in range(LEVELS):
            outputs = network(tokens[CONTEXT:], states[CONTEXT:], places[CONTEXT:], cache, CONTEXT, mask[CONTEXT:])
            best = network.logits(outputs).float().log_softmax(-1).topk(rows).values
            best.double().flatten().sort(stable=True, descending=True)

    return _fastest(round_of_levels, device) / LEVELS


@torch.inference_mode()
def _blocks(network: BlockNet, rows: int) -> float:
    """Return the time of a block below each of ``rows`` seeds, each seed at the end of its own chain below the root."""
    device = network.embedding.device
    ids = [1] * (CONTEXT + 1)
    context = Context(ids, len(ids), 0, Warp(), Noise(0), device, CONTEXT)
    states = network.embedding[torch.ones(CONTEXT, dtype=torch.long, device=device)]
    drafter = BlockDrafter(network)
    drafter.begin(context, TargetPass(states[:0], {network.config.tap: states}))
    tokens, parents = torch.ones(rows, dtype=torch.long, device=device), torch.arange(rows, device=device)
    seeds: list[BlockLevels] = []

    def grow_seeds() -> None:
        levels = drafter.levels(context)
        assert levels is not None
        levels.ask()
        for level in range(1, network.block):
            levels.ask(tokens, parents if level > 1 else 0 * parents)
        seeds[:] = [levels]

    return _fastest(lambda: seeds[0].ask(tokens, parents if network.block > 1 else 0 * parents), device, grow_seeds)


def _fastest(forward: Callable[[], object], device: torch.device, before: Callable[[], object] = bool) -> float:
    """Return the milliseconds of the fastest of a few runs of ``forward``, because other programs only slow it down.

    Before each run, a write evicts the caches, and ``before`` runs untimed.
    """
    times, elsewhere = [], torch.empty(ELSEWHERE, dtype=torch.uint8, device=device)
    for _ in range(REPEATS + 1):
        elsewhere.fill_(0)
        before()
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        forward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3)
    return min(times[1:])  # the first is a warm-up
