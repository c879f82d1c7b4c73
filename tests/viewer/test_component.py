"""The Gradio component: made once and fed text."""

import pytest

from tests.support.viewer import cases

pytest.importorskip("gradio")

from specviz.viewer.component import Stage


def test_its_template_never_changes_with_the_value():
    stage = Stage(cases.trace(cases.chain(0)))
    config = stage.get_config()
    assert "${" not in config["html_template"] and "{{" not in config["html_template"]
    assert config["css_template"] == ""
    assert config["apply_default_css"] is False


def test_words_that_look_like_markup_pass_without_a_warning(recwarn):
    text = cases.trace(cases.hostile())
    assert Stage(text).postprocess(text) == text
    assert Stage().postprocess(None) == ""
    assert not recwarn.list
