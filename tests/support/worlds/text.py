"""The ladder's world of text: a tiny random Llama, every drafter that a method may ask for, and an audit of the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.engine.tree import DraftTree
from specviz.methods.easyspec.layer_parallel import GroupedModel, grouped_model
from specviz.methods.polybasic.intermediate import IntermediateModel
from specviz.models.heads.intermediate_models import eight_bits, lean_copy
from specviz.models.packing import pack_int8
from specviz.targets.text import TextTarget
from tests.support.rounds import entries
from tests.support.tiny.networks import arms, block_fill, block_net, masked_lm, ngrams, parallel_net, recurrent_net, small
from tests.support.tiny.text import (
    LENGTH,
    Decoded,
    TinyResources,
    composed,
    decode,
    parts_for,
    perturbed,
    tiny_llama,
    tiny_target,
)
from tests.support.worlds.feature import tiny_net

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
GREEDY = Warp()
WARM = Warp(0.8)
NUCLEUS = Warp(1.1, top_k=20, top_p=0.9)
WARPS = {"greedy": GREEDY, "warm": WARM, "nucleus": NUCLEUS}
DEEP = 6
"""Layers of a model deep enough that some of them can stand side by side."""
CURVE = CostCurve((1, 40), (2.0, 3.0))
"""What a pass of an intermediate model costs."""


def tokens(tier: str, dtype: torch.dtype) -> int:
    """How long runs are compared: over 200 tokens in double precision, fewer in another number format or tier."""
    return LENGTH if (tier, dtype) == ("eager", torch.float64) else 88


def deep_target(layers: int = DEEP, vocab: int = 48, seed: int = 2, device: torch.device | str = "cpu") -> TextTarget:
    """A tiny random Llama with layers enough to stand side by side."""
    torch.manual_seed(seed)
    shallow = tiny_llama(vocab=vocab)
    config = shallow.config
    config.num_hidden_layers = layers
    model = type(shallow)(config).eval().double().requires_grad_(False).to(device)
    return TextTarget(model, "deep", (), "eager")


def grouped(kind: str, target: TextTarget, group: int) -> GroupedModel:
    """A draft model some of whose layers attend side by side: a decoder of another model, or the small one."""
    if kind == "draft":
        return grouped_model("deep", lean_copy(deep_target(vocab=target.vocab_size, device=target.device), group=group), target)
    model = small(target, min(30, target.vocab_size))
    return grouped_model("small", model, target, group)


def intermediate_of(kind: str, target: TextTarget) -> IntermediateModel:
    """An intermediate model of a tiny cascade."""
    model: Any
    if kind == "draft":
        model = TextTarget(perturbed(target.model, 0.02), "other", (), target.tier)
    elif kind == "small_draft":
        model = small(target)
    else:
        model = lean_copy(target, (eight_bits, eight_bits)) if kind == "int8" else lean_copy(target)
    return IntermediateModel(kind, kind, model, target, lambda: CURVE)


def network(kind: str, target: TextTarget, whole: bool = False) -> Any:
    """The random drafter that ships as ``kind``; a ``whole`` one knows every token of the target."""
    support = target.vocab_size if whole else 40
    if kind in ("eagle", "eagle3", "gto"):
        # The wide kinds have a vocabulary of their own, as those that ship.
        wide = kind != "eagle"
        known = 40 if wide and not whole else None
        return tiny_net(target.model, wide, known, seed=4 if kind == "gto" else 3).to(target.device).runtime()
    if kind in ("masked_lm", "deer"):
        return masked_lm(target, support)
    if kind == "owl":
        return recurrent_net(target, draft=support).runtime()
    if kind in ("dflash", "dspark"):
        return block_fill(target, kind, support).runtime()
    if kind == "falcon":
        return block_net(target, draft=support)
    return {"medusa": parallel_net, "arms": arms, "ngrams": lambda target: ngrams(target.vocab_size)}[kind](target)


def resources(
    target: TextTarget, warp: Warp, memory: dict[Any, Any] | None = None, noise: float = 0.02, whole: bool = False
) -> TinyResources:
    """All that a method may ask for; the draft model is the target with ``noise`` on its weights, if all its layers attend."""
    draft = None
    if isinstance(target, TextTarget):
        integers = target.number_format == torch.int8
        model = perturbed(tiny_llama(context=target.context_length) if integers else target.model, noise)
        if integers:
            pack_int8(model, "tiny draft")
        draft = TextTarget(model, "tiny draft", (), target.tier)
    return parts_for(target, warp, draft, memory).using(
        drafter_weights=lambda kind: network(kind, target, whole),
        intermediate=lambda kind: intermediate_of(kind, target),
        grouped=lambda kind, group: grouped(kind, target, group),
    )


def compose(
    name: str,
    values: dict[str, Any],
    target: TextTarget,
    warp: Warp,
    memory: dict[Any, Any] | None = None,
    noise: float = 0.02,
    whole: bool = False,
) -> Composition:
    """A method as a user gets it, on tiny networks."""
    return composed(name, values, resources(target, warp, memory, noise, whole))


def alone(target: TextTarget, warp: Warp, prompt: Sequence[int] = PROMPT, budget: int = 30, seed: int = 0) -> Decoded:
    """The target's own autoregressive run."""
    return decode(target, compose("autoregressive", {}, target, warp), prompt, budget, warp, seed)


@cache
def baseline(tier: str, dtype: torch.dtype, warp: Warp) -> list[int]:
    """The tiny target's own tokens, decoded once for all the tests that compare with them."""
    return alone(tiny_target(tier, dtype), warp, budget=max(tokens(tier, dtype), 110), seed=7).ids


class Audit:
    """Opens sessions that compare their cache with a fresh prefill each time a path is kept."""

    def __init__(self, target: Any) -> None:
        self.checked, self.worst = 0, 0.0
        self._open = target.open
        self._tree: DraftTree

    def open(self, capacity: int, taps: tuple[int, ...] = (), opened: Callable[..., Any] | None = None) -> Any:
        """A session that ``opened`` gives, or the target."""
        session = (opened or self._open)(capacity, taps)
        text: list[int] = []
        prefill, score, keep = session.prefill, session.score, session.keep

        def prefilled(ids: list[int]) -> object:
            text.extend(ids)
            return prefill(ids)

        def scored(tree: DraftTree) -> object:
            self._tree = tree
            return score(tree)

        def kept(path: tuple[int, ...]) -> None:
            keep(path)
            text.extend(self._tree.host_tokens[node] for node in path)
            self._compare(session, text)

        session.prefill, session.score, session.keep = prefilled, scored, kept
        return session

    def _compare(self, session: Any, text: list[int]) -> None:
        fresh = self._open(len(text) + 8)
        fresh.prefill(text)
        assert session.length == fresh.length == len(text)
        for ours, theirs in zip(entries(session), entries(fresh), strict=True):
            for one, two in zip(ours, theirs, strict=True):
                assert one.shape == two.shape
                self.worst = max(self.worst, float((one - two).abs().max()))
        self.checked += 1
