"""The arms and length suites: regrets from counts, texts as long as asked, and prompts that nobody was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specviz.bench import runner
from specviz.bench.kit.prompts import CALIBRATION, KINDS
from specviz.bench.suites import arms, length
from specviz.bench.suites.arms import Stream
from specviz.errors import BadInput, ModelUnavailable
from specviz.trace import lengths
from specviz.trace.schema import Note
from specviz.training.common.domains import DOMAINS, prompts


def stream(seen: tuple[float, ...] = (), **taus: float) -> Stream:
    made = Stream(noticed_after={"code": list(seen)} if seen else {})
    for subject, tau in taus.items():
        made.tokens[subject], made.passes[subject] = 100, round(100 / tau)
    return made


def test_regret_is_passes_for_a_hundred_tokens_against_the_best_arm_in_hindsight() -> None:
    fixed = {"code": stream(code=4.0, maths=1.0), "maths": stream(code=1.0, maths=2.0)}
    chosen = {
        "not_a_bandit": stream((2, 3, 9), code=2.5, maths=2.0),
        "bandit_ucb": stream(code=2.0, maths=1.0),
        "bandit_exp3": stream(code=1.0, maths=1.0),
    }
    found = {row.name: row for row in arms.rows(fixed, chosen, 0.0)}
    # Always code needs 125 passes for 200 tokens, 62.5 a hundred; the chooser 40 + 50, so 45: it beats every fixed arm.
    assert found["not_a_bandit: regret, T = 0"].value == pytest.approx(45 - 62.5)
    assert "against always code; against the best arm of each subject 7.5" in found["not_a_bandit: regret, T = 0"].detail
    assert found["not_a_bandit regrets less than bandit_ucb, T = 0"].value == pytest.approx(75 - 45)
    assert found["not_a_bandit regrets less than bandit_exp3, T = 0"].reached
    assert found["not_a_bandit: rounds until a change is seen, T = 0"].value == 3


def test_a_change_that_was_never_seen_counts_as_later_than_any_that_was() -> None:
    fixed = {"code": stream(code=4.0)}
    for unseen, median in (((), 3), ((inf,), 6), ((inf, inf), 9)):
        found = {row.name: row for row in arms.rows(fixed, {"not_a_bandit": stream((2, 3, 9, *unseen), code=2.5)}, 0.0)}
        row = found["not_a_bandit: rounds until a change is seen, T = 0"]
        assert row.value == median
        assert f"seen in 3 of {3 + len(unseen)} stretches: code 2, 3, 9{', never' * len(unseen)}" in row.detail
    found = {row.name: row for row in arms.rows(fixed, {"not_a_bandit": stream((2, inf, inf), code=2.5)}, 0.0)}
    assert found["not_a_bandit: rounds until a change is seen, T = 0"].value is None


def test_bandits_that_forget_stand_beside_those_that_do_not() -> None:
    """Both forms of full information are compared with both forms of each bandit."""
    chosen = {label: stream(code=2.0) for label in arms.CHOOSERS}
    found = [row.name for row in arms.rows({"code": stream(code=4.0)}, chosen, 0.0)]
    for ours in ("not_a_bandit", "not_a_bandit, as published"):
        for bandit in ("bandit_ucb", "bandit_exp3"):
            for way in ("", ", forgetting"):
                assert f"{ours} regrets less than {bandit}{way}, T = 0" in found
    forgetting = [values for label, (_, values) in arms.CHOOSERS.items() if label.endswith("forgetting")]
    assert forgetting == [{"keep": 0.98}] * 2


def test_a_stream_counts_rounds_until_the_subjects_own_arm_is_likeliest() -> None:
    """Every prompt is answered in three rounds; the code arm leads after the second, the story arm never does."""
    asked: list[tuple[str, object]] = []

    class Bench:
        def prepared(self, method: str, text: str, temperature: float, memory: object, parameters: object) -> object:
            asked.append((text, memory))
            return text

        def timed_run(self, ready: object, seed: int, record: str) -> object:
            afters = ([0.6, 0.4], [0.3, 0.7], [0.2, 0.8])
            steps = [SimpleNamespace(notes=(Note("arms", {"names": ["maths", "code"], "after": after}),)) for after in afters]
            return SimpleNamespace(steps=steps, ids=(1,) * 9)

    made = arms.run_stream(Bench(), "not_a_bandit", {}, 1, 0.0)
    never = [inf, inf]
    assert made.noticed_after == {"code": [2, 2], "stories": never, "copy": never, "translation": never, "maths": [1, 1]}
    assert made.tau == 3 and made.passes["code"] == 6
    assert not arms.run_stream(Bench(), "bandit_ucb", {}, 1, 0.0).noticed_after, "where nobody looks nothing is missed"
    asked.clear()
    arms.run_stream(Bench(), "not_a_bandit", {}, 1, 0.0)
    assert len({id(memory) for _, memory in asked}) == 1 and len({text for text, _ in asked}) == 10


def test_texts_are_as_long_as_asked_and_do_not_repeat_themselves() -> None:
    def count(text: str) -> int:
        return len(text.split())

    assert len({length.day(number).split(": ")[1] for number in range(1, 400)}) > 390
    for wanted in (64, 256, 1024, 4096):
        made = length.prompt("What is a shadow?", wanted, count)
        assert wanted <= count(made) < wanted + 30 and made.endswith("\n\nWhat is a shadow?")
    assert length.prompt("long enough already", 2, count) == "long enough already"


def test_what_is_left_leaves_the_free_token_out() -> None:
    level, falling = {64: 2.0, 256: 2.0, 1024: 1.9, 4096: 1.95}, {64: 2.5, 256: 2.2, 1024: 1.5, 4096: 1.3}
    copies = {64: 2.0, 256: 3.0, 1024: 5.0, 4096: 6.0}
    assert length.retention(level) == pytest.approx(0.95) and length.retention(falling) == pytest.approx(0.2)
    found = {row.name: row for row in length.proofs({
        ("answers", "owl"): level, ("answers", "eagle3"): falling, ("copies", "howl"): copies, ("copies", "owl"): level,
    })}  # fmt: skip
    assert found["OWL is level: least τ over most, 64 to 4096 tokens"].reached
    assert found["OWL keeps more than eagle3"].value == pytest.approx(0.75)
    assert found["HOWL over owl on long copies, τ"].value == pytest.approx((5 / 1.9 + 6 / 1.95) / 2)
    worse = length.proofs({("answers", "owl"): falling})
    assert [row.reached for row in worse] == [False]


def test_the_length_suite_keeps_its_curves_where_the_app_draws_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bench:
        def prepared(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(loaded=SimpleNamespace(name="tiny"))

    def by_length(bench: Any, method: str, questions: Sequence[str]) -> dict[int, float]:
        if method == "suffix_decoding":
            raise ModelUnavailable("It is not here.")
        return {place: 1.5 + 0.25 * number for number, place in enumerate(length.LENGTHS)}

    monkeypatch.setattr(length, "Bencher", lambda target, tokens: Bench())
    monkeypatch.setattr(length, "tau_by_length", by_length)
    monkeypatch.setattr(lengths, "FOLDER", tmp_path / "lengths")
    said: list[str] = []
    runner.run_suite("length", target="T", report=said.append)
    assert not (tmp_path / "lengths").exists(), "only who asks for it writes it"
    runner.run_suite("length", target="T", report=said.append, save=True)
    found = lengths.measured_on("tiny")
    assert found is not None and found.lengths == length.LENGTHS and "8 questions and 2 copies" in found.source
    assert {(curve.method, curve.kind) for curve in found.curves} == {
        (method, kind) for method in length.METHODS[:-1] for kind in lengths.KINDS
    }
    assert found.curves[0].tau == (1.5, 1.75, 2.0, 2.25) and said[-1].startswith("Wrote ") and "tiny.json" in said[-1]
    runner.run_suite("length", ["owl"], target="T", report=said.append, save=True)
    again = lengths.measured_on("tiny")
    assert again is not None and set(again.curves) == set(found.curves), "the others stay"
    assert [curve.method for curve in again.curves[-2:]] == ["owl", "owl"]


def test_only_a_whole_measurement_is_kept() -> None:
    with pytest.raises(BadInput, match="whole measurement"):
        runner.run_suite("length", save=True, short=True)
    with pytest.raises(BadInput, match="draws nothing of the suite quick"):
        runner.run_suite("quick", save=True)


def test_no_prompt_that_is_reported_on_was_trained_on() -> None:
    reported = {text for texts in (*KINDS.values(), CALIBRATION, arms.STORIES, arms.COPYING, length.QUESTIONS) for text in texts}
    for domain in DOMAINS:
        made = prompts(domain, 192)
        assert len(set(made)) == 192 and not reported & set(made)
        assert made == prompts(domain, 192) != prompts(domain, 192, seed=1)
