"""A run of a drafter whose head lies in a folder, as it was published."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specviz.methods.parameters import build
from specviz.methods.registry import all_methods
from specviz.models.heads.heads import drafting_heads
from tests.support.tiny.text import Decoded, decode, parts_for
from tests.support.worlds.vision import World


def ran(folder: Path, here: World, warp: Any, budget: int, method: str = "eagle3") -> Decoded:
    card, loaded = all_methods()[method], SimpleNamespace(name="tiny", tokenizer_hash="none of ours")
    parts = parts_for(here.target, warp).using(
        drafter_weights=lambda kind: drafting_heads(kind, str(folder), loaded, here.target),  # type: ignore[arg-type]
        uses_shipped_weights=False, draft_name=str(folder), picture=here.layout,
    )  # fmt: skip
    values = {"depth": 3, "width": 4, "nodes": 16, "rule": "match"}
    return decode(here.target, card.compose(build(card.parameters, values, method), parts), here.prompt, budget, warp, 7)
