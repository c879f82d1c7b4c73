"""Controls of our own: forms generated from a parameter dataclass, with their checked values, and drop-downs with headings.

A form's value is JSON text: {"of", "fields", "values", "given"}. ``given`` are the values as the page filled them in; values that
differ from these, or have none there, are the visitor's edits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gradio as gr

from specviz.errors import BadInput
from specviz.figures.theme import markup
from specviz.methods import registry
from specviz.methods.registry import describe
from specviz.ui import theme
from specviz.ui.archive import Groups

FORM_LETTERS = 20_000
"""Maximum number of characters in a form's answer; the page's own answers are far shorter."""


def title(name: str) -> str:
    """Title of a parameter on the page."""
    words = name.replace("_", " ")
    return str(theme.texts()["titles"].get(name, words[:1].upper() + words[1:]))


def fields(parameters: type, high: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """Fields of the form for a dataclass. ``high`` lowers upper bounds, by parameter."""
    listed = []
    for parameter in describe(parameters):
        field = {"name": parameter.name, "kind": parameter.kind, "title": title(parameter.name)} | vars(parameter.bounds)
        listed.append(field | ({"high": high[parameter.name]} if high and parameter.name in high else {}))
    return listed


def answer(
    of: str, parameters: type, values: Mapping[str, Any] | None = None, high: Mapping[str, float] | None = None, own: bool = False
) -> str:
    """The form's value: its fields, and ``values`` over the defaults, without those that have no field. ``own``: those that
    differ from a default are the visitor's edits."""
    defaults = {parameter.name: parameter.default for parameter in describe(parameters)}
    chosen = {name: (values or {}).get(name, default) for name, default in defaults.items()}
    return json.dumps({"of": of, "fields": fields(parameters, high), "values": chosen, "given": defaults if own else chosen})


def method_answer(method: str, values: Mapping[str, Any] | None = None) -> str:
    """The form of a method's own parameters."""
    return answer(method, registry.get(method).parameters, values)


def _read(payload: str | None, of: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a form's values as typed and as given; empty, for the defaults, if it shows another method's fields."""
    try:
        if not isinstance(payload, str) or len(payload) > FORM_LETTERS:
            raise ValueError
        form = json.loads(payload)
        return (dict(form["values"]), dict(form.get("given", ()))) if form["of"] == of else ({}, {})
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        raise BadInput("The settings did not arrive as the page sends them. Reload the page and try again.") from None


def values(payload: str | None, of: str) -> dict[str, Any]:
    """Return a form's values as typed; empty, for the defaults, if it shows another method's fields. Raises BadInput."""
    return _read(payload, of)[0]


def replaced(payload: str, name: str, value: Any) -> str:
    """Return the form with one value replaced; unchanged if it is not a valid form."""
    try:
        form_state = json.loads(payload)
        form_state["values"][name] = value
        return json.dumps(form_state)
    except (ValueError, KeyError, TypeError, RecursionError):
        return payload


def filled(offered: str, now: str, edits: bool = False) -> str:
    """Return the form ``offered`` with the values of the form ``now``, or with ``edits`` only the edited ones.

    A value stays an edit as long as it is in the form, whatever the page fills in meanwhile. Raises BadInput for a bad form.
    """
    form = json.loads(offered)
    typed, given = _read(now, form["of"])
    kept = {
        name: value
        for name, value in typed.items()
        if name in form["values"] and not (edits and _same(value, given.get(name)))
    }  # fmt: skip
    before = {name: given.get(name) for name in kept}
    return json.dumps(form | {"values": form["values"] | kept, "given": form["given"] | before})


def _same(typed: Any, given: Any) -> bool:
    """Whether two values are equal; the page sends numbers as they were typed."""
    try:
        return typed == given or float(typed) == float(given)
    except (TypeError, ValueError):
        return False


def form(value: str, **more: Any) -> gr.HTML:
    """A form on the page."""
    return theme.html(value, "widgets/form.js", html_template='<div class="sp-form"></div>', **more)


def choice(
    groups: Groups, value: str, label: str, *, elem_id: str, script: str = "widgets/choice.js", below: str = "", **more: Any
) -> gr.HTML:  # fmt: skip
    """Drop-down with headings, for long lists: the browser's native one, which works with keyboards and phones. Its value
    is the chosen name, or a :func:`listing`; ``input`` fires when the visitor chooses one. ``below`` is HTML for ``script``
    to fill."""
    name = f"{elem_id}-choice"
    template = f'<div class="sp-field sp-choice"><label for="{name}">{markup(label)}</label>'
    template += f'<select id="{name}" data-groups="{markup(json.dumps(list(groups.items())))}"></select></div>{below}'
    return theme.html(value, script, html_template=template, elem_id=elem_id, **more)


def listing(groups: Groups, name: str) -> str:
    """Value that replaces a drop-down's entries and chooses one: in a tab that was never open, only values can be updated."""
    return json.dumps({"groups": list(groups.items()), "name": name})
