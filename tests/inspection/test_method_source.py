"""The code drawer's functions: what the package itself holds, for every method, within bounds."""

import inspect

import pytest

from specviz.acceptance.exact import Match
from specviz.drafting.trees.best_first import BestFirst
from specviz.errors import BadInput
from specviz.inspection import method_source
from specviz.methods.registry import all_methods


@pytest.mark.parametrize("name", sorted(all_methods()))
def test_every_method_has_its_functions_of_all_phases(name):
    found = method_source.of(name)
    assert [one["phase"] for one in found][0] == "loop" and len(found) <= method_source.FUNCTIONS
    phases = {one["phase"] for one in found}
    assert {"judge", "commit"} <= phases and ("draft" in phases or name == "autoregressive")
    for one in found:
        assert one["file"].startswith("specviz/") and one["text"].lstrip("@").strip() and one["line"] > 0
        assert one["text"].count("\n") <= method_source.LINES


def test_the_text_is_the_real_source_with_its_place():
    found = {one["name"]: one for one in method_source.of("ddtree")}
    assert found["BestFirst.draft"]["text"].splitlines()[1].strip() in inspect.getsource(BestFirst.draft)
    assert found["Match.judge"]["line"] == inspect.getsourcelines(Match.judge)[1]
    assert found["Match.judge"]["file"] == "specviz/acceptance/exact.py"


def test_a_method_that_is_not_known_has_none():
    with pytest.raises(BadInput, match="no code to show"):
        method_source.of("../secrets")
