"""What a visitor has changed by hand: whatever differs from the values that the page itself gave.

A form does not say who filled it in, so each tab remembers what it gave. A value that is kept stays remembered as it was
given: it counts as the visitor's for as long as it stands, whatever is given meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from specviz.ui.widgets import controls


@dataclass(frozen=True)
class Given:
    """The prompt and the two forms that every method has, as a page gave them or as they stand. The forms are JSON text."""

    prompt: str
    basics: str
    advanced: str


def merged(given: Given, now: Given, offered: Given) -> tuple[Given, Given]:
    """``offered`` with what the visitor changed since ``given``; and what counts as given from here on.

    Raises BadInput when a form did not arrive as the page sends it.
    """
    own_prompt = now.prompt.strip() != given.prompt.strip()
    basics, given_basics = _merged(given.basics, now.basics, offered.basics)
    advanced, given_advanced = _merged(given.advanced, now.advanced, offered.advanced)
    shown = Given(now.prompt if own_prompt else offered.prompt, basics, advanced)
    return shown, Given(given.prompt if own_prompt else offered.prompt, given_basics, given_advanced)


def _merged(given: str, now: str, offered: str) -> tuple[str, str]:
    form = json.loads(offered)
    before, values = json.loads(given)["values"], controls.values(now, form["of"])
    own = {name: value for name, value in values.items() if name in before and not _same(value, before[name])}
    remembered = form | {"values": form["values"] | {name: before[name] for name in own}}
    return json.dumps(form | {"values": form["values"] | own}), json.dumps(remembered)


def _same(typed: Any, given: Any) -> bool:
    """Whether two values mean the same: the page sends numbers as they were typed."""
    try:
        return typed == given or float(typed) == float(given)
    except (TypeError, ValueError):
        return False
