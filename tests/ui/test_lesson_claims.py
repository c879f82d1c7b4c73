"""What lessons and the teacher's notes say of their recordings is so, and what they ask can be reasoned."""

import json
import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from specviz.trace import metrics, store
from specviz.trace.schema import REJECTED, RELAXED, RESAMPLED
from specviz.ui import lessons
from specviz.ui.settings import Settings
from tests.support.lessons import SHIPPED, shipped
from tests.support.traces.recordings import TRACES

EXAMPLES = {
    "03-chance": {0.8, 0.4, 0.4 / 0.8, round(1 - 0.8, 1), 1 - 0.4},
    "04-speed": {3 / 2, round(4 / 3, 2)},
    "10-from-the-leaves": {1.08, 0.96, 1.34, 1.27, 1.56, 1.42},
    "13-three-states-one-token": {3.1, 5.37, 6.13, 4.05},
    "15-practising-on-trees": {2.0, 1.5, (2.0 + 1.5) / 2, 6.52, 6.07},
    "21-three-in-a-chain": {0.96, round(0.96**8, 2)},
    "28-look-alikes": {0.04, 0.35, 0.05, 0.08, 0.09, round(0.04 / 0.35, 2), round(0.08 / 0.35, 2)},
    "29-coarse-first": {0.01, 0.06, 0.07, 0.5, 0.01 / 0.5},
}
"""Decimals that a lesson may have typed: worked examples, and what a paper measured. Those of lesson 10 are proven in
tests/exactness/test_traversal.py."""


@pytest.mark.parametrize("name", SHIPPED)
def test_measured_numbers_are_taken_from_the_recording(name):
    raw = msgspec.json.encode([replace(page, at=page.at and "first") for page in SHIPPED[name].pages]).decode()
    raw = re.sub(r"arXiv \d{4}\.\d{4,5}", "", raw)
    assert {float(number) for number in re.findall(r"\d+\.\d+", raw)} <= EXAMPLES.get(name, set())
    assert not re.search(r"\d *×", raw), "a speed-up that was typed"


@pytest.mark.parametrize("name", ["01-one-step", "17-through-the-lattice"])
def test_a_run_that_is_said_to_write_what_plain_decoding_writes_does(name):
    assert any("Token for token, this run wrote" in page.reveal for page in SHIPPED[name].pages)
    baseline = shipped(name)[1].end.baseline
    assert baseline.token_ns and baseline.first_divergence is None


def told(name: str, number: int, kind: str) -> Any:
    """What a note says of the step on page ``number``, counted from 1, of a lesson's recording."""
    one, trace, _ = shipped(name)
    at = lessons.places(one, trace)[number - 1]
    return next(note.data for note in trace.steps[at].notes if note.type == kind)


def test_panels_show_what_the_texts_beside_them_say():
    """Counts that are a method's own, in words in the lesson and in numbers in the recording."""
    mass = told("09-how-deep", 2, "beam_mass")
    assert list(mass["mass"]) == sorted(mass["mass"], reverse=True), "the mass only falls"
    short = told("09-how-deep", 4, "beam_mass")
    deepest = mass["stopped"] or len(mass["mass"]) + 1  # none: it went as deep as it may
    assert short["stopped"] < deepest and short["mass"][-1] < short["threshold"], "the drafter could have known"
    assert told("14-two-at-a-time", 2, "blocks")["width"] == 2
    lattice = told("17-through-the-lattice", 2, "lattice")
    assert lattice["weight"] == 0.5 and max(len(beam["picks"]) for beam in lattice["beams"]) == 3
    gauge = told("17-through-the-lattice", 5, "lattice")["gauge"]
    assert gauge["length"] < gauge["longest"], "its blocks stay short"
    assert told("19-only-the-last-token", 3, "last_state")["with_probe"]
    arms = told("20-judged-in-hindsight", 3, "drafter_selection")
    assert arms["names"] == ["code", "maths", "stories", "translation", "copy"] and arms["waiting"]
    groups = told("22-side-by-side", 2, "layer_groups")["groups"]
    assert len(groups[0]) == len(groups[-1]) == 1 < min(len(group) for group in groups[1:-1])
    mask = told("24-trees-on-states", 3, "decay_mask")
    assert mask["taps"] == 4 and mask["replay_bytes"] < mask["per_node_bytes"]
    picture = told("26-a-picture-kept-back", 2, "visual_tokens")
    seen = sum(last - first + 1 for first, last in picture["visual"])
    assert 2 * seen > picture["target"] and picture["drafter"] == picture["target"] - seen and not picture["kept"]
    assert "without" in told("26-a-picture-kept-back", 4, "step_embeddings")


