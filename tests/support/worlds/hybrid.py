"""The ladder's worlds of recurrent targets: tiny ones of each kind that is read, each with a drafter that is often right."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from specviz.drafting.runtimes.language_model import DraftModel, SessionModel
from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.targets.hybrid import HybridSession, HybridTarget
from tests.support.rounds import entries
from tests.support.tiny.hybrid import delta, delta_experts, granite, hybrid, near, pure, target
from tests.support.tiny.networks import block_fill
from tests.support.tiny.text import LENGTH, Decoded, composed, decode, parts_for
from tests.support.worlds.feature import tiny_net

PROMPT = [5, 9, 2, 44, 17, 30, 8, 21, 3, 40, 33, 12]
GREEDY, WARM = Warp(), Warp(0.8)
WARPS = {"greedy": GREEDY, "warm": WARM, "nucleus": Warp(1.1, top_p=0.9)}
BEAM: dict[str, Any] = {"depth": 3, "width": 3, "nodes": 9}
MODELS = {"hybrid": hybrid, "pure": pure, "granite": granite, "delta": delta, "experts": delta_experts}
"""Mamba-2 among attention, Mamba-2 alone, Granite 4.0 H; the gated delta rule of Qwen3.5, and of Qwen3-Next with experts."""


@cache
def models(
    kind: str, dtype: torch.dtype = torch.float64, noise: float = 0.02, context: int = 0, device: str = "cpu", tier: str = "auto"
) -> tuple[HybridTarget, HybridTarget]:
    """A target and a drafter that is often right."""
    more = {"context": context} if context else {}
    model = MODELS[kind](dtype=dtype, **more).to(device)
    return target(model, tier=tier), target(near(model, noise), tier=tier)


def compose(
    values: dict[str, Any], found: HybridTarget, draft: HybridTarget | None, warp: Warp, name: str = "stree", named: str = ""
) -> Composition:
    """Without ``draft``, the draft model only extends chains, and the heads of EAGLE-3 are at hand."""

    def draft_model() -> DraftModel:
        return DraftModel("near", 1 << 20, lambda capacity: SessionModel(draft.open(capacity), draft), (), draft)

    parts = parts_for(found, warp).using(draft_model=draft_model, draft_name=named)
    if draft is None:
        parts = parts.using(drafter_weights=lambda kind: tiny_net(found.model, kind == "eagle3").runtime())
    if name in ("dflash", "dspark"):  # the drafters of other methods are untried here
        parts = parts.using(drafter_weights=lambda kind: block_fill(found, kind).runtime())
    return composed(name, values, parts)


def run(
    values: dict[str, Any], pair: Sequence[HybridTarget | None], warp: Warp, budget: int = LENGTH, name: str = "stree",
    prompt: Sequence[int] = PROMPT,
) -> Decoded:  # fmt: skip
    return decode(pair[0], compose(values, *pair, warp, name), prompt, budget, warp, 7)


@cache
def alone(kind: str, dtype: torch.dtype, warped: str) -> tuple[int, ...]:
    """The target's own autoregressive run."""
    return tuple(run({}, models(kind, dtype), WARPS[warped], max(LENGTH, 110), "autoregressive").ids)


class Audited(HybridSession):
    """Compares itself with a fresh prefill of all it was given, after every step."""

    checked, worst = 0, 0.0

    def keep(self, path: Sequence[int]) -> None:
        super().keep(path)
        fresh = HybridSession(self.target, 512, ())
        HybridSession.prefill(fresh, self._ids)
        pairs = [*zip(entries(self), entries(fresh), strict=True)]
        apart = [(ours - theirs).abs().max() for mine, its in pairs for ours, theirs in zip(mine, its, strict=True)]
        apart += [(self.carried.state - fresh.carried.state).abs().max()]
        apart += [(self.carried.window - fresh.carried.window).abs().max()]
        Audited.worst = max(Audited.worst, *map(float, apart))
        Audited.checked += 1

    def prefill(self, ids: Sequence[int]):
        self.keep = super().keep  # a prompt is read in parts; audited are the steps
        try:
            return super().prefill(ids)
        finally:
            del self.keep
