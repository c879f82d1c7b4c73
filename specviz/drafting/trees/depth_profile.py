"""Depth of a dynamic tree, chosen once before a run from calibrated acceptance and this machine's costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy

from specviz.drafting.trees.dynamic import SpeedupPolicy
from specviz.errors import BadInput
from specviz.trace.notes.drafts import TreeDepth

MIN_LEVELS = 2
"""Minimum number of levels of a tree, if the profile has that many; with one level, reranking has no effect."""


@dataclass(frozen=True)
class DepthProfile:
    """Calibrated acceptance of a drafter's trees by depth and size.

    ``tau[temperature][depth - 1][index]``: tokens per round, bonus included, with trees of ``depth`` levels cut to their
    ``sizes[index]`` best nodes. The trees were drafted by ``drafter`` for ``target`` with beams of ``width`` nodes.
    """

    drafter: str
    target: str
    width: int
    sizes: tuple[int, ...]
    tau: Mapping[float, tuple[tuple[float, ...], ...]]
    source: str = ""

    def nearest(self, temperature: float) -> float:
        """Return the nearest measured temperature; the lower one wins ties."""
        return min(sorted(self.tau), key=lambda measured: abs(measured - temperature))

    def save(self, path: Path) -> None:
        """Save as JSON, one depth per line."""
        tau = {temperature: [[round(tau, 4) for tau in row] for row in table] for temperature, table in self.tau.items()}
        text = json.dumps({**asdict(self), "tau": tau})
        path.write_text(text.replace("], ", "],\n") + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> DepthProfile:
        """Load from JSON. Raises BadInput if the file is missing or not a depth profile."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=DepthProfile)
            widths = {len(row) for table in found.tau.values() for row in table}
            if not found.tau or not all(found.tau.values()) or widths != {len(found.sizes)}:
                raise ValueError("its tables have gaps")
            return found
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{path.name} is not a depth profile ({error}); create it with: python -m specviz calibrate {path.stem}."
            ) from error


def fastest_depth(profile: DepthProfile, policy: SpeedupPolicy, temperature: float, nodes: int = 0) -> TreeDepth:
    """Return ``argmax_(d, n) τ(d, n) / (cost[n] + d * forward)`` from the profile at the nearest temperature.

    The shallowest depth wins ties; trees have at least :data:`MIN_LEVELS` levels. ``nodes``: size of the trees; 0 tries all
    measured sizes.
    """
    table = profile.tau[profile.nearest(temperature)]
    sizes = (nodes,) if nodes else profile.sizes
    alone, most, best = policy.cost[0], 0.0, TreeDepth(MIN_LEVELS)
    for depth, row in list(enumerate(table, start=1))[min(MIN_LEVELS, len(table)) - 1 :]:
        for size in sizes:
            tau = float(numpy.interp(size, profile.sizes, row))
            gain = float(tau * alone / (policy.cost[size] + depth * policy.forward))
            if gain > most:
                most, best = gain, TreeDepth(depth, size, tau, gain, float(policy.forward / alone))
    return best
