"""A run of a drafter whose head lies in a folder, as it was published."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specviz.models.heads.heads import drafting_heads
from tests.support.tiny.text import Decoded, composed, decode, parts_for
from tests.support.worlds.vision import World


def ran(folder: Path, here: World, warp: Any, budget: int, method: str = "eagle3") -> Decoded:
    loaded = SimpleNamespace(name="tiny", tokenizer_hash="none of ours")
    parts = parts_for(here.target, warp).using(
        drafter_weights=lambda kind: drafting_heads(kind, str(folder), loaded, here.target),  # type: ignore[arg-type]
        uses_shipped_weights=False, draft_name=str(folder), picture=here.layout,
    )  # fmt: skip
    values = {"depth": 3, "width": 4, "nodes": 16, "rule": "match"}
    return decode(here.target, composed(method, values, parts), here.prompt, budget, warp, 7)
