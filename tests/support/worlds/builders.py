"""Trees that follow confidence, drafted by one that foresees the target as well as it is told to."""

from __future__ import annotations

from collections.abc import Callable

from specviz.acceptance.match import Match
from specviz.drafting.trees.dynamic import Dynamic, SpeedupMaximising
from specviz.engine.controller import SingleDrafter
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Acceptance, Composition, TreeBuilder
from specviz.methods.ddd.depth import BeamMass
from specviz.targets.text import TextTarget
from tests.support.worlds.foreseeing import Foreseer

CURVE = CostCurve((1, 8, 16, 32), (10.0, 11.0, 13.0, 20.0))
BUILDERS: dict[str, Callable[[], TreeBuilder]] = {
    "twelve nodes": lambda: Dynamic(3, 3, 12),
    "as many as pay": lambda: Dynamic(3, 3, pays=SpeedupMaximising.on(CURVE)),
    "as deep as sure": lambda: Dynamic(6, 3, 12, BeamMass(-0.7, ())),
}


def composed(target: TextTarget, builder: TreeBuilder, noise: float = 0.02, rule: Acceptance | None = None) -> Composition:
    return Composition(SingleDrafter(Foreseer(target, noise), builder), rule or Match())
