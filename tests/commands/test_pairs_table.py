"""The table of published pairs: every system is in it, and every command is one that this project takes."""

import re
import shlex
from pathlib import Path

import pytest

from specviz.commands import run
from specviz.commands.console import parser
from specviz.methods.registry import all_methods
from specviz.models.heads.published import MTP_FAMILIES
from specviz.models.hub.catalog import resolve
from specviz.models.hub.pairs import MTP, PAIRS

FOLDERS = {pair.target for pair in PAIRS if pair.own is not None}
"""Targets that are put together of several repositories, as `pairs` tells."""
TABLE = (Path(__file__).parents[2] / ".github" / "PAIRS.md").read_text(encoding="utf-8")
ROWS = {name: method.pair for name, method in all_methods().items() if method.pair}
COMMANDS = [(name, one) for name, said in ROWS.items() for one in re.findall(r"`python -m specviz run ([^`]+)`", said)]


def test_a_row_gives_a_command_or_says_what_is_missing():
    assert len(ROWS) >= 18
    assert all("python -m specviz run" in said or re.search("ot supported|know of no", said) for said in ROWS.values())


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_a_command_names_its_method_a_target_and_heads_that_are_read_for_it(name, command):
    request = run.request_of(parser().parse_args(["run", *shlex.split(command)]))
    assert request.method == name and (request.target in FOLDERS or resolve(request.target))
    heads = [one for one in PAIRS if request.draft in (one.heads, f"{one.heads.split('/')[1]}-safetensors")]
    if request.draft and (heads or "eagle" in request.draft.lower()):
        kind = {"eagle2": "eagle2", "dream": "dream", "lantern_pp": "lantern_pp", "dflash": "dflash", "dspark": "dspark"}.get(
            name, "eagle3"
        )
        assert [(one.target, one.method) for one in heads] == [(request.target, kind)]
    elif request.draft:
        several = request.draft.split(",")
        assert all(resolve(one) for one in several) and (all_methods()[name].needs_draft or name == "not_a_bandit")


def test_models_that_draft_for_themselves_are_named_twice_and_listed():
    section = TABLE.split("## Targets that draft for themselves")[1].split("\n## ")[0]
    (command,) = re.findall(r"`python -m specviz run ([^`]+)`", section)
    request = run.request_of(parser().parse_args(["run", *shlex.split(command)]))
    assert request.target == request.draft and (request.target, request.method) in {
        (pair.target, pair.method) for pair in PAIRS if pair.layout == MTP
    }
    read = set(re.findall(r"^\| (`\w+`(?:, `\w+`)*)[^|]*\| (?:`python|Read)", section, re.M))
    assert {name for names in read for name in re.findall(r"`(\w+)`", names)} == {
        kind.removesuffix("_text") for kind in MTP_FAMILIES
    }
