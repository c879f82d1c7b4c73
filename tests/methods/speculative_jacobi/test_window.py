"""A window drawn all at once: the codes that drawing place by place gives, with the same noise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from specviz.engine.interfaces import Context, Round
from specviz.engine.sampling import DRAFT, EXTRA, Noise, Warp, draw
from specviz.methods.speculative_jacobi.drafter import JacobiWindow, WindowChain

CODES = 40
LOGITS = torch.randn(9, CODES, generator=torch.Generator().manual_seed(0)) * 3
WARPS = {"greedy": Warp(), "warm": Warp(1.0), "narrow": Warp(0.9, top_k=9), "nucleus": Warp(1.1, top_p=0.9)}


def place_by_place(context: Context, rows: torch.Tensor, fill: str, size: int) -> tuple[list[int], list[float | None]]:
    """Codes of the window and the probability of each where it was drawn."""
    codes: list[int] = []
    shares: list[float | None] = []
    for place in range(size):
        if place < len(rows):
            distribution = context.warp.probabilities(rows[place])
            codes.append(draw(distribution, context.noise, context.round, place, stream=DRAFT))
            shares.append(float(distribution[codes[-1]]))
            continue
        shares.append(None)
        if fill == "random":
            codes.append(int(context.noise.uniform(EXTRA, context.round, place) * CODES))
        else:
            codes.append(codes[-1] if codes else context.ids[-1])
    return codes, shares


@pytest.mark.parametrize("settled", [1, 4, 9])
@pytest.mark.parametrize("fill", ["repeat", "random"])
@pytest.mark.parametrize("warped", list(WARPS))
def test_a_window_is_what_drawing_place_by_place_gives(warped: str, fill: str, settled: int) -> None:
    context = Context([3, 1, 7], 2, 5, WARPS[warped], Noise(11), torch.device("cpu"), 50)
    drafter = JacobiWindow(6, fill, CODES)
    drafter.begin(context, None)
    drafter.observe(cast("Round", SimpleNamespace(emitted=[0] * settled, target=SimpleNamespace(logits=LOGITS))))
    codes, shares = place_by_place(context, LOGITS[settled:], fill, 6)
    draft: Any = WindowChain().build(drafter, context)
    assert draft.tree.host_tokens == (7, *codes) and draft.confidence == [None, *shares]
    assert set(draft.proposals) == (set() if context.warp.greedy else set(range(min(6, 9 - settled))))
