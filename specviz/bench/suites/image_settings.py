"""Settings of the image suites: exact and relaxed ones, sweeps, and the few of a short run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One point of the curve of quality against speed."""

    method: str
    parameters: Mapping[str, Any]

    @property
    def label(self) -> str:
        """How a row calls it."""
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.parameters.items())])


PLAIN = Setting("autoregressive", {})
DYNAMIC = Setting("eagle2", {"nodes": 25, "rule": "match"})
STATIC = Setting("eagle", {"tree": "published", "rule": "match"})
REJECTED = (
    Setting("eagle", {"tree": "published", "rule": "without_replacement"}),
    Setting("eagle2", {"nodes": 25, "rule": "rejection"}),
)
LANTERN = Setting("lantern", {"delta": 0.1, "nodes": 25})
LANTERN_PP = Setting("lantern_pp", {"factor": 5.0, "tree": "25"})
FEWER_LOOK_ALIKES = tuple(Setting("lantern_pp", {"factor": factor, "k": 5, "tree": "25"}) for factor in (10.0, 20.0))

ORDER = ((LANTERN, DYNAMIC), (LANTERN, REJECTED[1]), *((setting, LANTERN) for setting in (LANTERN_PP, *FEWER_LOOK_ALIKES)))
"""The first of two should beat the second, at the bounds that were published: LANTERN's δ 0.1, and all three pairs of
LANTERN++, λ 5 with 10 nearest latent codes, 10 and 20 with 5. All draft 25 nodes. EAGLE-2 stands twice: by sample and match, and
by rejection, the rule that LANTERN relaxes."""
TREES = ((STATIC, DYNAMIC), REJECTED)
"""A static tree and a dynamic one, 25 nodes both, judged by one and the same rule."""
SWEPT = (("lantern", "delta"), ("lantern_pp", "factor"))
"""Bounds; a larger one should never accept less."""

STRICT = (STATIC, DYNAMIC, *REJECTED, Setting("speculative_jacobi", {}))
RELAXED = tuple(
    [Setting("lantern", {"delta": delta, "nodes": 25}) for delta in (0.05, 0.1, 0.3)]
    + [Setting("lantern_pp", {"factor": factor, "tree": "25"}) for factor in (1.5, 2.0, 5.0)]
    + list(FEWER_LOOK_ALIKES)
    + [Setting("mulo_sd", {"tau": tau}) for tau in (0.02, 0.05, 0.1, 0.2)]
)


def _of_size(nodes: int) -> tuple[Setting, ...]:
    """EAGLE-2, LANTERN and the three pairs of LANTERN++ on trees of so many nodes."""
    static = (Setting("lantern_pp", {**setting.parameters, "tree": str(nodes)}) for setting in (LANTERN_PP, *FEWER_LOOK_ALIKES))
    dynamic = Setting("eagle2", {"nodes": nodes, "rule": "rejection"})
    return dynamic, Setting("lantern", {"delta": 0.1, "nodes": nodes}), *static


SIZES = {nodes: _of_size(nodes) for nodes in (12, 25, 57)}
"""Trees of equally many nodes, small and large."""
ORDER_BY_SIZE = tuple(
    pair
    for dynamic, lantern, *static in SIZES.values()
    for pair in ((lantern, dynamic), *((setting, lantern) for setting in static))
    if pair not in ORDER
)
SWEEPS = (
    *(setting for group in SIZES.values() for setting in group),
    Setting("lantern_pp", {"factor": 5.0, "tree": "chain"}),
    Setting("mulo_sd", {"tau": 0.05}),
    *(Setting("mulo_sd", {"tau": 0.05, "pool": pool}) for pool in (8, 16, 64)),
    *(Setting("mulo_sd", {"tau": 0.05, "radius": radius}) for radius in (0, 2)),
    Setting("mulo_sd", {"tau": 0.05, "cache": "stale"}),
)
"""What else a user may turn: the size of trees, and MuLo-SD's nearest latent codes, neighbourhood and old keys and values."""
QUICK = (STATIC, DYNAMIC, LANTERN, LANTERN_PP, Setting("mulo_sd", {}))
