"""Reading the growing text: in order, once, whole; new runs, long runs in segments, missing and broken lines."""

from __future__ import annotations

import json

from tests.support.viewer import cases
from tests.support.viewer.node import Evaluate

CONTROL = json.dumps({"kind": "stage", "mode": "live", "run": "key"}) + "\n"


def test_a_text_that_grows_letter_by_letter_is_read_once(node: Evaluate) -> None:
    text = CONTROL + cases.trace(cases.chain(0, 3, 2), cases.bushy(1))
    body = """
    const one = feed();
    for (let to = 1; to <= given.length; to += 7) one.accept(given.slice(0, to));
    one.accept(given);
    return [one.trace.mode, one.trace.steps.length, one.trace.run.method, one.trace.end.reason, one.trace.problems];
    """
    assert node(body, text) == ["live", 2, "token_recycling", "budget", []]


def test_a_last_line_without_its_line_end_counts(node: Evaluate) -> None:
    text = cases.trace(cases.chain(0, 3, 2))
    body = "const one = feed(); one.accept(given); return [one.trace.steps.length, one.trace.end.reason, one.trace.mode];"
    assert node(body, text.rstrip("\n")) == [1, "budget", "recorded"]


def test_another_text_is_another_run(node: Evaluate) -> None:
    body = """
    let resets = 0;
    const one = feed({ onReset: () => { resets += 1; } });
    for (const text of given) one.accept(text);
    return [resets, one.trace.steps.length];
    """
    texts = [cases.trace(cases.chain(0), cases.chain(1)), cases.trace(cases.bushy(0))]
    assert node(body, texts) == [2, 1]


def test_the_next_segment_of_the_same_run_keeps_what_was_read(node: Evaluate) -> None:
    lines = [cases.run(), *({**cases.chain(0), "seq": at, "index": at - 1} for at in (1, 2, 3)), cases.end(4)]
    first = CONTROL + cases.text(lines[:3])
    second = CONTROL.replace('"key"', '"key", "first": 3') + cases.text(lines[3:])
    body = """
    let resets = 0;
    const one = feed({ onReset: () => { resets += 1; } });
    for (const text of given) one.accept(text);
    return [resets, one.trace.steps.length, one.trace.end.reason, one.trace.problems];
    """
    assert node(body, [first, second]) == [1, 3, "budget", []]


def test_a_page_that_opens_late_asks_for_the_lines_it_missed(node: Evaluate) -> None:
    lines = [cases.run(), *({**cases.chain(0), "seq": at, "index": at - 1} for at in range(1, 6))]
    late = CONTROL.replace('"key"', '"key", "first": 4') + cases.text(lines[4:])
    body = """
    const asked = [];
    const fetchRange = async (run, first, last) => {
      asked.push([run, first, last]);
      return given.lines.slice(first, Math.min(last, first + 2)).map((line) => JSON.stringify(line) + "\\n").join("");
    };
    const one = feed({ fetchRange });
    one.accept(given.late);
    await new Promise((done) => setTimeout(done, 20));
    return [asked, one.trace.steps.map((step) => step.index), one.trace.problems];
    """
    asked, steps, problems = node(body, {"late": late, "lines": lines})
    assert asked == [["key", 0, 4], ["key", 2, 4]]
    assert steps == [0, 1, 2, 3, 4]
    assert problems == []


def test_lines_that_cannot_be_had_are_missed_aloud(node: Evaluate) -> None:
    late = CONTROL + cases.text([{**cases.chain(0), "seq": 4}])
    body = """
    const one = feed({ fetchRange: given.server ? async () => { throw new Error("gone"); } : null });
    one.accept(given.late);
    await new Promise((done) => setTimeout(done, 20));
    return [one.trace.steps.length, one.trace.problems.length];
    """
    assert node(body, {"late": late, "server": True}) == [1, 1]
    assert node(body, {"late": late, "server": False}) == [1, 1]


def test_broken_lines_are_counted_and_the_rest_is_drawn(node: Evaluate) -> None:
    bad = [
        "{not json}", "[]", "null", '"text"', json.dumps({"kind": "step", "nodes": []}),
        json.dumps({"kind": "step", "nodes": [[-1, 1, "a"], [5, 2, "b"]]}),
        json.dumps({"kind": "step", "nodes": [[0, 1, "a"]]}),
        json.dumps({"kind": "step", "nodes": [[-1, 1, "a"]], "bonus": [7, 1, "b", 1, "target"]}),
        json.dumps({"kind": "step", "nodes": "many"}), json.dumps({"kind": "surprise"}),
    ]  # fmt: skip
    good = {key: value for key, value in cases.chain(0).items() if key != "seq"}
    text = "\n".join([json.dumps({**cases.run()}), *bad, json.dumps(good)]) + "\n"
    body = "const one = feed(); one.accept(given); return [one.trace.steps.length, one.trace.problems.length];"
    steps, problems = node(body, text)
    assert steps == 1
    assert problems == 6


