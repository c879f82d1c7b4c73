"""The command line's manners: one sentence for every error, a status that says whose fault it was, quiet pipes."""

import subprocess
import sys

import pytest

from specviz.__main__ import main
from tests.support.fakes.commands import ROOT, RUN, breaking, one_sentence, put_fake


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "COMMAND"),
        (("run", "--method", "telepathy", "--prompt", "x"), "There is no method 'telepathy'; choose one of: autoregressive,"),
        ((*RUN, "--out", "a" * 300), "cannot be written to"),
        ((*RUN, "--picture", "b" * 300), "cannot be written to"),
        (("dance",), "invalid choice: 'dance'"),
        (("run", "--method", "stand"), "--prompt --prompt-file is required"),
        ((*RUN, "--prompt-file", "x"), "not allowed with"),
        ((*RUN, "--seed", "x"), "invalid int value: 'x'"),
        ((*RUN, "--dtype", "int3"), "invalid choice: 'int3'"),
        ((*RUN, "--param", "nodes"), "--param nodes does not have the form name=value"),
        ((*RUN, "--param", "a=1", "--param", "a=2"), "--param a is given twice"),
        ((*RUN, "--out", "no/such/folder/x.jsonl"), "is not a writable folder"),
        ((*RUN, "--param", "nodes=1"), "Token Recycling has no parameter 'nodes'; its parameters are: tree, keep."),
        ((*RUN, "--max-new-tokens", "0"), "max_new_tokens is 0"),
        (("run", "--method", "stand", "--prompt", " "), "The prompt is empty"),
        (("run", "--method", "stand", "--prompt-file", "no.txt"), "The prompt file no.txt cannot be read"),
        (("validate", "no.jsonl"), "cannot be read"),
        (("export", "no.jsonl", "--to", "html", "--out", "x"), "cannot be read"),
        (("export", "x", "--to", "pdf", "--out", "x"), "invalid choice: 'pdf'"),
        (("fetch", "no such model"), "There is no model 'no such model'"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(given, words, monkeypatch, capsys):
    made = put_fake(monkeypatch)
    assert main(list(given)) == 2
    said = capsys.readouterr()
    assert words in said.err and one_sentence(said.err), said.err
    assert said.out == "" and made.asked is None, "nothing was started"


# What is our fault: status 1, the error's type, and how to report it


def test_a_fault_of_ours_names_its_type_and_asks_for_a_report(capsys, monkeypatch):
    put_fake(monkeypatch, events=breaking(ZeroDivisionError("float division by zero\nand more")))
    assert main([*RUN, "--json"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "ZeroDivisionError: float division by zero and more" in error and "please report" in error
    monkeypatch.setenv("SPECVIZ_DEBUG", "1")
    assert main([*RUN, "--json"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_broken_pipe_is_quiet():
    started = [sys.executable, "-m", "specviz", "methods"]
    with subprocess.Popen(started, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


@pytest.mark.parametrize(
    ("asked", "heavy"),
    [
        ("import specviz.trace.schema", {"specviz.viewer"}),
        ("import specviz; specviz.figures", {"torch", "gradio", "transformers"}),
        ("from specviz.models.hub.catalog import entries; entries()", {"torch"}),
        ("from specviz.training import recipes; recipes()", {"torch"}),
    ],
)
def test_what_is_asked_for_brings_nothing_heavy_along(asked, heavy):
    code = f"import sys; {asked}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
