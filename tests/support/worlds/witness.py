"""A drafter whose answers are kept, and what the target has to say about the same text."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.engine.interfaces import Context
from tests.support.worlds.vision import World


class Witness:
    """A drafter whose every answer is kept with the path below the root that it was asked about."""

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter
        self.answers: list[tuple[list[int], list[int], Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

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


def hidden_states(here: World, ids: list[int]) -> tuple[Tensor, Tensor]:
    """The target's input and its last features [token, hidden] over a whole text, from one pass of its own."""
    layers = here.tiny.model.config.get_text_config().num_hidden_layers
    session = here.target.open(len(ids), (0, layers))
    hidden = session.prefill(ids).hidden
    return hidden[0], hidden[layers]
