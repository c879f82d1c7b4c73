"""Runs in step write what each of them alone would have written, however the others fare."""

import pytest

from specviz.engine.batch_loop import BatchDecoding
from specviz.engine.interfaces import Composition
from specviz.engine.loop import Recorder, RunState
from specviz.engine.sampling import Noise
from specviz.errors import BadInput, ContextFull
from specviz.targets.text_rows import TextRows
from tests.support.tiny import hybrid as tiny_hybrid
from tests.support.tiny.text import Letters, decode, tiny_target
from tests.support.worlds.text import GREEDY, PROMPT, WARM
from tests.support.worlds.text import compose as composed

PROMPTS = [PROMPT, [7, 7, 1], [9], PROMPT[4:9] * 3, [2, 3, 2, 3, 2, 3, 2], [11, 40], PROMPT[::-1], [1] * 20]
READER = {"nodes": 16, "drafter": "recycling"}


def compose(name, values, target, warp, memory=None):
    return composed(name, values, target, warp, {} if memory is None else memory)


def batch_of(target, compositions, warp, budgets, every=4):
    rows = []
    for number, composition in enumerate(compositions):
        recorder, prompt = Recorder(Letters()), PROMPTS[number]
        rows.append(RunState(target, composition, prompt, warp, Noise(number), budgets[number], recorder))
    capacities = [min(target.context_length, len(row.prompt) + row.budget) for row in rows]
    return BatchDecoding(rows, TextRows(target, capacities, compositions[0].hidden_state_layers), every)


def runs_of(batch):
    return [row.run for row in batch.running]


def steps_by_row(batch):
    rows = runs_of(batch)
    found = [[] for _ in rows]
    for steps in batch.rounds():
        for number, step in steps:
            found[number].append(step)
    for row in rows:
        assert row.outcome.reason not in {"error", "out_of_memory"}, row.outcome.message
    return found


def written(steps):
    return [token for step in steps for token in step.emitted]


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("name", "values", "warp", "every"),
    [
        ("reader", READER, WARM, 1),
        pytest.param("reader", {"drafter": "eagle3", "nodes": 20}, WARM, 3, marks=pytest.mark.slow),
        pytest.param("suffix_decoding", {}, GREEDY, 4, marks=pytest.mark.slow),
        ("speculative_sampling", {"gamma": 3}, WARM, 2),
        ("autoregressive", {}, WARM, 0),
    ],
)
def test_eight_rows_write_what_each_writes_alone(name, values, warp, every):
    target, budgets = tiny_target(), [30, 40, 20, 40, 1, 23, 35, 40]
    batch = batch_of(target, [compose(name, values, target, warp) for _ in PROMPTS], warp, budgets, every)
    rows = steps_by_row(batch)
    for number, prompt in enumerate(PROMPTS):
        alone = decode(target, compose(name, values, target, warp), prompt, budgets[number], warp, number)
        assert written(rows[number]) == alone.ids
        assert [step.path for step in rows[number]] == [step.path for step in alone.steps]
        assert rows[number][-1].index == len(rows[number]) - 1
    if name in ("speculative_sampling", "autoregressive"):
        assert not any(row["holes"] for row in _layouts(rows)), "chains leave no holes"


def _layouts(rows):
    notes = [note for steps in rows for step in steps for note in step.notes if note.type == "batch_cache"]
    return [row for note in notes for row in note.data["rows"]]


@pytest.mark.slow
def test_rows_that_share_a_memory_still_write_their_own_text():
    target, memory = tiny_target(), {}
    batch = batch_of(target, [compose("reader", READER, target, WARM, memory) for _ in range(4)], WARM, [40] * 4)
    for number, steps in enumerate(steps_by_row(batch)):
        alone = decode(target, compose("autoregressive", {}, target, WARM), PROMPTS[number], 40, WARM, number)
        assert written(steps) == alone.ids


@pytest.mark.slow
def test_rows_end_apart_and_the_others_go_on():
    """End of sequence, budget and a full context, each in another row."""
    alone = tiny_target(context=64)
    text = decode(alone, compose("autoregressive", {}, alone, GREEDY), PROMPTS[1], 60, GREEDY, 1).ids
    ending = next(token for place, token in enumerate(text) if place > 10 and token not in text[:place])
    target = tiny_target(eos=[ending], context=64)
    budgets = [500, 500, 5, 500]
    batch = batch_of(target, [compose("reader", READER, target, GREEDY) for _ in budgets], GREEDY, budgets)
    runs = runs_of(batch)
    rows = steps_by_row(batch)
    for number, row in enumerate(runs):
        single = decode(target, compose("reader", READER, target, GREEDY), PROMPTS[number], budgets[number], GREEDY, number)
        assert written(rows[number]) == single.ids == row.outcome.output_ids
        assert row.outcome.reason == single.outcome.reason
    assert runs[1].outcome.reason == "eos"
    assert runs[2].outcome.reason == "budget"
    assert {row.outcome.reason for row in runs} >= {"eos", "budget"}