def test_the_price_of_a_pass_is_what_the_lesson_reckons_with():
    one, trace, _ = shipped("05-a-wide-pass")
    narrow, wide, wider = (trace.steps[at] for at in lessons.places(one, trace)[:3])
    rows = [step.verified + 1 for step in (narrow, wide, wider)]
    assert rows[0] == 2 and rows[1] == 6 * rows[0] and rows[2] == 2 * rows[1]
    times = [step.time.verify for step in (narrow, wide, wider)]
    assert 1 < times[1] / times[0] < 2 and 1.05 < times[2] / times[1] < 1.5
    plain = trace.end.baseline.token_ns
    assert times[2] < 2 * sum(plain) / len(plain) and wider.accepted == wider.verified == 23
    read, computed, rows_to_corner = 2 / 3e12, 2 / 900e12, 300
    assert read == pytest.approx(rows_to_corner * computed), "the corner of the roofline"


def test_the_lesson_on_the_mask_says_what_its_tree_is():
    one, trace, _ = shipped("06-who-may-look-at-whom")
    step = trace.steps[lessons.places(one, trace)[0]]
    first = max((node for node, drafted in enumerate(step.nodes) if drafted.parent == 0), key=lambda node: step.nodes[node].q)
    assert step.nodes[first].status == REJECTED and step.accepted > 1
    parents = dict(zip("RABCDE", (None, "R", "R", "A", "A", "B"), strict=True))
    for token, row in re.findall(r"`(\w) ([1·]{6})`", one.pages[1].reveal):
        path = {token}
        while parents[token]:
            path.add(token := parents[token])
        assert row == "".join("1" if other in path else "·" for other in parents)


def test_the_lesson_on_dream_says_what_its_drafter_looked_at():
    kept = told("27-looking-while-drafting", 2, "visual_tokens")
    assert [sum(count for _, count in kept[spans]) for spans in ("visual", "kept")] == [64, 48]
    looks = {tuple(look["texts"]): look["picture"] for look in told("27-looking-while-drafting", 3, "attention_entropy")["looks"]}
    assert looks[()] == pytest.approx(0.25, abs=0.03) and looks[(" black", " diamond")] == pytest.approx(0.05, abs=0.02)
    one, trace, beside = shipped("27-looking-while-drafting")
    step = trace.steps[lessons.places(one, trace)[3]]
    assert "".join(step.pieces[: step.accepted]) == ". The triangle is" and trace.run.prompt == beside.run.prompt
    assert told("27-looking-while-drafting", 1, "picture") == told("26-a-picture-kept-back", 1, "picture")


@pytest.mark.parametrize("name", ["lantern", "lantern_pp"])
def test_a_fifth_of_the_codes_of_a_relaxed_recording_is_relaxed(name):
    trace = store.read(TRACES / f"{name}.spectrace.jsonl.gz")
    relaxed = sum(node.status == RELAXED for step in trace.steps for node in step.nodes)
    assert len(trace.end.output_ids) == 256 and relaxed / 256 >= 0.2
    assert "a fifth" in json.loads((TRACES / f"{name}.json").read_text("utf-8"))["note"]


