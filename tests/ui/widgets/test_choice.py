"""The drop-down of methods: every method under its family, names and titles as text."""

from __future__ import annotations

import re

from specviz.methods.registry import all_methods, families
from specviz.ui.widgets import choice


def test_every_text_method_stands_under_one_heading() -> None:
    listed = [name for found in choice.methods().values() for _, name in found]
    assert sorted(listed) == sorted(one.name for one in all_methods().values() if "text" in one.modality)
    assert "More" not in families("text"), "a method names no family"


def test_the_chosen_one_is_selected_and_titles_stay_text() -> None:
    made = choice.choice({"<b>A": [("one & <two>", "x"), ("three", "y")]}, "y", "Which", elem_id="sp-x").html_template
    assert re.findall(r"<option value=\"(\w)\"( selected)?>", made) == [("x", ""), ("y", " selected")]
    assert "one &amp; &lt;two&gt;" in made and 'label="&lt;b&gt;A"' in made
    assert 'for="sp-x-choice"' in made and 'id="sp-x-choice"' in made
