"""The Gradio component: made once, fed text, and able to hand a late page the lines it missed."""

from __future__ import annotations

import pytest

from specviz.errors import BadInput
from tests.support.viewer import cases

pytest.importorskip("gradio")

from specviz.viewer.component import MOST_LETTERS, Stage


def test_its_template_never_changes_with_the_value() -> None:
    stage = Stage(cases.trace(cases.chain(0)))
    config = stage.get_config()
    assert "${" not in config["html_template"] and "{{" not in config["html_template"]
    assert config["css_template"] == ""
    assert config["apply_default_css"] is False
    assert config["head"].lower().count("</script") == 1


def test_words_that_look_like_markup_pass_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    text = cases.trace(cases.hostile())
    assert Stage(text).postprocess(text) == text
    assert Stage().postprocess(None) == ""
    assert not recwarn.list


def test_missed_lines_come_in_answers_of_bounded_size() -> None:
    lines = ["x" * 1000 for _ in range(1000)]
    stage = Stage(lines=lambda run, first, last: lines[first:last] if run == "mine" else [])
    assert stage.missed(["mine", 2, 4]) == ("x" * 1000 + "\n") * 2
    assert 0 < len(stage.missed(["mine", 0, 1000])) <= MOST_LETTERS
    assert stage.missed(["other", 0, 10]) == ""


@pytest.mark.parametrize("asked", [[], ["run"], ["run", "x", 2], None, "run", [{}, [], ()], ["run", -5, 10**12]])
def test_questions_that_make_no_sense_get_no_lines(asked: object) -> None:
    assert Stage(lines=lambda run, first, last: []).missed(asked) == ""  # type: ignore[arg-type]


def test_a_forgotten_run_is_no_error_on_the_page() -> None:
    def gone(run: str, first: int, last: int) -> list[str]:
        raise BadInput("That run is no longer kept.")

    assert Stage(lines=gone).missed(["run", 0, 2]) == ""
