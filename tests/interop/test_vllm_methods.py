"""Which methods vLLM runs, with which settings, and what a running server tells of its own."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from specviz.__main__ import main
from specviz.errors import BadInput
from specviz.interop.server import identify
from specviz.interop.vllm_methods import CLASS, REASONS, SUFFIX_DEPTH, Known, compared, expressed, known
from specviz.interop.vllm_plugin.labels import DRAFTER, INFO
from specviz.methods.registry import all_methods
from specviz.pipeline.request import Request
from specviz.trace import store
from tests.support.fakes.chat_server import WORDS, Script, piece, serving

CASES = tomllib.loads(Path(__file__).with_name("vllm_methods.toml").read_text("utf-8"))
RUN = {case["method"] for case in CASES["runs"]}
CHAIN = {"width": 1, "depth": 4, "nodes": 4}
NGRAM = {"partial": True, "copied": 5}
LINE = INFO + '{{SPECVIZ_VLLM_DRAFTER="",method="{}",model="{}",num_speculative_tokens="{}",prompt_lookup_max="3",'
LINE += 'prompt_lookup_min="1"}} 1.0\n'


def serving_of(method, **more):
    return expressed(Request(method, "Why?", **more))


def test_every_method_runs_there_or_says_why_not():
    others = set(all_methods()) - RUN
    assert set(REASONS) <= others
    for name in others:
        with pytest.raises(BadInput, match="does not run on vLLM: "):
            serving_of(name)


@pytest.mark.parametrize("case", CASES["runs"])
def test_a_method_keeps_its_parameters(case):
    serving = serving_of(case["method"], **case.get("asked", {}))
    assert (serving.speculative or {}) == case["speculative"]
    assert ("--" in serving.command().partition(" vllm serve ")[2]) == bool(case["speculative"])
    drawn = bool(case["speculative"]) and "temperature" in case.get("asked", {})
    assert any("different random numbers" in word for word in serving.differs) == drawn


@pytest.mark.parametrize("case", CASES["refused"])
def test_what_vllm_has_no_setting_for_is_refused(case):
    with pytest.raises(BadInput, match=case["why"]):
        serving_of(case["method"], parameters=case.get("parameters", {}))


def test_the_depth_is_that_of_our_trees():
    from specviz.drafting.memory.suffix_tree import DEPTH

    assert SUFFIX_DEPTH == DEPTH


def test_what_vllms_own_lookup_cannot_do_is_done_by_ours_there():
    serving = serving_of("prompt_lookup", parameters={"occurrence": "latest", "copied": 6})
    assert serving.speculative == {"method": "custom_class", "model": CLASS, "num_speculative_tokens": 6}
    own = json.loads(serving.environment[DRAFTER])
    assert own["method"] == "prompt_lookup" and own["parameters"]["occurrence"] == "latest"
    words = shlex.split(serving.command())
    assert f"{DRAFTER}={serving.environment[DRAFTER]}" in words, "what is printed can be pasted"
    assert json.loads(words[words.index("--speculative-config") + 1]) == serving.speculative


def test_a_server_is_known_by_the_plugin_or_by_its_counters():
    with serving(Script([], metrics=[LINE.format("ngram", "", 5)])) as url:
        found = known(identify(url))
    assert found.source == "the plugin" and found.settings["num_speculative_tokens"] == "5"
    match = compared(serving_of("prompt_lookup", parameters=NGRAM), found)
    assert len(match.same) == 4 and not match.different and not match.unknown
    assert compared(serving_of("prompt_lookup", parameters=NGRAM | {"copied": 7}), found).different == (
        "num_speculative_tokens is 5 there and 7 here",
    )
    told = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{}"}} 0\n'
    with serving(Script([], metrics=["".join(told.format(place) for place in range(5))])) as url:
        found = known(identify(url))
    match = compared(serving_of("prompt_lookup", parameters=NGRAM), found)
    assert match.same == ("num_speculative_tokens 5",) and "method" in match.unknown and not match.different
    found = Known({"method": "eagle3", "model": "/heads/mine", "num_speculative_tokens": "4"}, True)
    match = compared(serving_of("eagle3", parameters=CHAIN), found)
    assert match.unknown == ("whether mine holds the same weights as eagle3-head",) and not match.different


def test_our_own_drafter_there_is_known_by_its_parameters_defaults_and_all():
    here = serving_of("prompt_lookup", parameters={"occurrence": "latest", "copied": 6})
    told = {"method": "prompt_lookup", "parameters": {"copied": 6, "occurrence": "latest"}}
    settings = {name: str(value) for name, value in here.speculative.items()}
    assert not compared(here, Known(settings | {DRAFTER: json.dumps(told)}, True)).different
    told["parameters"] = {"copied": 6, "occurrence": "latest", "shortest": 2}
    assert compared(here, Known(settings | {DRAFTER: json.dumps(told)}, True)).different


def test_a_server_without_speculation_is_no_server_for_a_method_that_drafts():
    assert compared(serving_of("eagle3", parameters=CHAIN), Known({}, False)).different == ("it does not speculate",)
    assert compared(serving_of("autoregressive"), Known({"method": "ngram"}, True)).different == ("it speculates",)
    assert compared(serving_of("autoregressive"), Known({}, False)).same == ("it does not speculate",)
    assert compared(serving_of("autoregressive"), Known()).unknown == ("whether it speculates",)


def test_the_command_refuses_a_server_that_does_something_else(capsys):
    asked = ["run", "--method", "prompt_lookup", "--param", "partial=true", "--param", "copied=5", "--prompt", "Why?"]
    with serving(Script([piece([0, 1], "stop")], metrics=[LINE.format("suffix", "", 5)])) as url:
        assert main([*asked, "--engine", "vllm", "--server", url]) != 0
    told = capsys.readouterr()
    assert "method is suffix there and ngram here" in told.err and "vllm serve" in told.out
    assert main([*asked, "--engine", "vllm"]) == 0 and '"ngram"' in capsys.readouterr().out
    assert main([*asked, "--engine", "vllm", "--dtype", "bfloat16"]) != 0 and "--dtype has no effect" in capsys.readouterr().err
    assert main([*asked, "--server", "http://127.0.0.1:9"]) != 0 and "--engine vllm" in capsys.readouterr().err


def test_the_servers_run_has_the_methods_name_and_what_is_not_known_of_it(tmp_path):
    out = tmp_path / "there.spectrace.jsonl"
    asked = ["run", "--method", "prompt_lookup", "--param", "partial=true", "--param", "copied=5", "--prompt", "Why?"]
    with serving(Script([piece([0]), piece([1, 2, 3]), piece([4, 5], "stop")])) as url:
        assert main([*asked, "--engine", "vllm", "--server", url, "--out", str(out)]) == 0
    trace = store.read(out)
    assert trace.run.title == "Prompt lookup in vLLM" and trace.run.parameters["copied"] == 5
    assert any("does not report method, " in word for word in trace.run.warnings)
    assert trace.end.text == "".join(WORDS[:6])
