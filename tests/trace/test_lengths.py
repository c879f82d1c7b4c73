"""Curves of tokens a pass by length: kept as measured, missing where nobody measured, refused where damaged."""

import json

import pytest

from specviz.errors import BadInput
from specviz.trace.lengths import measured
from tests.support.traces.length_curves import MADE_UP


def test_curves_come_back_from_their_target_s_file(tmp_path):
    assert measured(tmp_path / "none") == []
    other = MADE_UP.replace(target="a/folder of mine")
    assert MADE_UP.save(tmp_path) == tmp_path / "tiny.json"
    assert other.save(tmp_path).name == "folder of mine.json"
    assert measured(tmp_path) == [other, MADE_UP]


def test_curves_of_two_days_are_dated_with_both(tmp_path):
    """Measuring a method again keeps the others' curves, which are of the earlier day."""
    MADE_UP.save(tmp_path)
    for day, date in (("2026-01-02", "2026-01-02"), ("2026-03-04", "2026-01-02 to 2026-03-04"),
                      ("2026-05-06", "2026-01-02 to 2026-05-06")):  # fmt: skip
        MADE_UP.replace(date=day, curves=MADE_UP.curves[:1]).save(tmp_path)
        (kept,) = measured(tmp_path)
        assert (kept.date, kept.curves) == (date, MADE_UP.curves)
    MADE_UP.replace(date="2026-07-08").save(tmp_path)
    assert measured(tmp_path)[0].date == "2026-07-08", "all of them were measured again"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lengths": [64, 32, 1024, 4096]}, "ascend"),
        ({"lengths": [64]}, "$.lengths`"),
        ({"lengths": ["a", "b"]}, "$.lengths["),
        ({"curves": []}, "$.curves`"),
        ({"curves": [{"method": "owl", "kind": "songs", "tau": [1, 1, 1, 1]}]}, "].kind`"),
        ({"curves": [{"method": "owl", "kind": "copies", "tau": [1, 1, 1]}]}, "not have one τ per length"),
        ({"curves": [{"method": "owl", "kind": "copies", "tau": [1, 1, 0.5, 1]}]}, "].tau["),
        ({"date": ""}, "$.date`"),
        ({"curves": 3}, "cannot be read"),
    ],
)
def test_a_damaged_file_says_how_to_make_it_again(tmp_path, change, said):
    path = MADE_UP.save(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), encoding="utf-8")
    with pytest.raises(BadInput, match="bench --suite length --save") as caught:
        measured(tmp_path)
    assert said in str(caught.value) and "tiny.json" in str(caught.value)
