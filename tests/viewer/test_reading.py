"""Reading a run's lines: in order, once, whole; recorded and followed runs, missing and broken lines."""

import json

import pytest

from tests.support.viewer import cases

FOLLOW = {"kind": "stage", "mode": "live", "run": "key", "follow": True}
LINES = [cases.run(), *({**cases.chain(0), "seq": at, "index": at - 1} for at in range(1, 6)), cases.end(6)]
FOLLOWED = """
const asked = [];
const tail = (run, from, take, over) => { asked.push({ run, from, take, over, left: false }); const at = asked.length - 1;
  return () => { asked[at].left = true; }; };
let resets = 0;
const one = feed({ tail, onReset: () => { resets += 1; } });
const say = (control) => one.accept(JSON.stringify(control) + "\\n");
const lines = given.lines.map((line) => JSON.stringify(line));
"""
"""A feed whose page can follow a run, what it asked for, and a run's lines."""


def test_a_live_run_is_followed_once_it_has_lines_and_is_left_for_another(node):
    body = """
    say({ ...given.control, follow: false, message: "Loading" });
    const before = asked.length;
    say(given.control);
    say({ ...given.control, baseline: "being timed" });
    asked[0].take(lines.slice(0, 3).join("\\n"));
    asked[0].take(lines.slice(2).join("\\n"));
    asked[0].over("");
    const { trace } = one;
    const found = [before, asked.length, asked[0].run, asked[0].from, trace.steps.length];
    found.push(trace.end.reason, trace.baseline, trace.problems);
    say({ ...given.control, run: "other" });
    return [...found, asked[0].left, asked[1].run, trace.mode];
    """
    found = node(FOLLOWED + body, {"control": FOLLOW, "lines": LINES})
    assert found == [0, 1, "key", 0, 5, "budget", "being timed", [], True, "other", "live"]


def test_the_run_on_the_stage_stays_until_the_next_one_has_lines(node):
    body = """
    one.accept(given.text);
    const seen = () => [one.name, one.trace.mode, one.trace.steps.length, Boolean(one.trace.coming), resets];
    const found = [];
    say({ ...given.control, follow: false, message: "Loading" });
    found.push(seen());
    one.accept(given.text);
    found.push(seen());
    say(given.control);
    found.push(seen());
    say({ ...given.control, error: "It broke." });
    asked[0].take(lines.slice(0, 2).join("\\n"));
    return [...found, seen(), one.trace.notice.error];
    """
    text = json.dumps({"kind": "stage", "mode": "recorded", "run": "old"}) + "\n" + cases.trace(cases.chain(0), cases.chain(1))
    old = ["old", "recorded", 2]
    assert node(FOLLOWED + body, {"control": FOLLOW, "lines": LINES, "text": text}) == [
        [*old, True, 1], [*old, False, 1], [*old, True, 1], ["key", "live", 1, False, 2], "It broke."
    ]  # fmt: skip


def test_a_kept_run_is_shown_once_it_is_there_whole(node):
    body = """
    say(given.control);
    asked[0].take(lines.slice(0, 2).join("\\n"));
    const before = one.trace.steps.length;
    asked[0].take(lines.slice(2).join("\\n"));
    asked[0].over("");
    say(given.control);
    return [before, one.trace.steps.length, one.name, one.trace.mode, one.trace.problems, asked.length];
    """
    kept = {**FOLLOW, "mode": "recorded", "run": "mine:key"}
    assert node(FOLLOWED + body, {"control": kept, "lines": LINES}) == [0, 5, "mine:key", "recorded", [], 1]


def test_a_stopped_run_that_was_to_come_leaves_the_kept_one_alone(node):
    body = """
    say(given.kept);
    asked[0].take(lines.join("\\n"));
    asked[0].over("");
    say({ ...given.control, run: "next", follow: false, message: "Loading…" });
    const before = one.trace.coming.message;
    say(given.kept);
    return [before, one.trace.coming, one.name, one.trace.steps.length, resets];
    """
    kept = {**FOLLOW, "mode": "recorded", "run": "mine:key"}
    found = node(FOLLOWED + body, {"kept": kept, "control": FOLLOW, "lines": LINES})
    assert found == ["Loading…", None, "mine:key", 5, 1]


@pytest.mark.parametrize("part", [0, 3])
def test_a_kept_run_that_is_gone_leaves_the_stage_as_it_is_and_says_so(node, part):
    body = """
    const seen = () => [one.name, one.trace.steps.length, one.trace.coming, one.trace.problems, one.trace.notice.error];
    const found = [];
    for (const text of ["", given.text]) {
      if (text) one.accept(text);
      say(given.control);
      const { take, over } = asked[asked.length - 1];
      if (given.part) take(lines.slice(0, given.part).join("\\n"));
      over("It is no longer kept.");
      found.push(seen());
    }
    say(given.control);
    return [...found, asked.length];
    """
    kept, shown = {**FOLLOW, "mode": "recorded", "run": "mine:key"}, {"kind": "stage", "mode": "recorded", "run": "old"}
    text = json.dumps(shown) + "\n" + cases.trace(cases.chain(0), cases.chain(1))
    gone = [None, [], "It is no longer kept."]
    assert node(FOLLOWED + body, {"control": kept, "lines": LINES, "text": text, "part": part}) == [
        ["mine:key", 0, *gone], ["old", 2, *gone], 3
    ]  # fmt: skip


