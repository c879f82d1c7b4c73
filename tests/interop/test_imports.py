"""Files of other engines as traces: what is in them is drawn, what is not read is named."""

import json

import pytest

from specviz.__main__ import main
from specviz.errors import BadInput
from specviz.interop import responses
from specviz.trace import store
from tests.support.fakes.chat_server import WORDS, entry


def response(accepted, drafted, words=10, **more):
    """A whole answer of vLLM's."""
    content = [entry(WORDS[number], number, ids=False) for number in range(words)]
    choice = {"message": {"content": "".join(WORDS[:words])}, "finish_reason": "stop", "logprobs": {"content": content}}
    counts = {"per_step_accepted": accepted, "per_step_drafted": drafted}
    return {
        "model": "tiny", "choices": [{**choice, "token_ids": list(range(100, 100 + words))}], "usage": {"prompt_tokens": 5},
        "metrics": {"speculative_decoding": counts}, **more,
    }  # fmt: skip


def written(folder, told, lines=False):
    place = folder / "file.json"
    place.write_text("\n".join(map(json.dumps, told)) if lines else json.dumps(told))
    return place


def test_a_response_with_counts_is_rebuilt_round_by_round(tmp_path):
    found = responses.read_file(
        written(tmp_path, response([2, 0, 3], [3, 2, 4], words=9, kv_transfer_params=None, timings={"draft_n": 3}))
    )
    (trace,) = found.traces
    assert [len(step.emitted) for step in trace.steps] == [1, 3, 1, 4]
    assert [step.verified for step in trace.steps] == [0, 3, 2, 4] and trace.steps[0].position == 4
    assert [step.accepted for step in trace.steps] == [0, 2, 0, 3] and trace.steps[-1].cut is None, (
        "the last token is the target's"
    )
    assert found.unread == ("kv_transfer_params", "timings") and not found.notes
    assert trace.end.text == "".join(WORDS[:9])
    assert store.read(store.text(trace).encode()).end is not None


def test_an_end_inside_the_accepted_tokens_is_a_cut(tmp_path):
    (trace,) = responses.read_file(written(tmp_path, response([2, 4], [3, 4], words=7))).traces
    last = trace.steps[-1]
    assert (len(last.emitted), last.cut, last.bonus, last.verified, last.accepted) == (3, "eos", None, 4, 3)


def test_a_response_without_counts_says_so(tmp_path):
    told = response([], [])
    del told["metrics"]
    found = responses.read_file(written(tmp_path, told))
    assert "does not report its rounds" in found.notes[0] and len(found.traces[0].steps) == 10


def test_the_command_writes_a_file_for_each_answer(tmp_path):
    place = written(tmp_path, [response([2, 0, 3], [3, 2, 4], words=9), response([8], [8])])
    out = tmp_path / "x.spectrace.jsonl"
    assert main(["import", str(place), "--out", str(out)]) == 0
    assert len(store.read(out).steps) == 4 and len(store.read(tmp_path / "x-2.spectrace.jsonl").steps) == 2
    assert main(["import", str(place)]) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "only JSON objects"), ("{", "line 1: not JSON"), ('{"a": 1}', "it has a"), ("[1]", "only JSON objects"),
        ('{"choices": [{}, {}]}', "2 choices"), ('{"choices": [{"message": {"content": "x"}}]}', "contains no tokens"),
        (json.dumps(response([9], [3])), "not counts of accepted"), (json.dumps(response([1, 2], [3])), "must match"),
        (json.dumps(response([9, 9, 9], [9, 9, 9])), "response complete"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_of_these_is_refused_with_the_reason(text, why, tmp_path):
    place = tmp_path / "file.json"
    place.write_text(text)
    with pytest.raises(BadInput, match=why):
        responses.read_file(place)
    with pytest.raises(BadInput, match="cannot be read"):
        responses.read_file(tmp_path / "none")


def test_no_more_is_read_than_a_file_may_have(monkeypatch):
    monkeypatch.setattr(responses, "MOST_BYTES", 1 << 20)
    with pytest.raises(BadInput, match="more than 1 MB"):
        responses.read_file("/dev/zero")


def test_a_number_in_a_file_takes_no_memory(tmp_path):
    told = response([2, 0, 3], [3, 2, 4], words=9, usage={"prompt_tokens": 40_000_000})
    (trace,) = responses.read_file(written(tmp_path, told)).traces
    assert trace.steps[0].position == 40_000_000 - 1
    with pytest.raises(BadInput, match="usage.prompt_tokens: expected `int` <= 50000000"):
        responses.read_file(written(tmp_path, told | {"usage": {"prompt_tokens": 300_000_000}}))


def test_what_is_beyond_the_most_traces_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(responses, "MOST_TRACES", 2)
    found = responses.read_file(written(tmp_path, [response([2, 0, 3], [3, 2, 4], words=9)] * 3))
    assert len(found.traces) == 2 and "Only the first 2 of 3 responses were read." in found.notes
