"""One step as a motion: drafted level by level, scored at once, judged in the rule's order; nothing is shown before its time."""

import itertools
from pathlib import Path

import pytest

from specviz.trace import store
from tests.support.viewer import cases

ROOT = Path(__file__).parents[2]

READ = """
const motion = modules["run/motion"];
const told = (raw) => {
  const step = parseStep(raw);
  const of = motion.of(step);
  const moments = of.moments.map((moment, at) => {
    const seen = motion.seen(step, of, at);
    return { ...moment, label: motion.label(step, of, at), tally: labels.tally(seen), bonus: Boolean(seen.bonus),
      statuses: seen.nodes.map(({ status }) => status), scored: seen.nodes.map(({ p, draw }) => [p, draw]) };
  });
  return { phases: of.phases, teaching: of.teaching, order: of.order, moments, pace: motion.pace(of), path: step.path,
    verdicts: step.nodes.map(({ status }) => status), depths: step.nodes.map(({ depth }) => depth),
    judged: [...of.judged], born: [...of.born] };
};
"""
TELL = READ + "return told(given);"


def told(node, step):
    return node(TELL, step)


def test_phases_follow_each_other_without_a_gap_and_say_what_is_shown(node):
    step = told(node, cases.bushy(0))
    assert [one["name"] for one in step["phases"]] == ["draft", "verify", "judge", "commit"]
    for before, after in itertools.pairwise(step["phases"]):
        assert before["to"] == after["from"] and before["end"] == after["start"]
    assert (step["phases"][0]["from"], step["phases"][-1]["to"]) == (0, 1)
    labels = [one["label"] for one in step["moments"]]
    levels = max(step["depths"])
    assert labels[:levels] == [f"Drafting, level {level} of {levels}" for level in range(1, levels + 1)]
    assert labels[levels] == f"Verifying: one pass over {len(step['depths']) - 1} nodes"
    assert labels[levels + 1] == f"Judging, verdict 1 of {len(step['order'])}"
    assert labels[-1] == "Committed: 4 tokens"
    times = [one["at"] for one in step["moments"]]
    assert times == sorted(times)


@pytest.mark.parametrize("make", [cases.bushy, cases.chain])
def test_no_node_has_its_verdict_before_it_falls(node, make):
    step = told(node, make(0))
    fallen = set()
    for moment in step["moments"]:
        if moment["phase"] == "judge":
            fallen.add(moment["node"])
        for at, status in enumerate(moment["statuses"]):
            if status in ("accepted", "rejected"):
                assert at in fallen or moment["phase"] == "commit"
        if moment["phase"] == "draft":
            drafted = [at for at, status in enumerate(moment["statuses"]) if status == "drafted"]
            assert drafted == [at for at, depth in enumerate(step["depths"]) if 0 < depth <= moment["level"]]
            assert all(scored == [None, None] for scored in moment["scored"][1:])
        assert moment["bonus"] is (moment["phase"] == "commit")
        assert ("not judged yet" in moment["tally"]) is (moment["phase"] != "commit")
    assert step["moments"][-1]["statuses"] == step["verdicts"]


def test_verdicts_fall_along_the_walk_and_what_was_left_out_follows_its_cause(node):
    step = told(node, cases.bushy(1))
    depths = [step["depths"][at] for at in step["order"]]
    assert depths == sorted(depths), "the walk goes down from the root"
    assert [at for at in step["order"] if at in step["path"]] == step["path"]
    begins = {at: span["from"] for at, span in step["judged"]}
    assert len(begins) == len(step["depths"]) - 1
    for at, raw in enumerate(cases.bushy(1)["nodes"]):
        if raw[5] == "skipped" and step["verdicts"][raw[0]] == "rejected":
            assert begins[at] > begins[raw[0]]


def test_a_rule_that_judges_from_the_leaves_shows_its_own_order(node):
    path = ROOT / "assets" / "traces" / "traversal.spectrace.jsonl.gz"
    recorded = store.read(path)
    step = next(one for one in recorded.steps if any(note.type == "traversal" for note in one.notes) and len(one.path) > 1)
    visits = [visit["node"] for note in step.notes if note.type == "traversal" for visit in note.data["visits"]]
    raw = next(line for line in store.unpacked(path).decode("utf-8").splitlines() if f'"index":{step.index},' in line)
    read = node(READ + "return told(JSON.parse(given)).order;", raw)
    assert [at for at in dict.fromkeys(reversed(visits)) if at in read] == read[::-1]
    assert read != sorted(read)


def test_a_step_without_a_draft_and_one_that_keeps_its_verdict_back(node):
    alone = cases.step(0, [cases.node(-1, " a", "root")], [], [0, 9, " b", 0.5, "target"], rule="none")
    step = told(node, alone)
    assert [one["name"] for one in step["phases"]] == ["verify", "commit"]
    assert [one["label"] for one in step["moments"]] == ["Verifying: one pass, no draft", "Committed: 1 token"]
    assert step["phases"][0]["start"] == 0, "time spent on a draft that came to nothing stays on the clock"
    veiled = cases.step(0, [cases.node(-1, " a", "root"), cases.node(0, " b", "skipped")], [], None)
    assert [one["name"] for one in told(node, veiled)["phases"]] == ["draft", "verify"]


def test_steps_move_where_they_stay_on_screen_for_a_second_and_always_in_slow_motion(node):
    body = """
    const trace = { steps: [{ total: 5e7 }, { total: 5e7 }, { total: 5e7 }] };
    const moves = (speed, more) => {
      const player = new Player({ trace, last: 2, calm: false, table: false, slow: false, ...more });
      player.speed = speed;
      return player.moves;
    };
    const slow = true, calm = true;
    return [moves(0.05), moves(0.1), moves(0.1, { slow }), moves(0.05, { calm }), moves(1, { calm, slow })];
    """
    assert node(body) == [True, False, True, False, False]


def test_every_step_is_seen_and_stays_as_long_as_it_takes_at_this_speed(node):
    body = """
    const steps = given.map(parseStep);
    const ends = steps.map((_, at) => steps.slice(0, at + 1).reduce((sum, { total }) => sum + total, 0));
    const trace = { steps, ends, starts: ends.map((end, at) => end - steps[at].total) };
    const shown = [];
    const stage = { trace, last: steps.length - 1, cursor: 0, within: 1, clock: ends[0], running: false, slow: false, touch() {},
      show(cursor, clock = ends[cursor], within = 1) {
        Object.assign(stage, { cursor, clock, within });
        shown.push([cursor, within]);
      },
      at(cursor, within) { stage.show(cursor, ends[cursor], within); } };
    globalThis.cancelAnimationFrame = () => {};
    const player = new Player(stage);
    Object.assign(player, { playing: true, speed: 0.04 });
    for (let frame = 0; frame < 2000 && player.playing; frame += 1) player.move(16);
    const frames = steps.map((_, at) => shown.filter(([cursor]) => cursor === at).length);
    return [frames, steps.map((_, at) => shown.some(([cursor, within]) => cursor === at && within === 1)), player.playing];
    """
    times = [[4_000_000, 40_000_000, 500_000, 500_000, 0], [8_000_000, 40_000_000, 1_000_000, 1_000_000, 0]]
    steps = [{**cases.chain(at, 4, 2), "time": time} for at, time in enumerate([times[0], times[0], times[1]])]
    frames, finished, playing = node(body, steps)
    assert frames[1:] == [pytest.approx(45_000_000 / 0.04 / 16e6, abs=2), pytest.approx(50_000_000 / 0.04 / 16e6, abs=2)]
    assert finished[1:] == [True, True]
    assert playing is False