def test_a_stopped_row_leaves_and_the_others_finish():
    target = tiny_target()
    batch = batch_of(target, [compose("reader", READER, target, GREEDY) for _ in range(3)], GREEDY, [40] * 3)
    runs = runs_of(batch)
    for number, _ in enumerate(batch.rounds()):
        if number == 2:
            runs[1].cancel.set()
    assert runs[1].outcome.reason == "cancelled"
    assert 0 < len(runs[1].outcome.output_ids) < 40
    for number in (0, 2):
        assert len(runs[number].outcome.output_ids) == 40
        assert runs[number].outcome.reason == "budget"


def test_a_fault_in_one_row_ends_all_and_keeps_what_they_wrote():
    class Breaking:
        def __init__(self, inner):
            self.inner, self.closed = inner, False
            self.begin, self.observe = inner.begin, inner.observe

        def draft(self, context):
            if context.round == 3:
                raise MemoryError
            return self.inner.draft(context)

        def close(self):
            self.closed = True

    target = tiny_target()
    plain = [compose("reader", READER, target, GREEDY) for _ in range(2)]
    broken = Breaking(plain[1].controller)
    batch = batch_of(target, [plain[0], Composition(broken, plain[1].acceptance)], GREEDY, [40, 40])
    runs = runs_of(batch)
    assert len(list(batch.rounds())) == 3
    assert [row.outcome.reason for row in runs] == ["out_of_memory"] * 2
    assert all(len(row.outcome.output_ids) >= 3 for row in runs)
    assert broken.closed


def test_leaving_the_rounds_early_closes_every_row():
    target = tiny_target()
    batch = batch_of(target, [compose("reader", READER, target, GREEDY) for _ in range(2)], GREEDY, [40, 40])
    runs, rounds = runs_of(batch), batch.rounds()
    next(rounds)
    rounds.close()
    assert [row.outcome.reason for row in runs] == ["cancelled"] * 2
    assert batch.running == []


def test_what_a_batch_cannot_be_is_said():
    target = tiny_target(context=64)
    with pytest.raises(BadInput, match="batch of 9 rows"):
        TextRows(target, [8] * 9)
    with pytest.raises(BadInput, match="batch of 0 rows"):
        TextRows(target, [])
    with pytest.raises(ContextFull, match="65 tokens do not fit"):
        TextRows(target, [65])
    row = RunState(target, compose("reader", READER, target, WARM), [1], WARM, Noise(0), 4, Recorder(Letters()))
    with pytest.raises(BadInput, match="1 runs cannot share a batch of 2 rows"):
        BatchDecoding([row], TextRows(target, [8, 8]))
    with pytest.raises(BadInput, match="compacted every -1 rounds"):
        BatchDecoding([row], TextRows(target, [8]), -1)


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["owl", "howl"])
def test_a_method_with_a_probe_runs_in_step_without_it_and_is_refused_with_it(name):
    target, tree = tiny_target(), {"depth": 3, "width": 6, "nodes": 12}
    with pytest.raises(BadInput, match="set the parameter probe=false"):
        batch_of(target, [composed(name, tree, target, WARM) for _ in range(2)], WARM, [30, 30])
    without = {**tree, "probe": False}
    batch = batch_of(target, [composed(name, without, target, WARM) for _ in range(3)], WARM, [30, 40, 20])
    for number, (steps, budget) in enumerate(zip(steps_by_row(batch), [30, 40, 20], strict=True)):
        alone = decode(target, composed(name, without, target, WARM), PROMPTS[number], budget, WARM, number)
        assert written(steps) == alone.ids
        assert [step.path for step in steps] == [step.path for step in alone.steps]
        assert steps[0].notes[0].data["with_probe"] is False


def test_a_target_that_carries_a_state_is_refused():
    with pytest.raises(BadInput, match="carries a state from token to token"):
        TextRows(tiny_hybrid.target(tiny_hybrid.pure()), [8, 8])
