"""Resources that a bench or a test puts its own in, and what a method of another kind of target is told."""

from __future__ import annotations

import pytest

from specviz.engine.cost import CostCurve
from specviz.engine.sampling import Warp
from specviz.methods.resources import ImageResources, TextResources
from tests.support.tiny.text import parts_for, tiny_target


def test_a_copy_answers_with_what_it_was_given_and_the_first_one_stays() -> None:
    plain, cheap = parts_for(tiny_target(), Warp()), CostCurve((1, 9), (1.0, 2.0))
    copied = plain.using(cost_curve=lambda: cheap, prompt_key="other")
    assert copied.cost_curve() is cheap and copied.prompt_key == "other"
    assert plain.cost_curve() is not cheap and plain.prompt_key == "prompt"
    assert copied.remember(("a",), lambda: 1) == plain.remember(("a",), lambda: 2) == 1, "one memory"
    assert copied.using(draft_name="small").cost_curve() is cheap


def test_a_resource_that_nobody_asks_for_is_refused() -> None:
    with pytest.raises(AttributeError, match="heads_and_tails"):
        parts_for(tiny_target(), Warp()).using(heads_and_tails=1)


def test_each_kind_of_target_has_to_fill_in_what_its_methods_ask_for() -> None:
    assert {"intermediate", "grouped", "cost_curve_of", "draft_model"} <= TextResources.__abstractmethods__
    assert {"neighbours", "coarse"} <= ImageResources.__abstractmethods__
    assert not hasattr(ImageResources, "draft_model") and not hasattr(TextResources, "coarse")
