"""Block drafter: one forward of a semi-autoregressive network gives the distributions of a tree's next k levels.

The committed text lives as keys, values and one recurrent state, made from the target's true features alone; whatever was
drafted from the network's own features is thrown away with the round. A *seed* is a node whose depth is a multiple of k
and whose block was computed; the root is the first. See :mod:`specviz.drafting.networks.block_net` for which input is which.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.drafting.networks.block_net import BlockNet, State
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Pick, Proposal, Round, TargetPass
from specviz.engine.stop import chunks
from specviz.engine.to_device import to_device
from specviz.trace.schema import Note

PIECE = 512
"""Inputs of a prompt that are taken in at once."""


class Memory:
    """Keys and values [kv head, position, size]: the committed ones, then those of the tree that is growing."""

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

    def clear_tree(self) -> None:
        """Forget what is not committed."""
        self.filled = self.length

    def all(self) -> tuple[Tensor, Tensor]:
        """Keys and values [1, kv head, position, size] of committed text and tree."""
        return self._both[0, None, :, : self.filled], self._both[1, None, :, : self.filled]


class Branches:
    """The seeds of one round, by slot: state after each, the k features that follow it, and whom it may look at."""

    def __init__(self, state: State, features: Tensor) -> None:
        self.slots = {0: 0}
        self.state = state
        self.features = features
        self._ancestry: list[list[bool]] = [[]]

    def add(self, seeds: Sequence[int], above: Sequence[int]) -> list[list[bool]]:
        """Give slots to ``seeds``, whose last seeds before them have slots ``above``; bool [seed, slot but the root's]."""
        every = len(self.slots) - 1 + len(seeds)
        for seed, slot in zip(seeds, above, strict=True):
            ancestry = self._ancestry[slot] + [False] * (every - len(self._ancestry[slot]))
            ancestry[len(self.slots) - 1] = True
            self.slots[seed] = len(self.slots)
            self._ancestry.append(ancestry)
        return self._ancestry[-len(seeds) :]

    def keep(self, state: State, features: Tensor) -> None:
        """State [layer, seed, width] and features [seed, k, hidden] of the seeds added last."""
        self.state = (torch.cat((self.state[0], state[0]), 1), torch.cat((self.state[1], state[1]), 1))
        self.features = torch.cat((self.features, features))


class BlockLevels(Levels):
    """One round of a block drafter, level by level, its tokens on the device: a forward where blocks begin."""

    def __init__(self, network: BlockNet, memory: Memory, state: State, features: Tensor) -> None:
        """``features`` [1, k, hidden] are those after the committed text, ``state`` and ``memory`` its own."""
        self.calls = 1
        self._network, self._memory = network, memory
        self._state, self._features = state, features
        self._logits = network.logits(features)
        """[seed, k, support] of the seeds of this block."""
        self._seen = torch.ones(1, 0, dtype=torch.bool, device=features.device)
        """[seed, slot but the root's]: whose blocks a seed looks at."""
        self._seeds = torch.zeros(1, dtype=torch.long, device=features.device)
        """Each row's seed [row], and the tokens from there down to it [row, token]."""
        self._chains = self._seeds.new_zeros(1, 0)
        self._depth = 0

    def first(self) -> Tensor:
        """Raw logits [1, support] after the root."""
        return self._logits[:, 0]

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Raw logits [row, support] after ``tokens`` [row], whose parents are these rows of the level above."""
        self._depth += 1
        self._seeds = self._seeds[parents]
        self._chains = torch.cat((self._chains[parents], tokens[:, None]), dim=1)
        if not self._depth % self._network.block:
            self._begin()
        return self._logits[self._seeds, self._depth % self._network.block]

    def _begin(self) -> None:
        """Make the rows of this level seeds."""
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
    """Asks ``network``, which wants the target's hidden state ``network.config.tap``."""

    def __init__(self, network: BlockNet) -> None:
        self.network = network
        self.block = network.block
        self.support: Tensor | None = network.draft_ids
        self._tap = network.config.tap
        self._waiting: list[tuple[list[int], Tensor]] = []
        self._memory = Memory(network, 1)
        self._state = network.zero()
        self._recent = network.embedding.new_empty(0, network.config.hidden)
        self._branches: Branches | None = None
        self._levels: BlockLevels | None = None
        self._block_logits: dict[int, Tensor] = {}
        self._calls = 0

    @torch.inference_mode()
    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._memory = Memory(self.network, len(context.ids) + 256)
        self._state = self.network.zero()
        self._recent = self._recent[:0]
        self._waiting, self._branches, self._levels, self._block_logits, self._calls = [], None, None, {}, 0
        if prefill is not None:
            for start, end in chunks(len(context.ids) - 1, PIECE):
                self._commit(list(context.ids[start + 1 : end + 1]), prefill.hidden[self._tap][start:end])

    @torch.inference_mode()
    def observe(self, finished: Round) -> None:
        path = [0, *finished.verdict.path][: len(finished.emitted)]
        features = finished.target.hidden[self._tap]
        self._waiting.append((list(finished.emitted), features.index_select(0, to_device(path, features.device))))

    def close(self) -> None:
        self._memory = Memory(self.network, 1)
        self._waiting, self._branches, self._levels, self._block_logits = [], None, None, {}

    def _commit(self, tokens: list[int], features: Tensor) -> None:
        """The next inputs of the committed text: the target's ``features`` [input, hidden] and the tokens after them."""
        network, start = self.network, self._memory.length
        inputs = network.inputs(to_device([tokens], features.device), features[None])
        x, self._state = network.recur(inputs, self._state)
        network.reach(start + len(tokens))
        places = torch.arange(start, start + len(tokens), device=features.device)
        _, key, value = network.layer.project(x, network.turns(places))
        self._memory.put(key, value, committed=True)
        self._recent = torch.cat((self._recent, x[0]))[-self.block :]

    @torch.inference_mode()
    def levels(self, context: Context) -> BlockLevels | None:
        """This round's levels, from the root down; None while less than a block is committed."""
        features = self._root()
        self._levels = None if features is None else BlockLevels(self.network, self._memory, self._state, features)
        return self._levels

    @torch.inference_mode()
    def blocks(self, context: Context, tokens: Sequence[int], parents: Sequence[int], seeds: Sequence[int]) -> Tensor | None:
        """Raw logits [seed, k, support] of the k levels below each of ``seeds``: one forward.

        The root is asked alone and first; any other seed lies k levels below one that was asked before. None while less
        than a block is committed.
        """
        self._calls += 1
        features = self._root() if list(seeds) == [0] else self._below(tokens, parents, seeds)
        if features is None:
            self._calls -= 1
            return None
        return self.network.logits(features)

    def _root(self) -> Tensor | None:
        """The features [1, k, hidden] after the committed text."""
        for tokens, features in self._waiting:
            self._commit(tokens, features)
        self._waiting, self._block_logits = [], {}
        self._memory.clear_tree()
        if self._memory.length < self.block:
            return None
        length = self._memory.length
        places = torch.arange(length - self.block, length, device=self._recent.device)
        x = self._recent[None]
        query, _, _ = self.network.layer.project(x, self.network.turns(places))
        features = self.network.layer.finish(x, query, *self._memory.all(), None)
        self._branches = Branches(self._state, features)
        return features

    def _below(self, tokens: Sequence[int], parents: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """The features [seed, k, hidden] after each of ``seeds``, read from the features drafted above it."""
        network, branches, block = self.network, self._branches, self.block
        assert branches is not None, "the root is asked first"
        chains = [_chain(parents, seed, block) for seed in seeds]
        above = [branches.slots[chain[0]] for chain in chains]
        chain_tokens = to_device([[tokens[node] for node in chain[1:]] for chain in chains], branches.features.device)
        slots = to_device(above, chain_tokens.device)
        state = (branches.state[0][:, slots], branches.state[1][:, slots])
        x, state = network.recur(network.inputs(chain_tokens, branches.features[slots]), state)
        rows = x.reshape(1, len(seeds) * block, -1)
        start = self._memory.length
        places = [start + _depth(parents, chain[0]) + place for chain in chains for place in range(block)]
        network.reach(max(places) + 1)
        query, key, value = network.layer.project(rows, network.turns(to_device(places, chain_tokens.device)))
        self._memory.put(key, value, committed=False)
        mask = self._mask(branches.add(seeds, above), chain_tokens.device)
        features = network.layer.finish(rows, query, *self._memory.all(), mask).view(len(seeds), block, -1)
        branches.keep(state, features)
        return features

    def _mask(self, ancestry: list[list[bool]], device: torch.device) -> Tensor:
        """Bool [row, kv]: every row sees the committed text, its own block and the blocks above it."""
        tree = to_device(ancestry, device, torch.bool)
        tree = tree.repeat_interleave(self.block, 0).repeat_interleave(self.block, 1)
        return torch.cat((tree.new_ones(len(tree), self._memory.length), tree), dim=1)

    def logits(self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor | None:
        """Raw logits [node, support] after each of ``nodes``, all of one depth: a forward where blocks begin, else what
        one gave. Inside a block that is the marginal distribution, the same under every node, whatever token stands there.
        """
        inside = _depth(parents, nodes[0]) % self.block
        if not inside:
            blocks = self.blocks(context, tokens, parents, nodes)
            if blocks is None:
                return None
            self._block_logits.update(zip(nodes, blocks, strict=True))
        return torch.stack([self._block_logits[_chain(parents, node, inside)[0]][inside] for node in nodes])

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        """The warped distribution after each of ``nodes``, all of one depth; the plain softmax at temperature 0."""
        logits = self.logits(context, tokens, parents, nodes)
        if logits is None:
            return [None] * len(nodes)
        return [Proposal(distribution, self.support) for distribution in context.warp.log_probabilities(logits).exp()]

    def calls(self) -> int:
        """Forwards since the last call of this."""
        count, self._calls = self._calls, 0
        if self._levels is not None:
            count, self._levels.calls = count + self._levels.calls, 0
        return count

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        """Nothing beyond what the tree builder can tell."""
        return ()


def _chain(parents: Sequence[int], node: int, steps: int) -> list[int]:
    """The nodes from ``steps`` above ``node`` down to it."""
    nodes = [node]
    for _ in range(steps):
        nodes.append(parents[nodes[-1]])
    return nodes[::-1]


def _depth(parents: Sequence[int], node: int) -> int:
    depth = 0
    while parents[node] >= 0:
        node, depth = parents[node], depth + 1
    return depth
