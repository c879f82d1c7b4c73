"""``train NAME``: which names there are, and what a wrong one is told."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from specviz.errors import BadInput
from specviz.training import recipes, train


def test_every_recipe_can_be_made() -> None:
    assert {"dialogues", "small_draft"} <= set(recipes())
    for recipe in recipes().values():
        assert callable(importlib.import_module(f"specviz.training.families.{recipe.family}").make)
        assert recipe.minutes > 0 and recipe.title


def test_a_wrong_name_lists_the_right_ones() -> None:
    with pytest.raises(BadInput, match="small_draft"):
        train("smal_draft")


@pytest.mark.parametrize("minutes", [0, -3, float("nan"), float("inf")])
def test_a_time_that_cannot_be_spent_is_refused(minutes: float) -> None:
    with pytest.raises(BadInput, match="positive"):
        train("small_draft", minutes=minutes)


def test_listing_recipes_loads_no_torch() -> None:
    asked = "import sys, specviz.training as t; t.recipes(); print('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run([sys.executable, "-c", asked], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
