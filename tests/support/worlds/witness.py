"""A drafter whose answers are kept, and what the target has to say about the same text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from specviz.acceptance.exact import Match
from specviz.drafting.levels import Levels
from specviz.drafting.trees.dynamic import Dynamic
from specviz.engine.interfaces import Composition, Context, SingleDrafter
from specviz.engine.sampling import Warp
from specviz.trace.schema import Step
from tests.support.tiny.text import Decoded, decode
from tests.support.worlds.vision import World

Roots = tuple[list[tuple[list[int], Tensor]], Sequence[Step]]


class Witness:
    """A drafter whose every answer is kept with the path below the root that it was asked about."""

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter
        self.answers: list[tuple[list[int], list[int], Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def error(self, truth: Callable[[list[int], list[int]], Tensor]) -> float:
        """Largest relative difference of an answer from what ``truth`` says of its text and path."""
        pairs = [(row, truth(ids, path)) for ids, path, row in self.answers]
        return max(float((row - wanted).abs().max() / wanted.abs().max()) for row, wanted in pairs)

    def levels(self, context: Context) -> Witnessed | None:
        levels = self.drafter.levels(context)
        return None if levels is None else Witnessed(self, levels, list(context.ids))


class Witnessed(Levels):
    def __init__(self, witness: Witness, levels: Any, ids: list[int]) -> None:
        self.deepest, self._witness, self._levels, self._ids = levels.deepest, witness, levels, ids
        self._paths: list[list[int]] = [[]]

    def first(self) -> Tensor:
        return self._kept(self._levels.ask())

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        self._paths = [[*self._paths[row], token] for token, row in zip(tokens.tolist(), parents.tolist(), strict=True)]
        return self._kept(self._levels.ask(tokens, parents))

    def _kept(self, logits: Tensor) -> Tensor:
        self._witness.answers += [(self._ids, path, row) for path, row in zip(self._paths, logits, strict=True)]
        return logits


def drafting(drafter: Any, target: Any, prompt: Sequence[int], taps: tuple[int, ...], budget: int = 6) -> Decoded:
    """A greedy run with small trees."""
    composition: Any = Composition(SingleDrafter(drafter, Dynamic(3, 5, 12)), Match(), taps)
    return decode(target, composition, prompt, budget, Warp())


def drafted_roots(drafter: Any, target: Any, prompt: Sequence[int], taps: tuple[int, ...], budget: int) -> Roots:
    """What the drafter said below each root of a greedy run with small trees: the text so far and the logits [support]."""
    witness = Witness(drafter)
    runs = [drafting(one, target, prompt, taps, budget).steps for one in (witness, drafter)]
    trees = [[[node.token for node in step.nodes] for step in steps] for steps in runs]
    assert trees[0] == trees[1], "levels of its own draft the same tree"
    roots = [(ids, row) for ids, path, row in witness.answers if not path]
    assert len(roots) >= 2
    return roots, runs[0]


def hidden_states(here: World, ids: list[int]) -> tuple[Tensor, Tensor]:
    """The target's input and its last features [token, hidden] over a whole text, from one pass of its own."""
    layers = here.tiny.model.config.get_text_config().num_hidden_layers
    session = here.target.open(len(ids), (0, layers))
    hidden = session.prefill(ids).hidden
    return hidden[0], hidden[layers]