def test_odd_values_in_a_step_do_no_harm(node: Evaluate) -> None:
    nodes = '[[-1, 1, null, "x", {}, 7], [0, null, 5, 1e400, "p", "invented", null, [], "grid"]]'
    line = f'{{"nodes": {nodes}, "path": ["a", 9, 1], "emitted": [1, 2], "pieces": [null], "time": ["x", -5, null]}}'
    body = """
    const step = parseStep(JSON.parse(given));
    const nodes = step.nodes.map((node) => [node.text, node.status, node.q, node.p]);
    return [nodes, step.path, step.total, step.origins.map((one) => one.kind)];
    """
    assert node(body, line) == [[["", "root", None, None], ["5", "skipped", None, None]], [1], 0, ["skipped", "bonus"]]


def test_each_token_of_the_output_knows_how_it_came_to_be(node: Evaluate) -> None:
    body = "const step = parseStep(given); return [step.origins, step.counts.kept, step.overruled];"
    origins, kept, overruled = node(body, cases.chain(0, 5, 2))
    assert [one["kind"] for one in origins] == ["accepted", "accepted", "bonus"]
    assert kept == 2 and overruled is True
    cut = cases.chain(0, 5, 2)
    cut = {**cut, "emitted": cut["emitted"][:1], "pieces": cut["pieces"][:1], "bonus": None, "cut": "eos"}
    origins, kept, overruled = node(body, cut)
    assert [one["kind"] for one in origins] == ["accepted"]
    assert kept == 1 and overruled is False


def test_words_show_whitespace_and_disarm_what_hides(node: Evaluate) -> None:
    body = "return given.map((text) => [format.visible(text), format.token(text, 6)]);"
    found = node(body, [" the", "\n\n", "a\u202eb", "", "long enough", "🌅🌅🌅🌅🌅🌅🌅🌅"])
    assert [one[0] for one in found][:4] == ["·the", "⏎⏎", "a\\u202eb", "∅"]
    assert found[4][1] == "long·…"
    assert found[5][1] == "🌅🌅🌅🌅🌅…"


def test_numbers_never_round_to_a_certainty(node: Evaluate) -> None:
    body = "return given.map(format.probability);"
    given = [0, 1, 0.5, 0.00004, 0.9997, 0.99999, None, 0.012]
    assert node(body, given) == ["0", "1", "0.50", "almost 0", "0.9997", "almost 1", "–", "0.012"]


def test_a_calm_speed_is_chosen_from_the_recorded_times(node: Evaluate) -> None:
    body = "return given.map((ns) => Player.comfortable({ steps: [{ total: ns }] }));"
    assert node(body, [50e6, 80e6, 700e6, 1e6]) == [0.05, 0.1, 1, 0.05]


def test_lines_that_come_two_ways_are_read_once_and_the_way_is_left_on_a_new_run(node: Evaluate) -> None:
    lines = [cases.run(), *({**cases.chain(0), "seq": at, "index": at - 1} for at in (1, 2, 3)), cases.end(4)]
    texts = [CONTROL + cases.text(lines[:2]), cases.text(lines[1:4]), CONTROL + cases.text(lines)]
    body = """
    const asked = [];
    const one = feed();
    one.tail = (run, from, take) => { asked.push([run, from, take]); return () => asked.push("left"); };
    one.accept(given[0]);
    asked[0][2](given[1]);
    const by = one.trace.steps.length;
    one.accept(given[2]);
    one.accept(given[0].replace("key", "other"));
    return [asked[0].slice(0, 2), by, asked.length, asked[1], one.trace.steps.length, one.trace.problems];
    """
    assert node(body, texts) == [["key", 2], 3, 3, "left", 1, []]


def test_a_recorded_run_is_not_followed(node: Evaluate) -> None:
    body = """
    let asked = 0;
    const one = feed();
    one.tail = () => { asked += 1; return null; };
    one.accept(given);
    return asked;
    """
    assert node(body, CONTROL.replace("live", "recorded") + cases.text([cases.run(), cases.chain(0)])) == 0