def test_the_lesson_on_mulo_sd_counts_its_islands_and_passes():
    coarse = told("29-coarse-first", 1, "coarse_codes")
    assert len(coarse["codes"]) == 8 and len(coarse["fine"]) == 32
    verdict = told("29-coarse-first", 3, "local_verification")
    assert [len(island) for island in verdict["islands"]] == [3, 3] and len(verdict["failed"]) == 3
    assert max(verdict["waves"]) == 3 and verdict["passes"] == 4 and verdict["rewritten"] and verdict["radius"] == 1


def test_the_lesson_on_dspark_shows_a_place_that_the_correction_decides():
    one, corrected, plain = shipped("18-corrected-place-by-place")
    assert corrected.run.prompt == plain.run.prompt and corrected.run.parameters["threshold"] == 0.2
    block = told("18-corrected-place-by-place", 3, "denoised")
    assert block == told("18-corrected-place-by-place", 4, "denoised")
    assert block["places"][1]["probability"][0] < 0.25 and block["given"][1][0] > 0.99
    falling = metrics.accepted_by_depth(plain.steps)[:4]
    assert falling == sorted(falling, reverse=True), "a place that does not know its neighbours fades"


def test_the_histories_compare_runs_on_what_they_say():
    _, states, blocks = shipped("31-from-states-to-blocks")
    assert states.run.prompt == blocks.run.prompt and states.run.parameters["depth"] == 6
    assert max(step.verified for step in states.steps) == 22
    assert blocks.run.parameters["drafter"] == "deer", "a block drafter that reads no states"
    _, chains, heads = shipped("30-from-heads-to-trees")
    assert chains.run.prompt != heads.run.prompt
    _, three, _ = shipped("13-three-states-one-token")
    reached = metrics.accepted_by_depth(three.steps)
    assert min(reached[:5]) > 0.85, "level with depth"


def test_the_proof_in_numbers_adds_up_to_p():
    """As the lesson on chance reckons: the lower bars, and the refusals to where p rises above q."""
    q, p = (0.8, 0.2), (0.4, 0.6)
    passed = [min(pair) for pair in zip(p, q, strict=True)]
    holes = [most - low for most, low in zip(p, passed, strict=True)]
    assert passed == [0.4, 0.2] and 1 - sum(passed) == pytest.approx(sum(holes)) == pytest.approx(0.4) and holes[0] == 0
    assert [low + hole for low, hole in zip(passed, holes, strict=True)] == pytest.approx(p)


def test_every_question_about_the_kept_tokens_gives_something_to_reason_from():
    """How probable the drafter finds its guesses or, where it has no probabilities, what they read."""
    copied = []
    for name, one in SHIPPED.items():
        _, trace, beside = shipped(name)
        for number, raw in enumerate(one.pages):
            if raw.ask and raw.ask.about == "kept":
                question = lessons.page(one, number, trace, beside).ask.question
                assert "likeliest path" in question or "They read “" in question, (name, number)
                copied += [name] if "They read" in question else []
    assert copied == ["02-copying", "02-copying", "25-served"]


def test_no_habit_answers_the_typed_questions():
    """Whoever always takes the same place, or always the longest choice, is right on less than half of them."""
    asked = [page.ask for one in SHIPPED.values() for page in one.pages if page.ask and page.ask.choices]
    places = [sum(ask.answer == place for ask in asked) for place in range(4)]
    longest = sum(len(ask.choices[ask.answer]) == max(map(len, ask.choices)) for ask in asked)
    assert max(*places, longest) < len(asked) / 2, (places, longest, len(asked))


READABLE = 0.5
"""Probability below which a reader expects the drafter to fail."""


def test_a_prediction_of_what_is_kept_can_be_reasoned():
    """Whoever stops at the first probability below one half is right within one token on nearly all pages that name them."""
    misses, pages = [], 0
    for name, one in SHIPPED.items():
        _, trace, _ = shipped(name)
        for number, (raw, at) in enumerate(zip(one.pages, lessons.places(one, trace), strict=True)):
            sure = lessons.likeliest(trace.steps[at or 0])
            if not (raw.ask and raw.ask.about == "kept" and sure):
                continue
            expected = next((depth for depth, q in enumerate(sure) if q < READABLE), len(sure))
            pages += 1
            question = lessons.page(one, number, trace).ask.question
            assert ", ".join(f"{q:.2f}" for q in sure) in question, "the page names them"
            if abs(expected - trace.steps[at].accepted) > 1:
                misses.append(f"{name}, page {number + 1}")
    assert len(misses) <= pages / 8, misses


