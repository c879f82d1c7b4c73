"""A head that is written in another layout reads back as the same head."""

import json

import pytest

from specviz.__main__ import main
from specviz.errors import ModelUnavailable
from specviz.models.heads.head_writer import write_head
from specviz.models.heads.published import read
from specviz.models.hub.published import LAYOUTS, layout_of, open_repository
from tests.support.referee.speculators_heads import DEPTH
from tests.support.referee.stored_heads import FIT, HEADS, furthest, head_of, stored
from tests.support.tiny.published_heads import NARROW, narrow_tensors, opened, target

LAYOUTS = {"speculators": LAYOUTS["speculators"], "flat": LAYOUTS["eagle3"]}
PLAIN_ROTARY = [name for name in HEADS if name not in ("llama3 rotary", "yarn")]


def back(folder, layout, fit):
    repository = open_repository(str(folder))
    assert layout_of(repository) is LAYOUTS[layout]
    head = read("eagle3", repository, fit)
    return head


@pytest.mark.spread(7)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PLAIN_ROTARY)
def test_every_head_reads_back_as_itself(tmp_path, name, layout):
    head = head_of(stored(tmp_path / "first", name))
    if layout == "flat" and head.config.layers > 1:
        with pytest.raises(ModelUnavailable, match="does not fit the flat layout"):
            write_head(head, tmp_path / "second", layout, "someone/model")
        return
    again = back(write_head(head, tmp_path / "second", layout, "someone/model", own_embedding=True), layout, FIT)
    assert again.config == head.config
    assert furthest(again, name, 1 if "window" in name else DEPTH) < 1e-4


def test_what_a_layout_has_no_place_for_is_refused(tmp_path):
    for name in ("llama3 rotary", "yarn"):
        with pytest.raises(ModelUnavailable, match="computes with rates does not fit"):
            write_head(head_of(stored(tmp_path / name, name)), tmp_path / "out", "speculators", "someone/model")
    narrow = read("eagle", opened(tmp_path / "narrow", narrow_tensors(), NARROW), target())
    with pytest.raises(ModelUnavailable, match="EAGLE-1/2.* does not fit"):
        write_head(narrow, tmp_path / "out", "flat", "someone/model")
    assert not (tmp_path / "out").exists()


@pytest.mark.model
def test_the_command_writes_a_folder_once(tmp_path, capsys):
    folder = tmp_path / "out"
    assert main(["export-drafter", "eagle3", "--to", "speculators", "--out", str(folder)]) == 0
    assert "vllm serve HuggingFaceTB/SmolLM2-135M-Instruct" in capsys.readouterr().err
    config = json.loads((folder / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert main(["export-drafter", "eagle3", "--to", "flat", "--out", str(folder)]) == 2
    assert "is not empty" in capsys.readouterr().err
