"""Answers of running servers as traces: what each engine tells is drawn, and what it does not tell is not made up."""

from itertools import accumulate

import pytest

from specviz.__main__ import main
from specviz.engine.stop import Stop
from specviz.errors import BadInput
from specviz.interop.server import Answer, identify
from specviz.interop.server_counters import Counters, counters, read_counters, with_samples
from specviz.pipeline.request import Request
from specviz.trace import metrics, store
from specviz.trace.notes.models import CounterSample
from specviz.trace.schema import ACCEPTED, End, Run, Step
from tests.support.fakes.chat_server import WORDS, Script, piece, serving
from tests.support.traces.samples import sample_trace

DETAILED = {"speculative_decoding": {"per_step_accepted": [2, 0, 3], "per_step_drafted": [3, 2, 3],
            "num_accepted_draft_tokens": 5, "num_draft_tokens": 8, "num_spec_steps": 3}}  # fmt: skip
VLLM = [
    {"choices": [{"index": 0, "delta": {"role": "assistant"}}], "prompt_token_ids": [7, 8, 9]},
    piece([0]), piece([1, 2, 3]), piece([4]), piece([5, 6, 7, 8]), piece([9], "stop"),
    {"choices": [], "usage": {"prompt_tokens": 3}, "metrics": DETAILED},
]  # fmt: skip

COUNTS = """vllm:spec_decode_num_drafts_total{{e="0"}} {}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{e="0",position="0"}} {}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{e="0",position="1"}} {}
"""


def answered(script, **asked):
    """What an answer brought, and its trace with the end."""
    with serving(script) as url:
        answer = Answer(identify(url), Request("autoregressive", "Why is the sky blue?", **asked))
        events = list(answer.events())
    text = store.text(answer.trace)
    assert store.text(store.read(text.encode())) == text
    return events, answer.trace, answer.trace.end


