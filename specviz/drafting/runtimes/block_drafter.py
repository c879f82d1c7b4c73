"""Block drafter: one forward of a semi-autoregressive network gives the distributions of a tree's next k levels.

The committed text is stored as keys, values and one recurrent state, computed from the target's true features alone. Everything
computed from the network's own features is dropped after the round. A *seed* is a node whose depth is a multiple of k and whose
block was computed; the root is the first seed. See :mod:`specviz.drafting.networks.block_net` for the alignment.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.drafting.networks.block_net import BlockNet, State
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Pick, Round, TargetPass
from specviz.engine.stop import chunks
from specviz.engine.to_device import to_device
from specviz.trace.schema import Note

PIECE = 512
"""Number of prompt inputs per pass."""


class Memory:
    """Keys and values [kv head, position, size]: committed ones, then those of the growing tree."""

    def __init__(self, network: BlockNet, capacity: int) -> None:
        config = network.config
        self._both = network.embedding.new_empty(2, config.kv_heads, max(1, capacity), config.head_size)
        self.length = 0
        self.filled = 0

    def put(self, key: Tensor, value: Tensor, committed: bool) -> None:
        """Append keys and values [1, kv head, position, size]; committed ones overwrite any tree."""
        start = self.length if committed else self.filled
        end = start + key.shape[2]
        if end > self._both.shape[2]:
            larger = self._both.new_empty(*self._both.shape[:2], 2 * end, self._both.shape[3])
            larger[:, :, :start] = self._both[:, :, :start]
            self._both = larger
        self._both[0, :, start:end] = key[0]
        self._both[1, :, start:end] = value[0]
        self.filled = end
        if committed:
            self.length = end

    def all(self) -> tuple[Tensor, Tensor]:
        """Return keys and values [1, kv head, position, size] of committed text and tree."""
        return self._both[0, None, :, : self.filled], self._both[1, None, :, : self.filled]


class BlockLevels(Levels):
    """One round of a block drafter, level by level, with tokens on the device: one forward per block."""

    def __init__(self, network: BlockNet, memory: Memory, state: State, features: Tensor) -> None:
        """``features`` [1, k, hidden] follow the committed text; ``state`` and ``memory`` are those of that text."""
        self.calls = 1
        self._network, self._memory = network, memory
        self._state, self._features = state, features
        self._logits = network.logits(features)
        """Logits [seed, k, support] below this block's seeds."""
        self._seen = torch.ones(1, 0, dtype=torch.bool, device=features.device)
        """Blocks that each seed sees, bool [seed, block], the root's block excluded."""
        self._seeds = torch.zeros(1, dtype=torch.long, device=features.device)
        """Each row's seed [row]; ``_chains`` holds the tokens from the seed down to the row [row, token]."""
        self._chains = self._seeds.new_zeros(1, 0)
        self._depth = 0

    def first(self) -> Tensor:
        """Return raw logits [1, support] after the root."""
        return self._logits[:, 0]

    def marginals(self) -> Tensor:
        """Return raw logits [depth, support] of the root's block, before :meth:`below`."""
        return self._logits[0]

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return raw logits [row, support] after ``tokens`` [row], whose parents are these rows of the level above."""
        self._depth += 1
        self._seeds = self._seeds[parents]
        self._chains = torch.cat((self._chains[parents], tokens[:, None]), dim=1)
        if not self._depth % self._network.block:
            self._begin()
        return self._logits[self._seeds, self._depth % self._network.block]

    def _begin(self) -> None:
        """Make this level's rows the seeds of the next block."""
        network, rows, block, device = self._network, len(self._chains), self._network.block, self._chains.device
        state = (self._state[0][:, self._seeds], self._state[1][:, self._seeds])
        x, self._state = network.recur(network.inputs(self._chains, self._features[self._seeds]), state)
        wide = x.reshape(1, rows * block, -1)
        start = self._memory.length + self._depth - block
        network.reach(start + block)
        places = torch.arange(start, start + block, device=device).repeat(rows)
        query, key, value = network.layer.project(wide, network.turns(places))
        self._memory.put(key, value, committed=False)
        self._seen = torch.cat((self._seen[self._seeds], torch.eye(rows, dtype=torch.bool, device=device)), dim=1)
        mask = self._seen[:, None, :, None].expand(-1, block, -1, block).reshape(rows * block, -1)
        mask = torch.cat((mask.new_ones(len(mask), self._memory.length), mask), dim=1)
        self._features = network.layer.finish(wide, query, *self._memory.all(), mask).view(rows, block, -1)
        self._logits = network.logits(self._features)
        self._seeds, self._chains = torch.arange(rows, device=device), self._chains[:, :0]
        self.calls += 1


class BlockDrafter(NullDrafter):
    """Drafter with ``network``, from the target's hidden state ``network.config.tap``."""

    def __init__(self, network: BlockNet) -> None:
        self.network = network
        self.support: Tensor | None = network.draft_ids
        self._tap = network.config.tap
        self._restart(1)

    def _restart(self, capacity: int) -> None:
        self._waiting: list[tuple[list[int], Tensor]] = []
        self._memory = Memory(self.network, capacity)
        self._state = self.network.zero()
        self._recent = self.network.embedding.new_empty(0, self.network.config.hidden)
        self._levels: BlockLevels | None = None

    @torch.inference_mode()
    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._restart(len(context.ids) + 256)
        if prefill is not None:
            for start, end in chunks(len(context.ids) - 1, PIECE):
                self._commit(list(context.ids[start + 1 : end + 1]), prefill.hidden[self._tap][start:end])

    @torch.inference_mode()
    def observe(self, finished: Round) -> None:
        path = [0, *finished.verdict.path][: len(finished.emitted)]
        features = finished.target.hidden[self._tap]
        self._waiting.append((list(finished.emitted), features.index_select(0, to_device(path, features.device))))

    def close(self) -> None:
        self._restart(1)

    def _commit(self, tokens: list[int], features: Tensor) -> None:
        """Append inputs to the committed text: the target's ``features`` [input, hidden] and the tokens after them."""
        network, start = self.network, self._memory.length
        inputs = network.inputs(to_device([tokens], features.device), features[None])
        x, self._state = network.recur(inputs, self._state)
        network.reach(start + len(tokens))
        places = torch.arange(start, start + len(tokens), device=features.device)
        _, key, value = network.layer.project(x, network.turns(places))
        self._memory.put(key, value, committed=True)
        self._recent = torch.cat((self._recent, x[0]))[-network.block :]

    @torch.inference_mode()
    def levels(self, context: Context) -> BlockLevels | None:
        """Return this round's levels, from the root down; None while fewer inputs than a block are committed."""
        for tokens, features in self._waiting:
            self._commit(tokens, features)
        self._waiting, self._levels, network, length = [], None, self.network, self._memory.length
        self._memory.filled = length  # drops the last round's tree
        if length >= network.block:
            places = torch.arange(length - network.block, length, device=self._recent.device)
            x = self._recent[None]
            query, _, _ = network.layer.project(x, network.turns(places))
            features = network.layer.finish(x, query, *self._memory.all(), None)
            self._levels = BlockLevels(network, self._memory, self._state, features)
        return self._levels

    def marginals(self, context: Context) -> Tensor | None:
        """Return logits [depth, support] of the root's block; None while fewer inputs than a block are committed."""
        levels = self.levels(context)
        return None if levels is None else levels.marginals()

    def calls(self) -> int:
        """Return the number of forwards since the last call."""
        if self._levels is None:
            return 0
        count, self._levels.calls = self._levels.calls, 0
        return count

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return ()
