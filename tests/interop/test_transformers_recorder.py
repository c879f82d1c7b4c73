"""What ``specviz.record`` notes of transformers' own generate, and that it changes nothing."""

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

import specviz
from specviz.errors import BadInput
from specviz.interop.transformers_recorder import PLAIN
from specviz.trace import store
from specviz.trace.schema import ACCEPTED, REJECTED, SKIPPED
from tests.support.tiny.text import perturbed, tiny_llama

PROMPT = [5, 9, 2, 7, 5, 9, 2, 7, 5, 9]


def model():
    return tiny_llama(dtype=torch.float32)


def written(target, **asked):
    torch.manual_seed(11)
    ids = torch.tensor([PROMPT])
    settings = {"max_new_tokens": 24, "do_sample": False, **asked}
    return target.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(PROMPT) :].tolist()


def assistant(target, amount=0.02):
    helper = perturbed(target, amount)
    helper.generation_config.num_assistant_tokens = 5
    helper.generation_config.num_assistant_tokens_schedule = "constant"
    helper.generation_config.assistant_confidence_threshold = 0.0
    return helper


def checked(trace, ids):
    """The trace, after what holds of each."""
    assert list(trace.end.output_ids) == ids
    assert [token for step in trace.steps for token in step.emitted] == ids
    text = store.text(trace)
    assert store.text(store.read(text.encode())) == text
    return trace


@pytest.mark.slow
@pytest.mark.parametrize("how", ["assistant", "lookup", "plain"])
@pytest.mark.parametrize("sampled", [False, True])
def test_the_text_is_the_same_with_and_without(how, sampled):
    target = model()
    asked = {"do_sample": sampled, **({"temperature": 0.8, "top_k": 20} if sampled else {})}
    if how == "assistant":
        asked["assistant_model"] = assistant(target)
    if how == "lookup":
        asked["prompt_lookup_num_tokens"] = 4
    without = written(target, **asked)
    with specviz.record(target) as recording:
        ids = written(target, **asked)
    assert ids == without == written(target, **asked)
    trace = checked(recording.trace, ids)
    assert trace.run.sampling.temperature == (0.8 if sampled else 0.0)
    rules = {"assistant": {"ratio"} if sampled else {"greedy"}, "lookup": {"match"} if sampled else {"greedy"}, "plain": {"none"}}
    assert {step.rule for step in trace.steps} - {"none"} == rules[how] - {"none"}
    assert all(step.time.verify > 0 for step in trace.steps)
    assert (trace.run.method == PLAIN) == (how == "plain")


def test_a_greedy_step_says_what_was_drafted_and_why_it_was_kept():
    target = model()
    with specviz.record(target) as recording:
        written(target, assistant_model=assistant(target))
    trace = recording.trace
    kinds = {node.status for step in trace.steps for node in step.nodes[1:]}
    assert {ACCEPTED, REJECTED} <= kinds <= {ACCEPTED, REJECTED, SKIPPED}
    context = list(PROMPT)
    for step in trace.steps:
        for depth, node in enumerate(step.nodes[1 : len(step.path) + 2]):
            with torch.inference_mode():
                logits = target(torch.tensor([context + [one.token for one in step.nodes[1 : depth + 1]]])).logits[0, -1]
            p = logits.softmax(-1)
            assert node.p == pytest.approx(float(p[node.token]), abs=1e-5) and node.q is not None
            assert (int(logits.argmax()) == node.token) == (node.status == ACCEPTED)
            assert step.rows[depth].top[0].token == int(logits.argmax())
        context += list(step.emitted)


def test_a_plain_run_of_the_prompt_is_the_baseline_of_the_others():
    target = model()
    with specviz.record(target) as recording:
        plain = written(target)
        assisted = written(target, assistant_model=assistant(target))
    assert plain == assisted
    end = checked(recording.trace, assisted).end
    assert end.baseline.equal
    assert len(end.baseline.token_ns) == 24 and end.metrics["speedup"] > 0
    assert recording.traces[0].end.baseline is None
    with specviz.record(target) as recording:
        written(target, max_new_tokens=12)
        written(target, assistant_model=assistant(target))
    assert recording.trace.end.baseline is None, "a shorter run is no baseline"


