"""Drafter that fills a block after the root in one pass (DFlash, DSpark): one forward yields all levels of a tree.

The committed text is stored as keys and values computed from the target's hidden states. A block's keys and values are
overwritten in the next round. With the root at position P, the cache ends at P - 1, and the block's rows are at P, P + 1, …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.drafting.networks.block_fill import FillRuntime
from specviz.drafting.networks.decoder_layer import LayerCaches, attend
from specviz.drafting.runtimes.feature_levels import LEAST, PIECE, TOGETHER, CapturedLevels, LevelsDrafter
from specviz.engine.interfaces import Context, Round, TargetPass
from specviz.engine.stop import chunks
from specviz.engine.tiers import padded_width
from specviz.engine.to_device import to_device


@dataclass(frozen=True)
class _Slot:
    """A level of the chain or tree.

    ``outputs`` [slot, hidden] and ``marginals`` [slot, support]: those of the block. ``number``: this slot. ``logits`` [row,
    support]. ``state`` [row, rank]: state of the Markov head. ``rates`` [row]: acceptance rates predicted before the level's
    tokens are chosen.
    """

    outputs: Tensor
    marginals: Tensor
    number: int
    logits: Tensor
    state: Tensor
    rates: Tensor | None


class FillLevels(CapturedLevels[_Slot]):
    """Cache and blocks of one run, slot by slot.

    The rows of a level share a marginal; a correcting head adapts it to the token above each row.
    """

    def __init__(self, network: FillRuntime, columns: int) -> None:
        super().__init__(network.embedding.device)
        self.columns = columns
        self.cache: LayerCaches = LayerCaches(network.config.layers, network.config, columns, network.embedding)
        self._network = network

    def commit(self, states: Tensor, places: Tensor, start: int | Tensor) -> None:
        """Append keys and values of the target's hidden ``states`` [row, tap * hidden] at positions ``places`` [row]."""
        fused = self._network.fuse(states)
        for number, cache in enumerate(self.cache.layers):
            cache.put(start, *self._network.keys_values(number, fused, places))

    def take(self, states: Tensor, anchor: int, start: int, slots: int) -> None:
        """Set this round's inputs: newly committed ``states`` from position ``start`` on, the root's token, and the number of
        slots."""
        self.trail, self.deepest = [], slots
        self._round = (states, to_device([anchor], self._device), start)

    def _block(self) -> tuple[Tensor, Tensor]:
        """Commit this round's states and fill the block. Returns the outputs [row, hidden] and the root's token [1]."""
        states, anchor, start = self._round
        end, rows = start + len(states), self._rows
        columns = torch.arange(end + rows, device=self._device)
        if len(states):
            self.commit(states, columns[start:end], start)
        masks = [self._network.visible(number, columns[end:], columns) for number in range(len(self.cache.layers))]
        return self._fill(anchor, columns[end:], masks, end), anchor

    def _fill(self, anchor: Tensor, places: Tensor, masks: Sequence[Tensor | None], start: int | Tensor) -> Tensor:
        """Return the outputs [row, hidden] of a block at ``places`` [row], written to the cache from column ``start`` on."""

        def attention(number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return attend(queries[0], *self.cache.layers[number].put(start, keys[0], values[0]), masks[number])[None]

        return self._network.fill(anchor, places[None], attention)[0]

    @property
    def _rows(self) -> int:
        return self.deepest if self._network.config.from_anchor else self.deepest + 1

    def first(self) -> Tensor:
        """Return raw logits [1, support] after the root; runs the block's pass."""
        outputs, anchor = self._block()
        outputs = outputs[self._rows - self.deepest :]
        return self._slot(outputs, self._network.logits(outputs), 0, anchor, self._network.state(anchor))

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return raw logits [row, support] after ``tokens`` [row]; ``parents`` [row] are rows of the level above."""
        above = self.trail[-1]
        return self._slot(above.outputs, above.marginals, above.number + 1, tokens, above.state[parents])

    def _slot(self, outputs: Tensor, marginals: Tensor, number: int, tokens: Tensor, state: Tensor) -> Tensor:
        network, own = self._network, outputs[number].expand(len(tokens), -1)
        rates = network.confidence(own, tokens).sigmoid() if network.config.confidence else None
        logits, state = network.correct(marginals[number].expand(len(tokens), -1), own, tokens, state)
        self._here = _Slot(outputs, marginals, number, logits, state, rates)
        return logits

    @property
    def logits(self) -> Tensor:
        """Logits [slot, support] of the block's marginals, once the block is filled."""
        return self.trail[0].marginals

    @property
    def conditional(self) -> list[Tensor]:
        """Logits [row, support] of the levels asked for so far."""
        return [slot.logits for slot in self.trail]

    @property
    def rates(self) -> list[Tensor]:
        """Predicted acceptance rates [row] of the levels asked for so far; empty without a confidence head."""
        return [slot.rates for slot in self.trail if slot.rates is not None]

    def marginals(self) -> Tensor:
        """Return raw logits [slot, support] of the block, the first slot corrected by the root."""
        first = self.ask()
        return torch.cat((first, self.logits[1:])) if self._network.corrects else self.logits


class FixedFill(FillLevels):
    """Variant of :class:`FillLevels` for CUDA graphs, with the same shapes and addresses in each round.

    Padding rows write where the block's rows or later rounds write again; a mask hides the columns after the block.
    """

    def __init__(self, network: FillRuntime, columns: int) -> None:
        super().__init__(network, columns)
        self.hold(network, columns)
        self._inputs: Tensor
        """The root's token, the first position, and the number of valid rows."""
        self._states: Tensor

    def take(self, states: Tensor, anchor: int, start: int, slots: int) -> None:
        rows = max(LEAST, padded_width(max(1, len(states))))
        self._shape, self.trail, self.deepest = (rows, slots), [], slots
        self._inputs = self.numbers([anchor, start, len(states)])
        self._states = self.padded("states", states, rows)

    def _block(self) -> tuple[Tensor, Tensor]:
        anchor, start, count = self._inputs.split(1)
        context = start + self._column[: len(self._states)]
        self.commit(self._states, context, context)
        places = start + count + self._column[: self._rows]
        valid = (self._column < start + count + self._rows).expand(self._rows, -1)
        seen = (self._network.visible(number, places, self._column) for number in range(len(self.cache.layers)))
        masks = [valid if one is None else one & valid for one in seen]
        return self._fill(anchor, places, masks, places), anchor


class FillDrafter(LevelsDrafter[FillLevels]):
    """Drafter of blocks of up to ``slots`` tokens, by default as many as the network was trained for."""

    eager, captured = FillLevels, FixedFill

    def __init__(self, network: FillRuntime, slots: int = 0, fixed: bool | None = None) -> None:
        super().__init__(network, fixed)
        self.slots, self.taps = min(slots or network.config.slots, network.config.slots), network.config.taps

    def _restart(self) -> None:
        super()._restart()
        self._waiting: list[Tensor] = []
        """The target's hidden states [row, tap * hidden] of the tokens from ``_committed`` on."""
        self.last: FillLevels | None = None
        """Levels of the current round; None if no drafted token fits."""

    @torch.inference_mode()
    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._open(context)
        if prefill is not None:
            self._waiting = [self._states(prefill)]
            self._commit(0)

    @torch.inference_mode()
    def observe(self, finished: Round) -> None:
        path = to_device([0, *finished.verdict.path][: len(finished.emitted)], finished.context.device)
        self._waiting.append(self._states(finished.target, path))

    def _commit(self, most: int) -> Tensor:
        """Append keys and values of all waiting tokens but the last ``most``. Returns the states of these last ones."""
        width = len(self.taps) * self.network.config.target_hidden
        states = torch.cat(self._waiting) if self._waiting else self.network.embedding.new_empty(0, width)
        self._waiting = []
        for first, last in chunks(max(0, len(states) - most), PIECE):
            start, end = self._committed, self._committed + last - first
            self._room(end).commit(states[first:last], torch.arange(start, end, device=states.device), start)
            self._committed = end
        return states[max(0, len(states) - most) :]

    @torch.inference_mode()
    def levels(self, context: Context) -> FillLevels | None:
        """Return this round's levels, or None if no drafted token fits. Near the end of the context, a block is shorter."""
        slots = min(self.slots, context.max_depth - 1)
        self.last = None
        if slots < 1:
            return None
        states = self._commit(TOGETHER)
        assert self._committed + len(states) == context.position, "every token before the root has the target's hidden states"
        self.last = self._room(context.position + slots + 1)
        self.last.take(states, context.ids[-1], self._committed, slots)
        self._committed = context.position
        self._calls += 1
        return self.last

    def confidence(self) -> Sequence[float]:
        """Return the predicted acceptance rates of a chain's levels so far; empty without a confidence head."""
        rates = [] if self.last is None else self.last.rates
        return torch.cat(rates).tolist() if rates else []
