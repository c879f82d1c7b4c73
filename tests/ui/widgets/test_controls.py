"""Forms are made from the parameter dataclasses: every field is there with its bounds, help and unit."""

from __future__ import annotations

import json

import pytest

from specviz.methods.registry import all_methods, build, describe
from specviz.ui.tabs import request_form
from specviz.ui.widgets import controls


@pytest.mark.parametrize("name", sorted(all_methods()))
def test_every_parameter_of_every_method_is_a_field_with_its_bounds(name: str) -> None:
    form = json.loads(controls.method_answer(name))
    parameters = describe(all_methods()[name].parameters)
    assert [field["name"] for field in form["fields"]] == [one.name for one in parameters]
    for field, one in zip(form["fields"], parameters, strict=True):
        assert (field["low"], field["high"], field["unit"]) == (one.bounds.low, one.bounds.high, one.bounds.unit)
        assert field["help"] and field["title"] and form["values"][one.name] == one.default
    assert build(all_methods()[name].parameters, form["values"], name) == all_methods()[name].parameters()


@pytest.mark.parametrize("form", request_form.FORMS.values())
def test_the_common_controls_come_from_dataclasses_too(form: request_form.Form) -> None:
    for parameters in (form.basics, form.advanced):
        assert build(parameters, json.loads(controls.answer("any", parameters))["values"], "it") == parameters()


def test_an_upper_bound_can_be_lowered_for_one_app() -> None:
    listed = controls.fields(request_form.Basics, {"max_new_tokens": 64})
    assert {field["name"]: field["high"] for field in listed} == {"temperature": 2.0, "max_new_tokens": 64}


def test_values_of_a_recording_that_a_method_no_longer_has_are_left_out() -> None:
    form = json.loads(controls.method_answer("stand", {"nodes": 24, "gone": 1}))
    assert form["values"]["nodes"] == 24 and "gone" not in form["values"]


def test_one_value_of_a_form_can_be_changed_and_a_broken_form_stays_as_it_is() -> None:
    form = controls.method_answer("stand", {"nodes": 24, "lowest_order": 3})
    assert controls.values(controls.replaced(form, "nodes", 30), "stand")["nodes"] == 30
    assert controls.values(controls.replaced(form, "nodes", 30), "stand")["lowest_order"] == 3
    assert [controls.replaced(broken, "nodes", 30) for broken in ("{", "[]", '{"values": 1}')] == ["{", "[]", '{"values": 1}']
