"""Trees that follow confidence, drafted by one that foresees the target as well as it is told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from specviz.acceptance.match import Match
from specviz.drafting.runtimes.null import NullDrafter
from specviz.drafting.trees.dynamic import Dynamic, SpeedupMaximising
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import (
    Acceptance,
    Composition,
    Context,
    Pick,
    Round,
    Session,
    SingleDrafter,
    TargetPass,
    TreeBuilder,
)
from specviz.engine.tree import DraftTree
from specviz.methods.ddd import BeamMass
from specviz.targets.text import TextTarget
from specviz.trace.schema import Note
from tests.support.tiny.text import perturbed
from tests.support.worlds.host_levels import ByTokens


class Foreseer(ByTokens, NullDrafter):
    """Says about any node of a tree what a copy of the target, its weights shaken by ``noise``, would say there."""

    def __init__(self, target: TextTarget, noise: float) -> None:
        self._model = TextTarget(perturbed(target.model, noise), "foreseeing", ())
        self._session: Session | None = None
        self._calls = 0

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._session = self._model.open(len(context.ids) + context.max_depth)
        if len(context.ids) > 1:
            self._session.prefill(list(context.ids[:-1]))

    def logits(self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor:
        assert self._session is not None
        found = self._session.score(DraftTree.of(tokens, parents)).logits[list(nodes)]
        self._session.rewind(self._session.length)
        self._calls += 1
        return found

    def observe(self, finished: Round) -> None:
        assert self._session is not None
        tokens = finished.draft.tree.host_tokens
        self._session.prefill([tokens[node] for node in (0, *finished.verdict.path)])

    def calls(self) -> int:
        made, self._calls = self._calls, 0
        return made

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return ()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


CURVE = CostCurve((1, 8, 16, 32), (10.0, 11.0, 13.0, 20.0))
BUILDERS: dict[str, Callable[[], TreeBuilder]] = {
    "twelve nodes": lambda: Dynamic(3, 3, 12),
    "as many as pay": lambda: Dynamic(3, 3, pays=SpeedupMaximising.on(CURVE)),
    "as deep as sure": lambda: Dynamic(6, 3, 12, BeamMass(-0.7, ())),
}


def composed(target: TextTarget, builder: TreeBuilder, noise: float = 0.02, rule: Acceptance | None = None) -> Composition:
    return Composition(SingleDrafter(Foreseer(target, noise), builder), rule or Match())
