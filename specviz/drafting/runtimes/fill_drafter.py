"""Drafter that fills a block after the root in one pass (DFlash, DSpark): one forward yields all levels of a tree.

The committed text is stored as keys and values of the target's hidden states; those of a block's rows are overwritten in the next
round. With the root at position P, hidden states are cached up to P - 1, and the block's rows stand at P, P + 1, …
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.drafting.networks.attention import KeyValues, attend
from specviz.drafting.networks.block_fill import FillRuntime
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Round, TargetPass
from specviz.engine.stop import chunks
from specviz.engine.to_device import to_device

PIECE = 512
"""Number of prompt tokens whose keys and values are computed at once."""


class FillLevels(Levels):
    """One block, slot by slot: the same marginal for all rows of a level, corrected by the token above each if the network has
    such a head.

    ``conditional`` collects, by level, the logits [row, support]; ``confidence`` the predicted acceptance rates [row], known
    before the level's tokens are chosen.
    """

    def __init__(self, network: FillRuntime, outputs: Tensor, anchor: Tensor) -> None:
        """``outputs`` [slot, hidden] are those of the predicting rows, ``anchor`` [1] is the root's token."""
        self._network, self._outputs, self._anchor = network, outputs, anchor
        self.logits = network.logits(outputs)
        """Logits [slot, support] of the marginals."""
        self.deepest = len(outputs)
        self.conditional: list[Tensor] = []
        self.confidence: list[Tensor] = []
        self._state = network.state(anchor)

    def first(self) -> Tensor:
        """Return raw logits [1, support] after the root."""
        return self._ask(0, self._anchor, self._state)

    def marginals(self) -> Tensor:
        """Return raw logits [slot, support] of the block, the first corrected by the root."""
        return torch.cat((self.first(), self.logits[1:])) if self._network.corrects else self.logits

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return raw logits [row, support] after ``tokens`` [row], whose parents are these rows of the level above."""
        return self._ask(self._depth + 1, tokens, self._state[parents])

    def _ask(self, depth: int, tokens: Tensor, state: Tensor) -> Tensor:
        rows, self._depth = len(tokens), depth
        outputs = self._outputs[depth].expand(rows, -1)
        if self._network.config.confidence:
            self.confidence.append(self._network.confidence(outputs, tokens).sigmoid())
        logits, self._state = self._network.correct(self.logits[depth].expand(rows, -1), outputs, tokens, state)
        self.conditional.append(logits)
        return logits


class FillDrafter(NullDrafter):
    """Drafter of blocks of up to ``slots`` tokens, by default as many as the network was trained for."""

    def __init__(self, network: FillRuntime, slots: int = 0) -> None:
        self.network, self.slots = network, min(slots or network.config.slots, network.config.slots)
        self.support: Tensor | None = network.draft_ids
        self.taps = network.config.taps
        self.last: FillLevels | None = None
        """Levels of the current round."""
        self._restart(1)

    def _restart(self, capacity: int) -> None:
        config = self.network.config
        like = self.network.embedding
        self._cache = [KeyValues(config.kv_heads, config.head_size, capacity, like) for _ in range(config.layers)]
        self._waiting: list[Tensor] = []
        """The target's hidden states [row, tap * hidden] of the tokens from ``_committed`` on."""
        self._committed, self._calls, self.last = 0, 0, None

    @torch.inference_mode()
    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._restart(len(context.ids) + 256)
        if prefill is not None:
            self._waiting = [torch.cat([prefill.hidden[tap] for tap in self.taps], dim=-1)]
            self._commit()

    @torch.inference_mode()
    def observe(self, finished: Round) -> None:
        path = to_device([0, *finished.verdict.path][: len(finished.emitted)], finished.context.device)
        self._waiting.append(torch.cat([finished.target.hidden[tap][path] for tap in self.taps], dim=-1))

    def close(self) -> None:
        self._restart(1)

    def _commit(self) -> None:
        """Append the waiting tokens' keys and values."""
        states = torch.cat(self._waiting) if self._waiting else self.network.embedding[:0]
        self._waiting = []
        for first, last in chunks(len(states), PIECE):
            start, end = self._committed, self._committed + last - first
            self.network.reach(end)
            fused, places = self.network.fuse(states[first:last]), torch.arange(start, end, device=states.device)
            for number, cache in enumerate(self._cache):
                cache.reserve(end)
                cache.put(start, *self.network.keys_values(number, fused, places))
            self._committed = end

    @torch.inference_mode()
    def levels(self, context: Context) -> FillLevels | None:
        """Return this round's levels; None without room for a drafted token. Near the end of the context a block is shorter."""
        network, slots = self.network, min(self.slots, context.max_depth - 1)
        self.last = None
        if slots < 1:
            return None
        self._commit()
        start, device = context.position, self.network.embedding.device
        assert self._committed == start, "every token before the root has the target's hidden states"
        rows = slots if network.config.from_anchor else slots + 1
        network.reach(start + rows)
        for cache in self._cache:
            cache.reserve(start + rows)
        places, columns = torch.arange(start, start + rows, device=device), torch.arange(start + rows, device=device)
        masks = [network.visible(number, places, columns) for number in range(len(self._cache))]

        def attention(number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return attend(queries[0], *self._cache[number].put(start, keys[0], values[0]), masks[number])[None]

        anchor = to_device([context.ids[-1]], device)
        outputs = network.fill(anchor, places[None], attention)[0]
        self._calls += 1
        self.last = FillLevels(network, outputs[rows - slots :], anchor)
        return self.last

    def marginals(self, context: Context) -> Tensor | None:
        """Return logits [depth, support] of the block; None without room."""
        levels = self.levels(context)
        return None if levels is None else levels.marginals()

    def confidence(self) -> Sequence[float]:
        """Return the predicted acceptance rate of each level asked for so far in a chain, empty without such a head."""
        asked = [] if self.last is None else self.last.confidence
        return torch.cat(asked).tolist() if asked else []
