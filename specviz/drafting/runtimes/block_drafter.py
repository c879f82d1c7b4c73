"""Block drafter: one forward of a semi-autoregressive network gives the distributions of a tree's next k levels.

The committed text is stored as keys, values and a recurrent state, computed only from the target's features. Entries computed
from the network's own features are dropped after the round. A *seed* is a node whose depth is a multiple of k and whose block
was computed; the root is the first seed. See :mod:`specviz.drafting.networks.block_net` for the alignment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.networks.block_net import BlockNet, State
from specviz.drafting.networks.decoder_layer import KeyValues
from specviz.drafting.runtimes.feature_levels import PIECE, CapturedLevels, LevelsDrafter
from specviz.engine.interfaces import Context, Round, TargetPass
from specviz.engine.stop import chunks
from specviz.engine.to_device import to_device


@dataclass(frozen=True)
class _Seeds:
    """A level of the tree.

    ``seeds`` [row]: seed of each row. ``chains`` [row, token]: tokens from the seed down to the row. Of the seeds' block:
    recurrent ``state`` [layer, seed, width], ``features`` [seed, k, hidden] and ``logits`` [seed, k, support]. ``seen``, bool
    [seed, block]: drafted blocks that a seed attends to. ``recent`` [k, hidden]: last committed inputs of the decoder layer.
    """

    seeds: Tensor
    chains: Tensor
    state: State
    features: Tensor
    logits: Tensor
    seen: Tensor
    recent: Tensor
    drafted: int
    depth: int


class BlockLevels(CapturedLevels[_Seeds]):
    """Cache and rounds of one run, level by level, with tokens on the device: one forward per block."""

    def __init__(self, network: BlockNet, columns: int) -> None:
        super().__init__(network.embedding.device)
        config = network.config
        self.columns = columns
        self.cache: KeyValues = KeyValues(config.kv_heads, config.head_size, columns, network.embedding)
        self._network = network

    @property
    def forwards(self) -> int:
        """Number of blocks computed in this round."""
        return 1 + (self.trail[-1].depth // self._network.block if self.trail else 0)

    def commit(self, tokens: Tensor, features: Tensor, start: Any, state: State) -> tuple[Tensor, State]:
        """Append inputs: ``tokens`` [input] and ``features`` [input, hidden], from column ``start`` on.

        Returns the decoder layer's inputs [input, hidden] and the recurrent state after them.
        """
        network = self._network
        x, state = network.recur(network.inputs(tokens[None], features[None]), state)
        _, key, value = network.layer.project(x, network.turns(self._places(start, len(tokens))))
        self._put(start, key, value)
        return x[0], state

    def take(self, tokens: Tensor, features: Tensor, start: Any, state: State, recent: Tensor) -> None:
        """Set this round's committed inputs, as for :meth:`commit`, and the layer's last inputs ``recent`` before them."""
        self.trail = []
        self._round = tokens, features, start, state, recent

    def first(self) -> Tensor:
        """Return raw logits [1, support] after the root."""
        network, (tokens, features, start, state, recent) = self._network, self._round
        if len(tokens):
            x, state = self.commit(tokens, features, start, state)
            recent = torch.cat((recent, x))[-network.block :]
        end = start + len(tokens)
        query, _, _ = network.layer.project(recent[None], network.turns(self._places(end - network.block, network.block)))
        found = network.layer.finish(recent[None], query, *self._committed_columns(end))
        none = torch.zeros(1, dtype=torch.long, device=self._device)
        seen = torch.ones(1, 0, dtype=torch.bool, device=self._device)
        logits = network.logits(found)
        self._here = _Seeds(none, none.new_zeros(1, 0), state, found, logits, seen, recent, 0, 0)
        return logits[:, 0]

    def marginals(self) -> Tensor:
        """Return raw logits [depth, support] of the root's block."""
        self.ask()
        return self.trail[0].logits[0]

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return raw logits [row, support] after ``tokens`` [row]; ``parents`` [row] are rows of the level above."""
        above, k = self.trail[-1], self._network.block
        seeds, chains = above.seeds[parents], torch.cat((above.chains[parents], tokens[:, None]), dim=1)
        here = replace(above, seeds=seeds, chains=chains, depth=above.depth + 1)
        self._here = here if here.depth % k else self._next_block(here)
        return self._here.logits[self._here.seeds, here.depth % k]

    def _next_block(self, here: _Seeds) -> _Seeds:
        """Return the level with its rows as the seeds of the next block."""
        network, rows, k, device = self._network, len(here.chains), self._network.block, self._device
        state = (here.state[0][:, here.seeds], here.state[1][:, here.seeds])
        x, state = network.recur(network.inputs(here.chains, here.features[here.seeds]), state)
        wide = x.reshape(1, rows * k, -1)
        end = self._round[2] + len(self._round[0])
        query, key, value = network.layer.project(wide, network.turns(self._places(end + here.depth - k, k).repeat(rows)))
        seen = torch.cat((here.seen[here.seeds], torch.eye(rows, dtype=torch.bool, device=device)), dim=1)
        own = seen[:, None, :, None].expand(-1, k, -1, k).reshape(rows * k, -1)
        visible = (*self._put(end + here.drafted, key, value), self._mask(end, own))
        features = network.layer.finish(wide, query, *visible).view(rows, k, -1)
        return replace(
            here, seeds=torch.arange(rows, device=device), chains=here.chains[:, :0], state=state, features=features,
            logits=network.logits(features), seen=seen, drafted=here.drafted + rows * k,
        )  # fmt: skip

    def _places(self, start: int | Tensor, count: int) -> Tensor:
        return torch.arange(int(start), int(start) + count, device=self._device)

    def _put(self, start: int | Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [1, kv, row, size] from column ``start`` on. Returns the columns up to the last written."""
        columns = self._places(start, key.shape[2]) if isinstance(start, Tensor) else start
        keys, values = self.cache.put(columns, key[0].transpose(0, 1), value[0].transpose(0, 1))
        return keys[None], values[None]

    def _committed_columns(self, end: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the committed keys and values, and a mask for columns that are not committed, if any."""
        keys, values = self.cache.both
        return keys[None, :, :end], values[None, :, :end], None

    def _mask(self, end: Any, own: Tensor) -> Tensor:
        """Return the mask [row, column] of a block's rows. ``own``: that of the drafted columns, [row, drafted column]."""
        return torch.cat((own.new_ones(len(own), end), own), dim=1)


class FixedBlocks(BlockLevels):
    """Variant of :class:`BlockLevels` for CUDA graphs.

    Shapes and addresses are the same in all rounds with the same number of committed inputs; a mask hides the columns after the
    block.
    """

    def __init__(self, network: BlockNet, columns: int) -> None:
        super().__init__(network, columns)
        self.hold(network, columns)

    def take(self, tokens: Tensor, features: Tensor, start: Any, state: State, recent: Tensor) -> None:
        begin = self.given("start", to_device([start], self._device))
        state = (self.given("hidden", state[0]), self.given("cell", state[1]))
        super().take(self.given("tokens", tokens), self.given("features", features), begin, state, self.given("recent", recent))
        self._shape = len(tokens)

    def _places(self, start: int | Tensor, count: int) -> Tensor:
        return start + self._column[:count]

    def _committed_columns(self, end: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        keys, values = self.cache.both
        return keys[None], values[None], (self._column < end)[None]

    def _mask(self, end: Any, own: Tensor) -> Tensor:
        mask = (self._column < end).repeat(len(own), 1)
        return mask.scatter_(1, self._places(end, own.shape[1]).expand(len(own), -1), own)


class BlockDrafter(LevelsDrafter[BlockLevels]):
    """Drafter with a block network, which reads the target's hidden state ``network.config.tap``."""

    eager, captured = BlockLevels, FixedBlocks

    def _restart(self) -> None:
        super()._restart()
        self._tap = self.network.config.tap
        self._waiting: list[tuple[list[int], Tensor]] = []
        """Inputs that no pass has read: tokens, and the target's features of the tokens before them."""
        self._counted = 0
        self._drafting: BlockLevels | None = None
        """This round's levels, which read the waiting inputs with the first level."""
        self._state = self.network.zero()
        self._recent = self.network.embedding.new_empty(0, self.network.config.hidden)

    @torch.inference_mode()
    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._open(context)
        if prefill is not None:
            for start, end in chunks(len(context.ids) - 1, PIECE):
                tokens = to_device(context.ids[start + 1 : end + 1], self._recent.device)
                self._commit(tokens, prefill.hidden[self._tap][start:end])

    @torch.inference_mode()
    def observe(self, finished: Round) -> None:
        self._finish_round()
        path = [0, *finished.verdict.path][: len(finished.emitted)]
        features = finished.target.hidden[self._tap]
        self._waiting.append((list(finished.emitted), features.index_select(0, to_device(path, features.device))))

    def _commit(self, tokens: Tensor, features: Tensor) -> None:
        """Append inputs to the committed text: ``features`` [input, hidden], and the ``tokens`` [input] after them."""
        levels = self._room(self._committed + len(tokens))
        x, self._state = BlockLevels.commit(levels, tokens, features, self._committed, self._state)
        self._committed += len(tokens)
        self._recent = torch.cat((self._recent, x))[-self.network.block :]

    def _finish_round(self) -> None:
        """Adopt the state and inputs that the round's first level committed."""
        if self._drafting is not None and self._drafting.trail:
            first = self._drafting.trail[0]
            self._state, self._recent = first.state, first.recent
            self._committed += sum(len(tokens) for tokens, _ in self._waiting)
            self._waiting = []
        self._drafting, self._counted = None, 0

    @torch.inference_mode()
    def levels(self, context: Context) -> BlockLevels | None:
        """Return this round's levels, from the root down; None while fewer inputs than a block are committed."""
        self._finish_round()
        tokens = to_device([token for some, _ in self._waiting for token in some], self._recent.device)
        features = torch.cat([self._recent[:0], *(rows.to(self._recent) for _, rows in self._waiting)])
        if len(self._recent) < self.network.block:
            if len(tokens):
                self._commit(tokens, features)
            self._waiting, tokens, features = [], tokens[:0], features[:0]
            if len(self._recent) < self.network.block:
                return None
        self._drafting = self._room(self._committed + len(tokens))
        self._drafting.take(tokens, features, self._committed, self._state, self._recent)
        return self._drafting

    def calls(self) -> int:
        """Return the number of forwards since the last call."""
        made = self._drafting.forwards if self._drafting is not None else 0
        self._counted, made = made, made - self._counted
        return made
