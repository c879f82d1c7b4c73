"""CUDA graphs as a CPU can have them: one address for what a graph gives, and no mercy on whoever reads it a replay too late."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specviz.engine import tiers
from specviz.engine.clock import capturing
from specviz.engine.tiers import Outputs

SECONDS = 1000
"""What capturing one pass takes by the fake clock."""


class Graphs:
    """Stands for the device. ``captures`` and ``replays`` count; graphs of one pool spoil each other's outputs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.captures = self.replays = self.pools = 0
        self._late = 0
        self._of_pool: dict[int, list[torch.Tensor]] = {}
        real = time.perf_counter_ns
        patch.setattr(time, "perf_counter_ns", lambda: real() + self._late)
        patch.setattr(tiers, "is_captured", lambda device: True)
        patch.setattr(tiers, "captured", self.capture)
        patch.setattr(tiers, "new_pool", self.new_pool)

    def new_pool(self) -> int:
        self.pools += 1
        return self.pools

    def capture(self, call: Callable[[], Outputs], device: torch.device, pool: Any) -> tuple[Callable[[], None], Outputs]:
        assert pool, "a graph without a pool keeps memory of its own"
        self.captures += 1
        with capturing():
            self._late += SECONDS * 1_000_000_000
            logits, hidden = call()
        outputs = (logits.clone(), {layer: states.clone() for layer, states in hidden.items()})
        of_pool = self._of_pool.setdefault(pool, [])
        of_pool += [outputs[0], *outputs[1].values()]

        def replay() -> None:
            self.replays += 1
            with torch.inference_mode():
                for tensor in of_pool:
                    tensor.fill_(float("nan"))
                fresh_logits, fresh_hidden = call()
                outputs[0].copy_(fresh_logits)
                for layer, states in fresh_hidden.items():
                    outputs[1][layer].copy_(states)

        return replay, outputs
