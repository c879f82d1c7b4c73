"""A number that was measured is stated once, in ``assets/results.json``: cards and RESULTS.md quote it."""

import json
import re
import tomllib
from decimal import Decimal
from pathlib import Path

import pytest

from specviz.methods import results
from specviz.methods.registry import all_methods

TEXTS = {"differs", "look_at", "summary", "bound"}


def written():
    """Every text of every card as its file has it: method, field, text."""
    return [
        (name, field, text)
        for file in Path(results.__file__).parent.rglob("*.toml")
        for name, table in tomllib.loads(file.read_text("utf-8")).items()
        for field, text in table.items()
        if field in TEXTS
    ]


def test_no_card_states_a_number_of_ours():
    assert {name for name, _, _ in written()} == set(all_methods())
    assert [entry for entry in written() if re.search(r"\d\.\d", entry[2])] == []


def test_every_key_of_a_card_is_filled_with_a_figure():
    keys = {key for _, field, text in written() if field == "differs" for key in re.findall(r"\{(.*?)\}", text)}
    assert len(keys) > 100 and all(re.search(r"\d", results.filled(f"{{{key}}}")) for key in keys)
    shown = [method.look_at + method.differs + method.claim for method in all_methods().values()]
    assert not [text for text in shown if "{" in text or "}" in text]
    assert "τ is 3.68 at temperature 0" in all_methods()["eagle3"].differs


@pytest.mark.parametrize("key", ["nothing.eagle3.all", "acceptance.nothing.all", "acceptance.eagle3.nothing"])
def test_a_key_that_is_not_there_is_named(key):
    with pytest.raises(ValueError, match=rf"no figure {{{key}}}.*nothing"):
        results.filled(f"τ is {{{key}}}")


def test_figures_keep_their_digits_and_carry_their_unit():
    columns = {"what": ["what", ""], "value": ["measured", ""], "speed": ["speed-up", "×"], "unit": ["", ""]}
    rows = {"one": ["a row", Decimal("-3.30"), 2, "ms"], "two": ["another", 38927233, None, None]}
    table = results.Table("", "", "", "", "", columns, rows)
    assert [table.figure("one", column) for column in ("what", "value", "speed")] == ["a row", "−3.30 ms", "2×"]
    assert [table.figure("two", column) for column in ("value", "speed")] == ["38 927 233", ""]


def test_every_table_says_how_where_and_when():
    machines = json.loads(results.FILE.read_text("utf-8"))["machines"]
    for key, table in results.tables().items():
        assert table.says.endswith(".") and table.command and table.machine in machines, key
        assert re.fullmatch(r"2026-\d\d-\d\d(/\d\d)?", table.date), key
        assert all(len(cells) == len(table.columns) for cells in table.rows.values()), key
        assert all(len(column) == 2 for column in table.columns.values()), key