def test_lines_that_cannot_be_had_are_missed_aloud(node):
    body = """
    say(given.control);
    asked[0].take([lines[0], lines[1], lines[4]].join("\\n"));
    asked[0].over("It is no longer kept.");
    return [one.trace.steps.length, one.trace.problems];
    """
    problems = ["2 lines before line 4 never arrived", "It is no longer kept."]
    assert node(FOLLOWED + body, {"control": FOLLOW, "lines": LINES}) == [2, problems]


def test_a_last_line_without_its_line_end_counts(node):
    text = cases.trace(cases.chain(0, 3, 2))
    body = "const one = feed(); one.accept(given); return [one.trace.steps.length, one.trace.end.reason, one.trace.mode];"
    assert node(body, text.rstrip("\n")) == [1, "budget", "recorded"]


def test_another_text_is_another_run(node):
    body = """
    let resets = 0;
    const one = feed({ onReset: () => { resets += 1; } });
    for (const text of given) one.accept(text);
    return [resets, one.trace.steps.length];
    """
    texts = [cases.trace(cases.chain(0), cases.chain(1)), cases.trace(cases.bushy(0))]
    assert node(body, texts) == [2, 1]


def test_broken_lines_are_counted_and_the_rest_is_drawn(node):
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


def test_odd_values_in_a_step_do_no_harm(node):
    nodes = '[[-1, 1, null, "x", {}, 7], [0, null, 5, 1e400, "p", "invented", null, [], "grid"]]'
    line = f'{{"nodes": {nodes}, "path": ["a", 9, 1], "emitted": [1, 2], "pieces": [null], "time": ["x", -5, null]}}'
    body = """
    const step = parseStep(JSON.parse(given));
    const nodes = step.nodes.map((node) => [node.text, node.status, node.q, node.p]);
    return [nodes, step.path, step.total, step.origins.map((one) => one.kind)];
    """
    assert node(body, line) == [[["", "root", None, None], ["5", "skipped", None, None]], [1], 0, ["skipped", "bonus"]]


def test_each_token_of_the_output_knows_how_it_came_to_be(node):
    body = "const step = parseStep(given); return [step.origins, step.counts.kept, step.overruled];"
    origins, kept, overruled = node(body, cases.chain(0, 5, 2))
    assert [one["kind"] for one in origins] == ["accepted", "accepted", "bonus"]
    assert kept == 2 and overruled is True
    cut = cases.chain(0, 5, 2)
    cut = {**cut, "emitted": cut["emitted"][:1], "pieces": cut["pieces"][:1], "bonus": None, "cut": "eos"}
    origins, kept, overruled = node(body, cut)
    assert [one["kind"] for one in origins] == ["accepted"]
    assert kept == 1 and overruled is False


def test_words_show_whitespace_and_disarm_what_hides(node):
    body = "return given.map((text) => [format.visible(text), format.token(text, 6)]);"
    found = node(body, [" the", "\n\n", "a\u202eb", "", "long enough", "🌅🌅🌅🌅🌅🌅🌅🌅"])
    assert [one[0] for one in found][:4] == ["·the", "⏎⏎", "a\\u202eb", "∅"]
    assert found[4][1] == "long·…"
    assert found[5][1] == "🌅🌅🌅🌅🌅…"


def test_numbers_never_round_to_a_certainty(node):
    body = "return given.map(format.probability);"
    given = [0, 1, 0.5, 0.00004, 0.9997, 0.99999, None, 0.012]
    assert node(body, given) == ["0", "1", "0.50", "almost 0", "0.9997", "almost 1", "–", "0.012"]


def test_a_calm_speed_is_chosen_from_the_recorded_times(node):
    body = "return given.map((ns) => Player.comfortable({ steps: [{ total: ns }] }));"
    assert node(body, [50e6, 80e6, 700e6, 1e6]) == [0.05, 0.1, 1, 0.05]


BUSY = "Other programs kept this run waiting."
HEADER = """
const element = (tag) => ({
  tag, kids: [], attributes: {}, append(...kids) { this.kids.push(...kids); },
  setAttribute(name, value) { this.attributes[name] = value; }, addEventListener() {},
});
globalThis.document = { createElement: element };
const { Header } = modules["stage/header"];
const one = feed();
one.accept(given);
const told = (part) => (typeof part === "object" ? part.kids.map(told).join(" | ") : part);
return [Header.messages(one.trace), Header.busy(one.trace.end).map((chip) => [chip.tag, told(chip)])];
"""


@pytest.mark.parametrize("said", [{"message": "", "busy": BUSY}, {"message": "The server said more.", "busy": BUSY}, {}])
def test_a_busy_machine_is_a_chip_that_opens_and_a_quiet_one_has_none(said, node):
    lines, chips = node(HEADER, cases.text([cases.run(), cases.chain(0, 3, 3), cases.end(2, **said)]))
    assert lines == ([["note", said["message"]]] if said.get("message") else [])
    assert chips == ([["details", f"busy machine | {BUSY}"]] if said else [])