@pytest.mark.spread(1)
@pytest.mark.parametrize("plain_first", [True, False])
def test_a_divergence_says_how_far_apart_the_two_best_logits_are(plain_first):
    """Sampled drafts draw other numbers than a plain run, so the two part."""
    target, sampled = model(), {"do_sample": True, "temperature": 1.5}
    settings = [{}, {"assistant_model": assistant(target)}]
    with specviz.record(target) as recording:
        outputs = [written(target, **sampled, **more) for more in (settings if plain_first else settings[::-1])]
    plain = outputs[0 if plain_first else 1]
    end = checked(recording.traces[1 if plain_first else 0], outputs[1 if plain_first else 0]).end
    assert (parts := end.baseline.first_divergence) is not None
    with torch.inference_mode():
        best = target(torch.tensor([PROMPT + plain[: parts.position]])).logits[0, -1].topk(2).values
    assert parts.gap == pytest.approx(float(best[0] - best[1]), abs=1e-5)


def test_an_end_inside_an_accepted_path_is_a_cut():
    target = model()
    text = written(target)
    first = {token: text.index(token) for token in reversed(text)}
    for token, place in first.items():
        with specviz.record(target) as recording:
            ids = written(target, assistant_model=assistant(target, 0.0), eos_token_id=token)
        assert ids == text[: place + 1]
        trace = checked(recording.trace, ids)
        assert trace.end.reason == "eos"
        last = trace.steps[-1]
        assert last.cut == (None if last.bonus is not None else "eos")
    assert any(place % 6 < 5 for place in first.values())


class Ten(StoppingCriteria):
    """Ends a text after ten tokens."""

    def __call__(self, input_ids, scores, **more):
        return torch.tensor([input_ids.shape[1] >= len(PROMPT) + 10])


@pytest.mark.spread(3)
@pytest.mark.parametrize("how", ["plain", "lookup"])
@pytest.mark.parametrize(
    ("asked", "reason", "words"),
    [
        ({"stopping_criteria": StoppingCriteriaList([Ten()])}, "cancelled", "A stopping criterion of generate ended it."),
        ({"max_time": 1e-9}, "time_limit", "generate had max_time=1e-09 s."),
        ({}, "budget", ""),
    ],
)  # fmt: skip
def test_what_ended_a_run_is_said(how, asked, reason, words):
    target = model()
    asked = {**asked, "eos_token_id": None, **({"prompt_lookup_num_tokens": 4} if how == "lookup" else {})}
    with specviz.record(target) as recording:
        ids = written(target, **asked)
    end = checked(recording.trace, ids).end
    assert (end.reason, end.message) == (reason, words)
    assert (len(ids) < 24) == (reason != "budget")


def test_what_no_trace_can_hold_is_generated_all_the_same():
    target = model()
    ids = torch.tensor([PROMPT, PROMPT])
    with specviz.record(target) as recording, pytest.warns(UserWarning, match="one prompt of token ids at a time"):
        output = target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
    assert output.shape == (2, len(PROMPT) + 4)
    with pytest.raises(BadInput, match="Nothing was recorded"):
        _ = recording.trace


def test_nothing_stays_on_the_model_even_after_a_fault():
    target = model()
    before = set(vars(target))
    with pytest.raises(ValueError), specviz.record(target):
        written(target, assistant_model=assistant(target), num_beams=2, temperature=-1.0, do_sample=True)
    assert set(vars(target)) == before and not target._forward_hooks and not target._forward_pre_hooks
    with pytest.raises(BadInput, match="transformers model"), specviz.record(object()):
        pass


def test_a_model_that_drafts_for_itself_is_recorded_once():
    target = model()
    without = written(target, assistant_early_exit=1)
    with specviz.record(target) as recording:
        ids = written(target, assistant_early_exit=1)
    assert ids == without
    trace = checked(recording.trace, ids)
    assert len(recording.traces) == 1 and trace.run.title == "Early exit in transformers" and not trace.run.draft


@pytest.mark.model
def test_tokens_have_their_text_where_a_tokenizer_is_given():
    from specviz.models.text.load import load_causal_lm

    loaded = load_causal_lm("smollm2-135m-instruct", "float32", "cpu")
    tokenizer = loaded.text.tokenizer
    ids = torch.tensor([loaded.text.encode("Say the days of the week, twice.")])
    with specviz.record(loaded.model, tokenizer) as recording:
        output = loaded.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, prompt_lookup_num_tokens=4
        )
    trace = checked(recording.trace, output[0, ids.shape[1] :].tolist())
    assert trace.end.text.startswith(tokenizer.decode(output[0, ids.shape[1] : -1], skip_special_tokens=True)[:20])
    assert "<section" in recording._repr_html_() or "iframe" in recording._repr_html_()
