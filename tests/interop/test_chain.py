"""Steps of other engines: what a trace could not hold is cut or refused where the step is made."""

import pytest

from specviz.errors import BadInput
from specviz.interop import chain
from specviz.interop.chain import ChainRound, ChainSteps, NumberedTokens, run_of
from specviz.trace import store
from specviz.trace.schema import MAX_STEPS, Sampling, Trace
from specviz.trace.validate import MAX_DEPTH
from tests.support.traces.samples import sample_trace

NAMES = {"target": "m", "method": "vllm_ngram", "title": "N-gram in vLLM", "sampling": Sampling(1e9)}


class Long(NumberedTokens):
    """Texts longer than a token's may be."""

    def of(self, token):
        return "\x00é" * 5000


def written(steps, **run):
    """The trace as a reader finds it in its file."""
    trace = Trace(run_of(**{**NAMES, **run}), tuple(steps.steps), steps.end("budget", "x" * 9999))
    return store.read(store.text(trace).encode())


def test_numbers_out_of_bounds_and_long_texts_fit_a_trace():
    steps = ChainSteps(Long(), 5, 9)
    nan = float("nan")
    steps.add(ChainRound([1, 2], [1, 3], q=[2.0, nan], p=[-1.0, None], bonus_p=1.5, top=[[(1, 1.0000001)]], untold=9))
    steps.add(ChainRound([], [4], padded=10**9))
    step = written(steps).steps[0]
    assert [(node.q, node.p) for node in step.nodes[1:]] == [(1.0, 0.0), (None, None)] and step.verified == 11
    assert len(step.nodes[1].text) == 4096 and step.bonus.p == 1.0


def test_a_run_of_any_length_fits_a_trace(monkeypatch):
    monkeypatch.setattr(chain, "MOST_LETTERS", 1 << 20)
    steps = ChainSteps(Long(), 5, 9)
    for _ in range(60):
        steps.add(ChainRound([], [4]))
    names = {"target": "t" * 9999, "machine": "m" * 9999, "title": "é" * 999, "prompt": "\x01é" * 400_000}
    trace = written(steps, **names, prompt_pieces=("é\x01" * 999,) * 900)
    assert len(trace.run.target) == 1024 and trace.run.prompt and trace.end.text


@pytest.mark.parametrize(
    ("round_", "words"),
    [
        (ChainRound([], []), "emits 0 tokens"),
        (ChainRound([4] * (MAX_DEPTH + 1), [4]), f"drafts of {MAX_DEPTH}"), (ChainRound([], [4] * 50_000), "emits 50000 tokens"),
    ],
)  # fmt: skip
def test_what_no_trace_can_hold_is_refused(round_, words):
    with pytest.raises(BadInput, match=words):
        ChainSteps(NumberedTokens(), 5, 9).add(round_)


def test_lengths_are_bounded():
    steps = ChainSteps(NumberedTokens(), 5, 9)
    assert steps.room(chain.MOST_TOKENS) and not steps.room(chain.MOST_TOKENS + 1)
    steps.steps.extend([sample_trace(1).steps[0]] * MAX_STEPS)
    assert not steps.room(1)


def test_a_step_that_a_line_cannot_hold_is_refused():
    with pytest.raises(BadInput, match="more than 120000 characters"):
        ChainSteps(Long(), 5, 9).add(ChainRound([1] * 20, [1] * 21))
