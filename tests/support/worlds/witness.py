"""A drafter whose answers are kept, and what the target has to say about the same text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from specviz.engine.interfaces import Context
from tests.support.worlds.vision import World


class Witness:
    """A drafter whose every answer is kept with the path it was asked about, node by node and not by levels of its own."""

    levels = placed = None

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter
        self.answers: list[tuple[list[int], list[int], Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def logits(self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor | None:
        found = self.drafter.logits(context, tokens, parents, nodes)
        for row, node in zip([] if found is None else found, [] if found is None else nodes, strict=True):
            path: list[int] = []
            while node:
                path.insert(0, tokens[node])
                node = parents[node]
            self.answers.append((list(context.ids), path, row))
        return found


def hidden_states(here: World, ids: list[int]) -> tuple[Tensor, Tensor]:
    """The target's input and its last features [token, hidden] over a whole text, from one pass of its own."""
    layers = here.tiny.model.config.get_text_config().num_hidden_layers
    session = here.target.open(len(ids), (0, layers))
    hidden = session.prefill(ids).hidden
    return hidden[0], hidden[layers]
