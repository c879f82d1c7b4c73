"""Choice of the target class for a loaded causal language model, by its layers: attention only, or with recurrence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specviz.targets.hybrid import HybridTarget
from specviz.targets.state_layers import can_branch
from specviz.targets.text import TextTarget

CausalTarget = TextTarget | HybridTarget


def causal_target(model: Any, name: str, eos_ids: Iterable[int], tier: str = "auto") -> CausalTarget:
    """Return the target for this model's class. Raises ModelUnavailable if its layers cannot hold a tree's branches."""
    kind = HybridTarget if can_branch(model) else TextTarget
    return kind(model, name, sorted(eos_ids), tier)