def test_vllm_tells_each_draft_and_what_was_kept_of_it():
    script = Script(VLLM)
    events, trace, end = answered(script)
    assert isinstance(events[0], Run) and isinstance(events[-1], End)
    assert end.text == "".join(WORDS) and end.reason == "eos"
    # What is left out, a server takes from its own defaults or from the model's.
    settings = {name: script.asked[0][name] for name in ("top_p", "top_k", "min_p", "repetition_penalty")}
    assert settings == {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert script.asked[0]["return_token_ids"] and script.asked[0]["messages"][0]["content"] == "Why is the sky blue?"
    # One token from reading the prompt, two rounds that the server left out, then the rounds that it counts.
    assert [len(step.emitted) for step in trace.steps] == [1, 1, 1, 3, 1, 4]
    assert [step.verified for step in trace.steps] == [0, 0, 0, 3, 2, 3]
    assert [step.accepted for step in trace.steps] == [0, 0, 0, 2, 0, 3]
    assert [note.data["untold"] for step in trace.steps for note in step.notes] == [0, 0, 0, 1, 2, 0]
    # Three drafts, of which the rejected ones are counted and not named: two went past the first place, one past the third.
    assert metrics.accepted_by_depth(trace.steps) == pytest.approx([2 / 3, 1.0, 0.5])
    assert trace.steps[0].position == 2 and any("rounds without a draft (2)" in word for word in trace.run.warnings)
    node = trace.steps[3].nodes[1]
    assert (node.status, node.text) == (ACCEPTED, " blue") and node.p == pytest.approx(0.60653, abs=1e-4) and node.q is None


def test_counts_that_do_not_fit_the_text_are_left_aside_and_said_so():
    counts = {"per_step_accepted": [40, 0], "per_step_drafted": [40, 2]}
    script = Script([*VLLM[:6], {"choices": [], "metrics": {"speculative_decoding": counts}}])
    _, trace, _ = answered(script)
    assert [len(step.emitted) for step in trace.steps] == [1, 3, 1, 4, 2]
    assert any("counts were ignored" in word for word in trace.run.warnings)


def test_llama_cpp_counts_beside_each_token():
    def timed(number, drafted, kept, finish=None):
        return piece([number], finish, timings={"draft_n": drafted, "draft_n_accepted": kept})

    counts = [(0, 0), (0, 0), (3, 2), (3, 2), (3, 2), (3, 2), (7, 3), (7, 3), (9, 3), (9, 3)]
    script = Script([timed(number, *count) for number, count in enumerate(counts)], owner="llamacpp")
    _, trace, end = answered(script)
    assert [len(step.emitted) for step in trace.steps] == [1, 1, 3, 1, 2, 1, 1]
    assert [step.verified for step in trace.steps] == [0, 0, 3, 0, 4, 2, 0]
    assert sum(step.accepted for step in trace.steps) == 3 and script.asked[0]["timings_per_token"]
    assert script.asked[0]["repeat_penalty"] == 1.0 and script.asked[0]["top_k"] == -1
    assert "3 of 9 drafted tokens accepted" in end.message


def test_another_server_is_seen_by_its_arrivals_and_that_is_said():
    _, trace, end = answered(Script([piece([0, 1, 2]), piece([3]), piece([4, 5], "length")], owner="somebody"), temperature=0.7)
    assert [len(step.emitted) for step in trace.steps] == [3, 1, 2]
    assert any("does not mark rounds" in word for word in trace.run.warnings)
    assert end.reason == "budget"


def test_a_server_that_dies_leaves_a_readable_trace_and_a_sentence():
    events, trace, end = answered(Script(VLLM, breaks_after=4))
    assert end.reason == "error" and "broke off" in end.message
    assert end.text == "The sky is blue since" and len(events) == 5


def test_who_stops_keeps_what_came():
    cancel = Stop()
    with serving(Script(VLLM)) as url:
        answer = Answer(identify(url), Request("autoregressive", "Why?"), cancel)
        for event in answer.events():
            if isinstance(event, Step):
                cancel.set()
    assert answer.trace.end.reason == "cancelled" and len(answer.trace.steps) == 1


def test_what_is_wrong_is_said_with_a_way_out():
    with pytest.raises(BadInput, match="Is the server running"):
        identify("http://127.0.0.1:9")
    with serving(Script([], status=404)) as url, pytest.raises(BadInput, match="status 404, no such model"):
        list(Answer(identify(url), Request("autoregressive", "Why?")).events())
    with serving(Script([])) as url, pytest.raises(BadInput, match="without a token"):
        list(Answer(identify(url), Request("autoregressive", "Why?")).events())


def test_counters_are_read_and_subtracted():
    text = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4.0
"""
    found = read_counters(text)
    assert found == Counters(10, 30, 12, (8, 4)) and read_counters("") is None
    assert found.since(Counters(4, 10, 2, (2,))) == Counters(6, 20, 10, (6, 4))
    with serving(Script(VLLM, metrics=[text])) as url:
        assert counters(url) == found


def test_counters_are_sampled_while_tokens_come_and_stand_on_the_steps_of_their_time():
    counts = [COUNTS.format(*numbers) for numbers in ((10, 8, 4), (12, 9, 4), (12, 9, 4), (14, 11, 5))]
    script = Script([piece([0]), piece([1, 2, 3]), piece([4]), piece([5, 6], "stop")], metrics=counts, pause=0.2)
    events, trace, _ = answered(script)
    samples = [sample for step in trace.steps for note in step.notes for sample in note.data.get("samples", ())]
    assert [(sample["drafts"], sample["accepted"]) for sample in samples] == [(2, [1, 0]), (4, [3, 1])], "less what was before"
    ends = list(accumulate(step.time.total / 1e6 for step in trace.steps))
    for place, step in enumerate(trace.steps[:-1]):
        for note in step.notes:
            assert all(sample["ms"] <= ends[place] for sample in note.data["samples"])
    live = [note.type for event in events if isinstance(event, Step) for note in event.notes]
    assert "served_counters" in live, "whoever watches sees them as they come"


def test_the_command_prints_counters_and_the_ratio(tmp_path, capsys):
    counts = ["vllm:spec_decode_num_{}_total {}\n"] * 2
    before = "".join(counts[0].format(name, 0) for name in ("drafts", "draft_tokens", "accepted_tokens"))
    after = "".join(counts[0].format(name, n) for name, n in (("drafts", 4), ("draft_tokens", 12), ("accepted_tokens", 6)))
    out = tmp_path / "served.spectrace.jsonl"
    with serving(Script(VLLM, metrics=[before, after])) as url, serving(Script(VLLM)) as plain:
        status = main(["connect", url, "--prompt", "Why?", "--baseline", plain, "--rounds", "2", "--out", str(out)])
    printed = capsys.readouterr()
    assert status == 0 and "".join(WORDS) in printed.out
    assert "6 of 12 draft tokens accepted" in printed.err
    assert "prefill excluded (median of 2 pairs" in printed.out and "2 of 2 pairs have equal texts" in printed.out
    assert store.read(out).run.title == "Served by vLLM"


def test_an_answer_of_one_step_is_no_baseline_because_its_time_is_the_prefill(capsys):
    with serving(Script([piece([3], "stop")])) as url, serving(Script(VLLM)) as plain:
        assert main(["connect", url, "--prompt", "Why?", "--baseline", plain, "--rounds", "1"]) != 0
    assert "Ask for more tokens" in capsys.readouterr().err


def test_a_server_that_refuses_log_probabilities_is_asked_without():
    events = [{"choices": [{"delta": {"content": word}}]} for word in WORDS[:3]] + [piece([3], "stop")]
    script = Script(events, owner="somebody", refuses="logprobs")
    _, trace, end = answered(script)
    assert end.text == "".join(WORDS[:4]) and any("p is not known" in w for w in trace.run.warnings)
    assert ["logprobs" in asked for asked in script.asked] == [True, False]
    script = Script(events, owner="somebody")
    with serving(script) as url:
        assert main(["connect", url, "--prompt", "Why?", "--no-logprobs"]) == 0
    assert ["logprobs" in asked for asked in script.asked] == [False]


def test_a_missing_key_is_named_and_a_given_one_is_sent():
    with serving(Script(VLLM, key="sesame")) as url:
        with pytest.raises(BadInput, match="add --key"):
            identify(url)
        with pytest.raises(BadInput, match="refuses this key"):
            identify(url, "wrong")
        assert identify(url, "sesame").kind == "vllm"


def test_a_place_that_no_draft_has_takes_no_memory():
    text = COUNTS.format(1, 2, 3) + 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="99999999999"} 1\n'
    text += "vllm:spec_decode_num_drafts_total 1e999\nvllm:spec_decode_num_drafts_total 1.1.1\n" + "x" * 100_000
    assert read_counters(text) == Counters(1, 0, 0, (2, 3))


def test_a_long_silence_makes_notes_that_a_trace_can_hold():
    samples = [CounterSample(float(number), number, (1,) * 200) for number in range(2000)]
    found = with_samples(sample_trace(2), samples)
    assert store.read(store.text(found).encode()).steps[-1].notes[-1].data["samples"][-1]["drafts"] == 1999
