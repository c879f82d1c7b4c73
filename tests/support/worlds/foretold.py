"""Drafters that are told the text to come, so that a random network is accepted as often as a test needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.drafting.runtimes.block_drafter import BlockDrafter
from specviz.drafting.runtimes.fill_drafter import FillDrafter
from specviz.engine.interfaces import Composition, Context
from specviz.engine.sampling import Warp
from specviz.methods.diffuspec.lattice import MaskedBlock
from specviz.methods.owl.drafting import RecurrentDrafter
from specviz.targets.text import TextTarget
from tests.support.tiny.text import composed
from tests.support.worlds.text import network, resources


class Foretold:
    """``text`` is the one to come; every ``gap``-th token of it is missing, none with a gap of 0."""

    text: tuple[int, ...] = ()
    gap: int = 0
    support: Tensor | None

    def raised(self, logits: Tensor, place: int) -> None:
        """Make the token at ``place`` of the text the likeliest of ``logits`` [support]."""
        if place < len(self.text) and (not self.gap or place % self.gap):
            known = torch.arange(len(logits)) if self.support is None else self.support
            logits[known == self.text[place]] = 30.0


class ForetoldLevels(Levels):
    """A drafter's levels, whose logits know the text to come from place ``start`` on."""

    def __init__(self, drafter: Foretold, levels: Any, start: int) -> None:
        self.deepest, self._drafter, self._levels, self._place = levels.deepest, drafter, levels, start

    def _raised(self, logits: Tensor) -> Tensor:
        logits = logits.clone()
        for row in logits:
            self._drafter.raised(row, self._place)
        self._place += 1
        return logits

    def first(self) -> Tensor:
        return self._raised(self._levels.ask())

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        return self._raised(self._levels.ask(tokens, parents))

    def marginals(self) -> Tensor:
        return torch.cat([self._raised(logits[None]) for logits in self._levels.marginals()])


class ByLevels(Foretold):
    """One that drafts level by level."""

    def levels(self, context: Context) -> ForetoldLevels | None:
        levels = super().levels(context)
        return None if levels is None else ForetoldLevels(self, levels, len(context.ids) - context.prompt_length)


class ForetoldBlocks(ByLevels, BlockDrafter):
    """Falcon's drafter."""


class ForetoldMasks(ByLevels, MaskedBlock):
    """The drafter of DEER and DiffuSpec."""

    def block(self, context: Context, places: int) -> Tensor:
        found, start = super().block(context, places).clone(), len(context.ids) - context.prompt_length
        for level, logits in enumerate(found):
            self.raised(logits, start + level)
        return found


class ForetoldFill(ByLevels, FillDrafter):
    """The drafter of DFlash and DSpark."""


class ForetoldStates(ByLevels, RecurrentDrafter):
    """The drafter of OWL."""


def foretold(
    name: str, values: dict[str, Any], target: TextTarget, warp: Warp, text: Sequence[int], gap: int = 0, net: Any = None
) -> Composition:
    """A method whose drafter is told ``text``, with a random network that knows every token, or with ``net``."""
    parts = resources(target, warp, whole=True)
    kind = {
        "falcon": "falcon", "deer": "masked_lm", "diffuspec": "masked_lm", "dflash": "dflash", "dspark": "dspark",
    }.get(values.get("drafter", name), "owl")  # fmt: skip
    net = net or network(kind, target, whole=True)
    parts = parts.using(drafter_weights=lambda asked: network(asked, target) if asked == "ngrams" else net)
    made = composed(name, values, parts)
    told: Any
    if kind == "falcon":
        told = made.controller.drafter = ForetoldBlocks(net)
    elif kind in ("dflash", "dspark"):
        told = made.controller.drafter = ForetoldFill(net, made.controller.drafter.slots)
    elif kind == "masked_lm":
        told = made.controller.drafter = ForetoldMasks(net, made.controller.drafter.places)
    else:
        told = made.controller.network = ForetoldStates(net)
    told.text, told.gap = tuple(text), gap
    return made
