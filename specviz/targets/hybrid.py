"""Target with recurrent layers, alone or among attention layers: trees in one pass, states by replay (STree).

A recurrence cannot be masked like attention, but the decay in Mamba-2 and in the gated delta rule is a scalar. A whole tree is
therefore one masked product (``engine.state_space``) or one masked triangular system (``targets.mixers``). A pass stores
activations, from which the accepted path is replayed in closed form to advance the carried state. Attention layers use the same
ancestor mask and a key-value cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.engine.attention import additive
from specviz.engine.cache import CACHE_ARGUMENT
from specviz.engine.captured import captured
from specviz.engine.interfaces import TargetPass
from specviz.engine.state_space import Activations, Carried, stack_layers
from specviz.engine.stop import chunks
from specviz.engine.tiers import (
    Forward,
    GraphRunner,
    Outputs,
    PooledCache,
    choose_tier,
    is_captured,
    tree_attention_mask,
)
from specviz.engine.to_device import copy_into, to_device
from specviz.engine.tree import DraftTree, GrownShape, TreeShape, chain
from specviz.errors import ModelUnavailable
from specviz.targets.layers import changing_factors, devices_of
from specviz.targets.mixers import GatedDelta, Mamba2, Rule
from specviz.targets.state_layers import NAMES, Scale, anatomy, scale_of
from specviz.targets.text import CachedSession, LanguageTarget, TextTarget, joined, rope_obstacle
from specviz.trace.notes.models import DecayHead, DecayMaskNote
from specviz.trace.schema import Note

CHUNK = 128
"""Tokens per prefill chunk; the masked product grows with the square of this number."""
REWIND = 24
"""Number of earlier states that a session keeps after its first rewind, to rewind without prefilling the whole text again."""
PASSED = -1
"""Key of a list among a captured pass's outputs: its activations, and the captured replays of its paths by length."""
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
        # Layers with equal labels share one tensor of the cache; recurrent layers have no entries.
        self.alike = tuple("attention" if block.mixer is None else "state" for block in self.body.blocks)
        self.tier, self.warning = choose_tier(tier, self.device, self._obstacle())

    def _obstacle(self) -> str:
        """Return the reason why passes cannot be captured in a graph, or ""."""
        if any(getattr(self.config, name, 0) for name in ("num_experts", "num_local_experts")):
            return "its experts may be chosen on the host"
        return rope_obstacle(self.config)

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
        self, tokens: Tensor, positions: Tensor, shape: TreeShape, carried: Carried, attended: Any, taps: Sequence[int]
    ) -> tuple[Tensor, Activations, dict[int, Tensor]]:
        """Run one pass over a tree at ``positions`` [node]. Returns the head's input [node, hidden], activations and taps.

        ``attended``: mask and cache of the attention layers, by keyword.
        """
        body = self.body
        x = body.embed(tokens)[None]
        x = x.to(self.wide) if body.wide else x
        turns = None if body.rotary is None else body.rotary(x, positions[None])
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
                mixed = block.attention(inner, position_embeddings=turns, **attended)[0]
            x = torch.add(x, mixed, alpha=body.residual)
            if feed_norm is not None:
                x = torch.add(x, block.feed(self._norm(x, feed_norm)), alpha=body.residual)
        x = self._norm(x, self._last)
        if len(body.blocks) in taps:
            tapped[len(body.blocks)] = x[0]
        return x[0], stack_layers(passed), tapped

    def mask(self, seen: Tensor) -> Tensor:
        """Convert a bool mask [node, kv] to the model's form."""
        return (seen if self.model.config._attn_implementation == "sdpa" else additive(seen, self.dtype))[None, None]

    def padded_forward(self, pooled: PooledCache, taps: Sequence[int]) -> Forward:
        """Return the forward of captured passes over this cache, whose parents and ancestors are read from the mask."""

        def forward(tokens: Tensor, places: Tensor, seen: Tensor, _: Tensor) -> Outputs:
            cache = pooled.cache
            assert cache.slots is not None
            ancestors = seen.index_select(1, cache.slots)
            above = ancestors.tril(-1) * torch.arange(1, len(places) + 1, device=self.device)
            shape = GrownShape((0,) * len(places), above.amax(1) - 1, ancestors)
            attended = {"attention_mask": self.mask(seen), CACHE_ARGUMENT: cache.cache}
            hidden, activations, tapped = self.run(tokens[0], places, shape, pooled.state[0], attended, taps)
            return self.logits(hidden), {**tapped, PASSED: [(activations, {})]}

        return forward

    def _norm(self, x: Tensor, norm: Scale) -> Tensor:
        even = F.rms_norm(x.to(self.wide), (x.shape[-1],), None, norm.eps)
        return (norm.weight * even.to(norm.weight.dtype)).to(self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden [node, hidden] to logits [node, vocab]."""
        with torch.inference_mode():
            return self.body.head(hidden)


class HybridSession(CachedSession):
    """Session on a :class:`HybridTarget`: window, state and, for attention layers, keys and values.

    In the graph tier, all of them have fixed addresses, and so has a second state, to which a captured replay writes.
    """

    target: HybridTarget

    def __init__(self, target: HybridTarget, capacity: int, taps: tuple[int, ...]) -> None:
        self.target, self.carried = target, target.nothing()
        super().__init__(capacity, taps)
        self._ids: list[int] = []
        self._tree: DraftTree
        self._passed: Any
        # Earlier states with their numbers of tokens, from the first rewind on: targets and tree drafters never rewind.
        self._earlier: list[tuple[int, Carried]] | None = None

    def _runner(self, pooled: PooledCache) -> GraphRunner:
        pooled.state = pooled.state or (self.carried, self.target.nothing())
        pooled.state[0].put(self.carried)
        self.carried, self._spare = pooled.state
        target, taps = self.target, self.taps
        return GraphRunner(target.padded_forward(pooled, taps), pooled, (*taps, PASSED), target.device)

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids``. Returns logits of the last position, [1, vocab], and hidden states [position, hidden]."""
        return joined([self._read(list(ids[start:end])) for start, end in chunks(len(ids), CHUNK)])

    def _read(self, ids: list[int]) -> TargetPass:
        tree = DraftTree(chain(len(ids) - 1), to_device(ids, self.target.device), tuple(ids))
        hidden, tapped = self._pass(tree)
        self.keep(range(len(ids)))
        return TargetPass(self.target.logits(hidden[-1:]), tapped)

    def score(self, tree: DraftTree) -> TargetPass:
        scored = super().score(tree)
        return replace(scored, notes=partial(_decay_notes, self.target, self._passed[0], tree.shape, self.carried.state))

    def _scored(self, tree: DraftTree) -> Outputs:
        if self.graph is None:
            hidden, tapped = self._pass(tree)
            return self.target.logits(hidden), tapped
        outputs = self.graph(tree, self.length)
        self.resume(tree, outputs[1])
        return outputs

    def resume(self, tree: DraftTree, outputs: Mapping[int, Any]) -> None:
        """Take a captured pass over ``tree`` as the last one, from its ``outputs``."""
        self._tree, (self._passed,) = tree, outputs[PASSED]

    def _pass(self, tree: DraftTree) -> Outputs:
        target, start, nodes = self.target, self.length, len(tree)
        self._cache.rewind(start)
        mask = target.mask(tree_attention_mask(tree, start, start + nodes, nodes, target.device))
        positions = to_device([start + depth for depth in tree.shape.depths], target.device)
        attended = {"attention_mask": mask, CACHE_ARGUMENT: self._cache.cache}
        hidden, activations, tapped = target.run(tree.tokens, positions, tree.shape, self.carried, attended, self.taps)
        self._tree, self._passed = tree, (activations, None)
        return hidden, tapped

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Replay these nodes (root first) of the last tree into window and state; keep their keys and values."""
        if self._earlier is not None:
            self._earlier = [*self._earlier[1 - REWIND :], (self.length, deepcopy(self.carried))]
        self._set(self._replayed(path))
        super().keep(path)
        self._ids += [self._tree.host_tokens[node] for node in path]

    def _replayed(self, path: Sequence[int]) -> Carried:
        """Return the carried state after these nodes of the last tree."""
        (activations, replays), rule, device = self._passed, self.target.together, self.target.device
        if replays is None or not is_captured(device):
            return rule.replayed(activations.of(to_device(list(path), device)), self.carried)
        if len(path) not in replays:
            nodes = to_device(list(path), device)
            replay, _ = captured(lambda: self._spare.put(rule.replayed(activations.of(nodes), self.carried)), device)
            replays[len(path)] = nodes, replay
        nodes, replay = replays[len(path)]
        copy_into(nodes, path)
        replay()
        return self._spare

    def _set(self, carried: Carried) -> None:
        if self.graph:
            self.carried.put(carried)
        else:
            self.carried = carried

    @torch.inference_mode()
    def rewind(self, length: int) -> None:
        """Drop all but the first ``length`` tokens: go back to an earlier state, and prefill the tokens after it again."""
        if length < self.length:
            self._earlier = [one for one in self._earlier or () if one[0] <= length]
            start, carried = self._earlier.pop() if self._earlier else (0, self.target.nothing())
            again, self._ids = self._ids[start:length], self._ids[:start]
            self._set(carried)
            self._cache.rewind(start)
            if again:
                self.prefill(again)
        self._cache.rewind(length)


def _decay_notes(target: HybridTarget, passed: Activations, shape: TreeShape, state: Tensor) -> tuple[Note, ...]:
    """Return a note on the L matrix of a pass that began at the carried ``state``; () for large trees and lone roots.

    The note has log decays along each path for three heads, and the memory that each way of storing states takes. With the
    delta rule, each node writes a correction to the state.
    """
    if not 1 < len(shape) <= _LARGEST_SHOWN:
        return ()
    layers, kinds = target.together, target.alike
    passed = passed.part(0, len(shape))
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
