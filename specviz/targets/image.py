"""Autoregressive image target: a transformer over image codes (Janus, Anole, LlamaGen) with classifier-free guidance.

Token ids of a run: image codes from 0 to ``codes`` - 1, then the prompt's tokens. Logits cover only codes, [node, code], so a
prompt token is never drawn.

With guidance s, a pass has two rows that share one draft tree, one with the prompt (c) and one with an empty prompt (u). Logits
are u + s (c - u), and both rows keep the same path. A shorter empty prompt is padded in front (-1): no other token attends to the
padding, and the row's positions start after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.engine.attention import additive
from specviz.engine.cache import CACHE_ARGUMENT
from specviz.engine.interfaces import TargetPass
from specviz.engine.tiers import GraphRunner, Outputs, PooledCache, choose_tier, tree_attention_mask
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree
from specviz.errors import ContextFull, ModelUnavailable
from specviz.targets.layers import changing_factors
from specviz.targets.text import CachedSession, rope_obstacle


class ImageTarget:
    """Target around a loaded model for one prompt.

    ``table`` [id, hidden]: embeddings of codes, then of prompt tokens. ``unconditional``: the empty prompt, padded to the
    prompt's length. ``guidance``: 1 needs no second row. ``stack``: the model's layers, called with embeddings. ``head``:
    function from hidden states to logits [.., code]. ``opening`` [row, place, hidden]: embeddings that replace those of the
    prompt's tokens. ``unseen``: number of first positions that attend only to themselves and that no other position attends to.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        table: Tensor,
        codes: int,
        unconditional: Sequence[int],
        cells: int,
        guidance: float,
        tier: str,
        stack: Any,
        head: Callable[[Tensor], Tensor],
        opening: Tensor | None = None,
        unseen: int = 0,
    ) -> None:
        self.model, self.name, self.table, self.stack, self.head = model, name, table, stack, head
        self.padding = 0 if guidance == 1.0 else sum(token < 0 for token in unconditional)
        self.vocab_size, self.unconditional = codes, tuple(unconditional)
        self.guidance, self.rows = guidance, 1 if guidance == 1.0 else 2
        self.opening, self.unseen = None if opening is None else opening[: self.rows], unseen
        self.eos_ids: frozenset[int] = frozenset()
        self.context_length, self.boundary = len(self.unconditional) + cells, 0
        self.config = model.config.get_text_config()
        if reason := changing_factors(self.config):
            raise ModelUnavailable(f"{name} {reason}.")
        most = int(self.config.max_position_embeddings)
        if self.context_length > most:
            raise ModelUnavailable(
                f"The context of {name} holds {most} tokens, but prompt and picture take {self.context_length}."
            )
        self.layers = int(self.config.num_hidden_layers)
        self.device, self.dtype = table.device, table.dtype
        self.attention = str(self.config._attn_implementation or "sdpa")
        # Caches of one row and of two rows have different shapes.
        self.alike = (("rows", self.rows),) * self.layers
        self.tier, self.warning = choose_tier(tier, self.device, rope_obstacle(self.config))

    def open(self, capacity: int, taps: Sequence[int] = ()) -> ImageSession:
        """Open a fresh session with room for ``capacity`` committed tokens and a tree. Raises ContextFull if it does not fit."""
        if capacity > self.context_length:
            raise ContextFull(f"{capacity} tokens do not fit the {self.context_length} of {self.name}'s picture.")
        return ImageSession(self, capacity, tuple(taps))

    @property
    def hides_positions(self) -> bool:
        """Whether some positions of the prompt are hidden from later ones."""
        return self.padding > 0 or self.unseen > 0

    def mask(self, mask: Tensor, places: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Convert a bool mask [node, kv] of nodes at ``places`` [node] to the attention's form, [1 or row, 1, node, kv].

        The mask is additive for the eager kernel. ``hidden``: the target's (padding, unseen) as int64 [2], for graphs that must
        not freeze these numbers.
        """
        padding, unseen = (self.padding, self.unseen) if hidden is None else (hidden[0], hidden[1])
        if self.unseen:
            seen = torch.arange(mask.shape[1], device=mask.device)[None]
            mask = mask & ((seen >= unseen) | (seen == places[:, None]))
        rows = mask[None, None]
        if self.padding:
            column = torch.arange(mask.shape[1], device=mask.device)
            # Padding attends to itself, because a softmax over an empty row is NaN.
            second = mask & (column >= padding)[None] | (column[None] == places[:, None]) & (places < padding)[:, None]
            rows = torch.stack((mask, second))[:, None]
        return additive(rows, self.dtype) if self.attention == "eager" else rows

    def positions(self, places: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return the positions [1 or row, node] of nodes at ``places`` [node]; ``hidden`` is as for :meth:`mask`."""
        padding = self.padding if hidden is None else hidden[0]
        return torch.stack((places, (places - padding).clamp_min(0))) if self.padding else places[None]

    def embedded(self, ids: Tensor, start: int) -> Tensor:
        """Return embeddings [row, node, hidden] of ``ids`` [node], the first at position ``start``.

        The second row has the empty prompt in place of the prompt.
        """
        if self.opening is not None and start < self.opening.shape[1]:
            opening = self.opening[:, start : start + len(ids)]
            behind = ids[opening.shape[1] :]
            return torch.cat((opening, self.table[behind].expand(self.rows, -1, -1)), dim=1)
        if self.rows == 1:
            return self.table[ids][None]
        other = ids
        if start < len(self.unconditional):
            unconditional = [max(0, token) for token in self.unconditional[start : start + len(ids)]]
            other = torch.cat((to_device(unconditional, ids.device), ids[len(unconditional) :]))
        return self.table[torch.stack((ids, other))]

    @torch.inference_mode()
    def run(
        self, embedded: Tensor, positions: Tensor, mask: Tensor | None, cache: Any, taps: Sequence[int], last: int = 0
    ) -> Outputs:
        """Run one pass. Returns guided logits [node, code] (only of the ``last`` rows, if set) and the taps' hidden states.

        Hidden states are [node, row * hidden], the two rows side by side.
        """
        early = [tap for tap in taps if tap != self.layers]
        output = self.stack(
            inputs_embeds=embedded,
            position_ids=positions,
            attention_mask=mask,
            **{CACHE_ARGUMENT: cache},
            use_cache=True,
            **({"output_hidden_states": True} if early else {}),
        )
        states = {tap: output.last_hidden_state if tap == self.layers else output.hidden_states[tap] for tap in taps}
        logits = self.head(output.last_hidden_state[:, -last:])
        if self.rows == 2:
            logits = logits[1:] + self.guidance * (logits[:1] - logits[1:])
        return logits[0], {tap: torch.cat(tuple(rows), dim=-1) for tap, rows in states.items()}


class ImageSession(CachedSession):
    """Session on an :class:`ImageTarget`."""

    target: ImageTarget

    def __init__(self, target: ImageTarget, capacity: int, taps: tuple[int, ...]) -> None:
        self.target = target
        super().__init__(capacity, taps)

    def _runner(self, pooled: PooledCache) -> GraphRunner:
        """Build the padded passes, with both rows and their guidance in one graph."""
        target, taps = self.target, self.taps

        def forward(tokens: Tensor, places: Tensor, mask: Tensor, hidden: Tensor) -> Outputs:
            positions, mask = target.positions(places, hidden), target.mask(mask, places, hidden)
            return target.run(target.table[tokens], positions, mask, pooled.cache.cache, taps)

        others = ([max(0, token) for token in target.unconditional],) if target.rows == 2 else ()
        variant = ("guidance", target.guidance, bool(target.padding), bool(target.unseen))
        return GraphRunner(forward, pooled, taps, target.device, variant, others, (target.padding, target.unseen))

    def captured(self, start: int) -> GraphRunner | None:
        """Return the graph runner for passes from position ``start`` on, if any.

        Tokens within ``opening`` run eagerly, as in a prefill.
        """
        opening = self.target.opening
        return None if opening is not None and start < opening.shape[1] else self.graph

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids`` to the cache. Returns logits of the last position, [1, code], and hidden states [position, row *
        hidden]."""
        target, start = self.target, self.length
        tokens = to_device(list(ids), target.device)
        places = torch.arange(start, start + len(ids), device=target.device)
        mask = None
        if start or target.hides_positions:
            mask = target.mask(torch.arange(start + len(ids), device=target.device)[None] <= places[:, None], places)
        embedded = target.embedded(tokens, start)
        logits, hidden = target.run(embedded, target.positions(places), mask, self._cache.cache, self.taps, last=1)
        self._cache.advance(len(ids))
        return TargetPass(logits, hidden)

    def _scored(self, tree: DraftTree) -> Outputs:
        target, nodes, start = self.target, len(tree), self.length
        if (graph := self.captured(start)) is not None:
            return graph(tree, start)
        self._reserve(start + nodes)
        places = to_device([start + depth for depth in tree.shape.depths], target.device)
        mask = None
        if nodes > 1 or target.hides_positions:
            mask = target.mask(tree_attention_mask(tree, start, start + nodes, nodes, target.device), places)
        embedded = target.embedded(tree.tokens, start)
        return target.run(embedded, target.positions(places), mask, self._cache.cache, self.taps)

    def _reserve(self, columns: int) -> None:
        """Reserve room for an eager pass. Graphs hold the cache's address and are dropped if the cache moves."""
        if self.graph is not None:
            self.graph.pooled.grow(columns)

    def rewrite(self, tokens: Tensor, nodes: Sequence[int]) -> TargetPass:
        """Run ``nodes`` (ascending) of the last scored chain again, with the chain's current ``tokens`` int64 [node].

        Each node attends to the chain up to itself and overwrites its own slot. Returns logits [node, code] of ``nodes``.
        """
        target, start = self.target, self.length
        first, end = nodes[0], start + len(tokens)
        places = to_device([start + node for node in nodes], target.device)
        self._reserve(end + len(nodes))
        embedded = target.embedded(tokens.index_select(0, places - start), start + first)
        # Entries are written after the chain and then moved to their slots.
        for layer in self._cache.layers:
            layer.length = end
        column = torch.arange(end, device=target.device)
        old = (column[None] <= places[:, None]) & ~torch.isin(column, places)[None]
        fresh = places[None] <= places[:, None]
        mask = target.mask(torch.cat((old, fresh), dim=1), places)
        outputs = target.run(embedded, target.positions(places), mask, self._cache.cache, ())
        self._cache.put(places, end)
        return TargetPass(*outputs)