def solutions() -> dict[int, set[int]]:
    """Steps, counted from 1, that solve a lesson's task on its recording."""

    def steps(number):
        return next(shipped(name)[1].steps for name in SHIPPED if name.startswith(f"{number:02d}-"))

    def noted(step, kind):
        return next((note.data for note in step.notes if note.type == kind), None)

    def refused(step):
        return [node for node in step.nodes if node.status in (REJECTED, RESAMPLED)]

    def favourite(step):
        return max((at for at, node in enumerate(step.nodes) if at and node.parent == 0), key=lambda at: step.nodes[at].q or 0)

    def climbed(step):
        """Ranks in their columns of the tokens on DiffuSpec's path, the last one first."""
        ranks, at = [], 0
        for beam in reversed(noted(step, "lattice")["beams"]):
            ranks, at = [*ranks, beam["picks"][at]], beam["parents"][at]
        return ranks

    empty = [step.index + 1 for step in steps(25) if not step.accepted]
    drafters = [noted(step, "drafter_selection")["drafted"] for step in steps(20)]
    rows = [len(noted(step, "batch_cache")["rows"]) for step in steps(23)]
    drift = [step for step in steps(9) if noted(step, "beam_mass")["stopped"] == 5 == step.accepted]
    most = max(steps(29), key=lambda step: noted(step, "local_verification")["passes"])
    return {
        1: {step.index + 1 for step in steps(1) if step.verified and not step.accepted and step.nodes[favourite(step)].q > 0.6},
        3: {step.index + 1 for step in steps(3) if any((node.threshold or 0) > 0.5 for node in refused(step))},
        6: {step.index + 1 for step in steps(6)[6:] if step.accepted > 1 and step.path[0] != favourite(step)},
        8: {step.index + 1 for step in steps(8) if lessons.step_facts(step)["ends"] == 1},
        9: {step.index + 1 for step in drift},
        10: {step.index + 1 for step in steps(10)[:33] if noted(step, "traversal")["rescued"]},
        14: {step.index + 1 for step in steps(14) if step.accepted == 4},
        15: {
            step.index + 1
            for step in steps(15)
            if step.accepted == 5 and noted(step, "tree_reward")["before"] > noted(step, "tree_reward")["reward"]
        },
        16: {step.index + 1 for step in steps(16) if any(node.p > 0.7 for node in refused(step))},
        17: {step.index + 1 for step in steps(17) if step.accepted == 3 and any(climbed(step)[-3:])},
        18: {step.index + 1 for step in steps(18) if step.accepted == 5},
        20: {step for step in range(10, 24) if drafters[step - 1] == 0},
        21: {step.index + 1 for step in steps(21) if step.accepted == 1},
        23: {rows.index(3) + 1},
        24: {step.index + 1 for step in steps(24) if not step.accepted},
        25: {step for step in empty if {step, step + 1, step + 2} <= {*empty}},
        26: {step.index + 1 for step in steps(26) if step.accepted == 4},
        27: {step.index + 1 for step in steps(27) if not step.accepted},
        29: {most.index + 1},
    }


def test_the_teacher_s_notes_solve_the_tasks():
    notes = (Settings().lessons / "notes.html").read_text("utf-8")
    rows = dict(re.findall(r"<tr><td>(\d+)</td><td>([^<]*)</td></tr>", notes))
    for number, steps in solutions().items():
        said = {int(step) for step in re.findall(r"\b\d+\b", rows[str(number)])}
        assert steps and (steps <= said or {min(steps), max(steps)} <= said), (number, steps, rows[str(number)])
