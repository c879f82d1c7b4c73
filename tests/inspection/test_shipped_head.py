"""The head that ships, written for other engines and read back, is read correctly."""

import pytest

from specviz.inspection.diagnosis import advice, judge
from specviz.inspection.forced import Reading
from specviz.inspection.passages import open_target, passages
from specviz.inspection.readings import required_layers
from specviz.models.heads.head_writer import write_head
from specviz.models.heads.heads import fit_of, load_heads
from specviz.models.heads.published import read
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET
from specviz.models.hub.published import open_repository
from specviz.prompts import prompts


@pytest.mark.model
def test_as_it_ships_it_is_left_alone(tmp_path):
    texts = prompts("calibration")[:1]
    opened = open_target(DEFAULT_TEXT_TARGET, texts[0], 40)
    loaded, target = opened.loaded, opened.target
    head, fit = load_heads("eagle3", None, loaded, target).as_head("eagle3"), fit_of(loaded.name, target)
    answers = list(passages(DEFAULT_TEXT_TARGET, texts, 40, required_layers(head.config.taps, 30, 2)))
    write_head(head, tmp_path / "head", "flat", "someone/model")
    made = read("eagle3", open_repository(str(tmp_path / "head")), fit)
    verdict = judge(Reading(made), answers, fit, 5, 100000.0, rounds=1)
    assert not verdict.steps and "is read correctly" in advice(verdict)
