"""Prompts in files and on the input: whatever an editor or a console makes of them, the text is the same."""

import codecs
import io
import sys

import pytest

from specviz.commands.console import read_prompts, read_text
from specviz.errors import BadInput


def _input(monkeypatch, content):
    """The input of a console whose locale lets any byte through as half of a surrogate pair."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8", "surrogateescape"))


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_marks_and_line_ends_are_no_part_of_a_prompt(mark, end, tmp_path, monkeypatch):
    content, file = mark + f"na\u00efve{end}two{end}".encode(), tmp_path / "prompt.txt"
    file.write_bytes(content)
    _input(monkeypatch, content)
    assert read_text(file) == read_text(str(file)) == read_text("-") == "na\u00efve\ntwo\n"
    assert read_prompts(file, 2) == ("na\u00efve", "two")


@pytest.mark.parametrize("content", [b"caf\xe9", "caf\u00e9".encode("utf-16")])
def test_other_encodings_are_refused_alike(content, tmp_path, monkeypatch):
    (tmp_path / "prompt.txt").write_bytes(content)
    _input(monkeypatch, content)
    for name in (tmp_path / "prompt.txt", "-"):
        with pytest.raises(BadInput, match=r"is not UTF-8 text \(byte \d\); save it as UTF-8"):
            read_text(name)
