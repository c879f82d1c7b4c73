"""Target with recurrent layers, alone or among attention layers: trees in one pass, states by replay (STree).

A recurrence cannot be masked like attention, but the decay in Mamba-2 and in the gated delta rule is a scalar. A whole tree is
therefore one masked product (``engine.state_space``) or one masked triangular system (``targets.mixers``). A pass stores
activations, from which the accepted path is replayed in closed form to advance the carried state. Attention layers use the same
ancestor mask and a key-value cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.engine.attention import additive
from specviz.engine.cache import CACHE_ARGUMENT, KeyValues
from specviz.engine.interfaces import TargetPass
from specviz.engine.state_space import Activations, Carried, joined, stack_layers
from specviz.engine.stop import chunks
from specviz.engine.tiers import TREE_ROOM, choose_tier, tree_attention_mask
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, TreeShape, chain
from specviz.errors import ModelUnavailable
from specviz.targets.layers import changing_factors, devices_of
from specviz.targets.mixers import GatedDelta, Mamba2, Rule
from specviz.targets.state_layers import NAMES, Scale, anatomy, scale_of
from specviz.targets.text import LanguageTarget, TextTarget
from specviz.trace.notes.models import DecayHead, DecayMaskNote
from specviz.trace.schema import Note

CHUNK = 128
"""Tokens per prefill chunk; the masked product grows with the square of this number."""
REWIND = 64
"""Number of tokens that a session can rewind without prefilling again, after the first rewind."""
_SHOWN_HEADS = (("slow", 0.1), ("middle", 0.5), ("fast", 0.9))
"""Heads to show, as quantiles of decay speed from 0 (slowest)."""
_LARGEST_SHOWN = 96
"""Maximum number of nodes of a tree whose pass gets a note."""


class HybridTarget(LanguageTarget):
    """Target with recurrent layers."""

    def __init__(self, model: Any, name: str, eos_ids: Sequence[int], tier: str = "auto") -> None:
        super().__init__(model, name, eos_ids)
        self.wide = torch.promote_types(self.dtype, torch.float32)
        self.boundary = 0
        if reason := changing_factors(self.config):
            raise ModelUnavailable(f"{name} {reason}.")
        self.body = anatomy(model)
        if devices_of(model):
            raise ModelUnavailable(f"{name} has recurrent layers, whose states must be on one device; name one device.")
        modules = [block.mixer for block in self.body.blocks if block.mixer is not None]
        self.mixers = [(GatedDelta if hasattr(one, "head_k_dim") else Mamba2)(one, self.dtype) for one in modules]
        rules: list[Any] = [mixer.rule for mixer in self.mixers]  # of one kind
        self.together: Rule = rules[0].stacked(rules)
        self._norms = [
            (scale_of(block.norm), None if block.feed is None else scale_of(block.feed_norm)) for block in self.body.blocks
        ]
        self._last = scale_of(self.body.norm)
        self.attending = sum(block.attention is not None for block in self.body.blocks)
        self.tier, self.warning = choose_tier(tier, self.device, "its recurrent layers have no captured pass")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each layer: "state" or "attention"."""
        return tuple("attention" if block.mixer is None else "state" for block in self.body.blocks)

    def open(self, capacity: int, taps: Sequence[int] = ()) -> HybridSession:
        """Open a fresh session with room for ``capacity`` committed tokens. Raises ContextFull beyond the model's context."""
        self.refuse(capacity)
        return HybridSession(self, capacity, tuple(taps))

    def nothing(self) -> Carried:
        """Return the initial window and state, which are zero."""
        mixer, many = self.mixers[0], len(self.mixers)
        like = {"dtype": self.wide, "device": self.device}
        window = torch.zeros(many, self.together.taps - 1, mixer.channels, **like)
        return Carried(window, torch.zeros(many, *mixer.state, **like))

    @torch.inference_mode()
    def run(
        self, tokens: Tensor, shape: TreeShape, start: int, carried: Carried, cache: _AttentionPass, taps: Sequence[int]
    ) -> tuple[Tensor, Activations, dict[int, Tensor]]:
        """Run one pass over a tree after ``start`` tokens. Returns the head's input [node, hidden], activations and taps."""
        body = self.body
        x = body.embed(tokens)[None]
        x = x.to(self.wide) if body.wide else x
        turns = None
        if body.rotary is not None:
            turns = body.rotary(x, to_device([[start + depth for depth in shape.depths]], self.device))
        passed: list[Activations] = []
        tapped: dict[int, Tensor] = {}
        for number, (block, (norm, feed_norm)) in enumerate(zip(body.blocks, self._norms, strict=True)):
            if number in taps:
                tapped[number] = x[0]
            inner = self._norm(x, norm)
            if block.mixer is not None:
                place = len(passed)
                output, activations = self.mixers[place](inner[0], carried.window[place], carried.state[place], shape)
                passed.append(activations)
                mixed = output[None]
            else:
                mixed = cache.attend(block.attention, inner, turns)
            x = x + mixed * body.residual if body.residual != 1 else x + mixed
            if feed_norm is not None:
                fed = block.feed(self._norm(x, feed_norm))
                x = x + fed * body.residual if body.residual != 1 else x + fed
        x = self._norm(x, self._last)
        if len(body.blocks) in taps:
            tapped[len(body.blocks)] = x[0]
        return x[0], stack_layers(passed), tapped

    def _norm(self, x: Tensor, norm: Scale) -> Tensor:
        even = F.rms_norm(x.to(self.wide), (x.shape[-1],), None, norm.eps)
        return (norm.weight * even.to(norm.weight.dtype)).to(self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden [node, hidden] to logits [node, vocab]."""
        with torch.inference_mode():
            return self.body.head(hidden)


class _AttentionPass:
    """Key-value cache and mask of the attention layers in one pass."""

    def __init__(self, cache: KeyValues | None, mask: Any) -> None:
        self._cache = cache
        self._mask = mask
        self._next = 0

    def attend(self, layer: Any, inner: Tensor, turns: Any) -> Tensor:
        """Run the next attention layer on inner [1, node, hidden]."""
        return layer(inner, position_embeddings=turns, attention_mask=self._mask, **{CACHE_ARGUMENT: self})[0]

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Write to the cache; called by the layer.

        ``layer`` counts recurrent layers too, so attention layers are counted here. Further keywords of newer transformers are
        ignored.
        """
        assert self._cache is not None
        place, self._next = self._next, self._next + 1
        return self._cache.cache.update(keys, values, place)


class HybridSession:
    """Session on a :class:`HybridTarget`: window, state and, for attention layers, keys and values."""

    def __init__(self, target: HybridTarget, capacity: int, taps: tuple[int, ...]) -> None:
        self.target = target
        self.taps = taps
        self.length = 0
        self._cache = KeyValues([None] * target.attending, capacity + TREE_ROOM) if target.attending else None
        self.carried = target.nothing()
        self._ids: list[int] = []
        self._tree: DraftTree | None = None
        self._passed: Activations | None = None
        # For rewinding: an earlier carried state, and the activations since. Both stay None until the first rewind, because
        # verifying targets and tree drafters never rewind.
        self._base: Carried | None = None
        self._since: list[Activations] | None = None

    def padded(self, nodes: int) -> int:
        return nodes

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids``. Returns logits of the last position, [1, vocab], and hidden states [position, hidden]."""
        hidden, tapped = None, [dict[int, Tensor]() for _ in ids[::CHUNK]]
        for place, (start, end) in enumerate(chunks(len(ids), CHUNK)):
            part = list(ids[start:end])
            tree = DraftTree(chain(len(part) - 1), to_device(part, self.target.device), tuple(part))
            hidden, tapped[place] = self._pass(tree)
            self.keep(range(len(part)))
        if self._since is not None:
            self._base, self._since = self.carried, []
        assert hidden is not None
        layer_states = {layer: torch.cat([states[layer] for states in tapped]) for layer in self.taps}
        return TargetPass(self.target.logits(hidden[-1:]), layer_states)

    def score(self, tree: DraftTree) -> TargetPass:
        """Score the tree in one pass; the committed state is unchanged until :meth:`keep`."""
        hidden, tapped = self._pass(tree)
        assert self._passed is not None
        notes = partial(_decay_notes, self.target, self._passed, tree.shape, self.carried.state)
        return TargetPass(self.target.logits(hidden), tapped, notes)

    def _pass(self, tree: DraftTree) -> tuple[Tensor, dict[int, Tensor]]:
        target, start, nodes = self.target, self.length, len(tree)
        mask = None
        if self._cache is not None:
            self._cache.rewind(start)
            bool_mask = tree_attention_mask(tree, start, start + nodes, nodes, target.device)[None, None]
            mask = bool_mask if target.model.config._attn_implementation == "sdpa" else additive(bool_mask, target.dtype)
        attended = _AttentionPass(self._cache, mask)
        hidden, self._passed, tapped = target.run(tree.tokens, tree.shape, start, self.carried, attended, self.taps)
        self._tree = tree
        return hidden, tapped

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Replay these nodes (root first) of the last tree into window and state; keep their keys and values."""
        assert self._passed is not None and self._tree is not None
        if self._cache is not None:
            self._cache.keep(path)
        activations = self._passed
        if len(path) < len(activations):
            activations = activations.of(to_device(list(path), self.target.device))
        self.carried = self.target.together.replayed(activations, self.carried)
        self.length += len(path)
        self._ids += [self._tree.host_tokens[node] for node in path]
        if self._since is None or self._base is None:
            return
        # Keep the last activations for rewinding, and fold older ones into the base state.
        self._since.append(activations)
        if sum(map(len, self._since)) > 2 * REWIND:
            everything = joined(self._since)
            older = len(everything) - REWIND
            self._base = self.target.together.replayed(everything.part(0, older), self._base)
            self._since = [everything.part(older, len(everything))]

    @torch.inference_mode()
    def rewind(self, length: int) -> None:
        """Drop all but the first ``length`` tokens.

        Replays from a recent state, or prefills again on the first rewind or if ``length`` is too far back.
        """
        if self._cache is not None:
            self._cache.rewind(length)
        if length == self.length:
            return
        if self._base is None:
            self._prefill_again(self._ids[:length])
            return
        everything = joined(self._since) if self._since else None
        back = 0 if everything is None else len(everything)
        left = length - (self.length - back)
        ids, self._ids, self.length = self._ids[:length], self._ids[:length], length
        if everything is not None and left > 0:
            self._since = [everything.part(0, left)]
            self.carried = self.target.together.replayed(self._since[0], self._base)
        elif left == 0:
            self._since, self.carried = [], self._base
        else:
            self._prefill_again(ids)

    def _prefill_again(self, ids: list[int]) -> None:
        self.length, self._ids, self.carried = 0, [], self.target.nothing()
        self._base, self._since = self.carried, []
        if self._cache is not None:
            self._cache.rewind(0)
        if ids:
            self.prefill(ids)

    def close(self) -> None:
        self._cache, self._passed, self._base, self._since = None, None, None, None


def _decay_notes(target: HybridTarget, passed: Activations, shape: TreeShape, state: Tensor) -> tuple[Note, ...]:
    """Return a note on the L matrix of a pass that began at the carried ``state``; () for large trees and lone roots.

    The note has log decays along each path for three heads, and the memory that each way of storing states takes. With the
    delta rule, a node writes its correction.
    """
    if not 1 < len(shape) <= _LARGEST_SHOWN:
        return ()
    layers, kinds = target.together, target.kinds
    log_decay = layers.log_decay(passed)
    # Log decays from the carried state to each node, [layer, node, head].
    fade = shape.ancestors_on(log_decay.device).to(log_decay.dtype) @ log_decay
    order = (-log_decay.mean(-2)).flatten().argsort().tolist()
    recurrent = [number for number, kind in enumerate(kinds) if kind == "state"]
    heads = []
    for name, place in _SHOWN_HEADS:
        layer, head = divmod(order[min(len(order) - 1, int(place * len(order)))], layers.heads)
        heads.append(DecayHead(name, recurrent[layer], head, [round(one, 3) for one in fade[layer, :, head].tolist()]))
    return (
        DecayMaskNote(
            heads=heads,
            taps=layers.taps,
            layers=list(kinds),
            state_bytes=state.nbytes,
            per_node_bytes=state.nbytes * len(shape),
            replay_bytes=passed.bytes,
        ).to_note(),
    )


CausalTarget = TextTarget | HybridTarget


def causal_target(model: Any, name: str, eos_ids: Iterable[int], tier: str = "auto") -> CausalTarget:
    """Return the target for this model's class. Raises ModelUnavailable if its layers cannot hold a tree's branches."""
    recurrent = type(model).__name__ in NAMES and any(block.mixer is not None for block in anatomy(model).blocks)
    return (HybridTarget if recurrent else TextTarget)(model, name, sorted(eos_ids), tier)
