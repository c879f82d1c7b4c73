"""A head that is read wrong is told so, and which convention is wrong: a good head broken in every way is named each time."""

import copy
from dataclasses import replace

import pytest
import torch

from specviz.inspection.diagnosis import Diagnosis, advice, judge
from specviz.inspection.forced import Reading, TeacherForcedStats, teacher_force
from specviz.inspection.readings import required_layers
from tests.support.tiny.foreseen import LAYERS, VOCAB, block, blocks, head, paired, passages, target

DEPTH = 4
GPT_J = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])


def interleaved(made):
    """Queries and keys laid out as another library rotates them."""
    tensors = dict(made.tensors)
    for part in "qk":
        name = f"layers.0.self_attn.{part}_proj.weight"
        rows = tensors[name]
        tensors[name] = rows.unflatten(0, (-1, 8))[:, GPT_J].flatten(0, 1)
    return replace(made, tensors=tensors)


def swapped(made):
    tensors = dict(made.tensors)
    for part in "qkv":
        name = f"layers.0.self_attn.{part}_proj.weight"
        tensors[name] = torch.cat(tensors[name].chunk(2, dim=1)[::-1], dim=1)
    return replace(made, tensors=tensors)


def scaled(made):
    """A head whose final norm is that of another model."""
    return replace(made, tensors={**made.tensors, "norm.weight": made.tensors["norm.weight"].flip(0) ** 3})


BREAKS = {
    "taps too high": ({}, lambda made: made.read_as(taps=(4, 7, 10)), "taps one lower"),
    "taps too low": ({}, lambda made: made.read_as(taps=(2, 5, 8)), "taps one higher"),
    "taps turned round": ({}, lambda made: made.read_as(taps=(9, 6, 3)), "taps in reverse order"),
    "a normed residual": ({}, lambda made: made.read_as(normed_residual=True), "norm_before_residual false"),
    "no normed residual": (
        {"normed_residual": True}, lambda made: made.read_as(normed_residual=False), "norm_before_residual true"
    ),
    "a normed output": ({"feeds_normed": False}, lambda made: made.read_as(feeds_normed=True), "norm_output false"),
    "no normed output": ({}, lambda made: made.read_as(feeds_normed=False), "norm_output true"),
    "another rotary base": ({}, lambda made: made.read_as(theta=3.0), "rotary base 100"),
    "the default rotary base": ({"theta": 10000.0}, lambda made: made.read_as(theta=3.0), "rotary base 10000"),
    "queries of another library": ({}, interleaved, "neighbours rotated together"),
    "halves swapped": ({}, swapped, "the halves of its input swapped"),
    "another model's embedding": ({}, lambda made: replace(made, embedding=made.embedding.flip(0)), "the target's embedding"),
    "another model's head": ({}, lambda made: replace(made, head=made.head.flip(1)), "the target's own head"),
    "a draft vocabulary off by one": ({}, lambda made: replace(made, draft_ids=made.draft_ids + 1), "draft tokens one lower"),
    "a window it has not": ({}, lambda made: made.read_as(windows=(3,)), "the whole text instead of a window"),
    "another final norm": ({"head_norm": False, "feeds_normed": False, "normed_residual": True},
                            lambda made: scaled(made.read_as(head_norm=True)), "no norm before the head"),
}  # fmt: skip


def check(good, broken, better, texts, depth=DEPTH):
    """Check that a ``broken`` drafter is told which other reading is right."""
    assert teacher_force(Reading(good), texts, depth).rates == [1.0] * depth
    verdict = judge(Reading(broken(good)), texts, target(), depth, 100.0, rounds=1)
    assert [step.other.name for step in verdict.steps] == [better]
    assert f", 1.00 with {better}: " in advice(verdict)


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", BREAKS)
def test_a_good_head_broken_in_one_way_is_told_which(name):
    conventions, broken, better = BREAKS[name]
    made = head(**conventions)
    check(made, broken, better, passages(made))


PAIRED = {
    "halves swapped": (lambda made: made.read_as(embedding_first=False), "the halves of its input swapped"),
    "an output fed back as it is": (lambda made: made.read_as(feeds_normed=False), "norm_output true"),
    "norms not shifted": (lambda made: made.read_as(centred=False, centred_entry=False), "all norms' weights plus one"),
    "norms shifted in part": (
        lambda made: made.read_as(centred_entry=False), "entry norms' weights plus one"
    ),
    "norms shifted twice": (
        lambda made: replace(made, tensors={name: value + float(value.ndim == 1) for name, value in made.tensors.items()}),
        "all norms' weights unchanged",
    ),
    "the layer below the last": (lambda made: made.read_as(taps=(LAYERS - 1,)), "its tap one higher"),
}  # fmt: skip


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", PAIRED)
def test_an_mtp_layer_broken_in_one_way_is_told_which(name):
    made = paired(centred=True, centred_entry=True)
    check(made, *PAIRED[name], passages(made))


def woven(made):
    """Queries and keys laid out as another library rotates them."""
    other = copy.deepcopy(made)
    for name, value in other.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            value.copy_(value.unflatten(0, (-1, 8))[:, GPT_J].flatten(0, 1))
        elif "q_norm" in name or "k_norm" in name:
            value.copy_(value[GPT_J])
    return other


BLOCKS = {
    "filled in, and read from the anchor": (
        {}, lambda made: made.read_as({"from_anchor": True}), "rows that predict their own position"
    ),
    "from the anchor, and filled in": (
        {"from_anchor": True}, lambda made: made.read_as({"from_anchor": False}), "rows that predict the next token"
    ),
    "taps too high": ({}, lambda made: made.read_as(taps=(4, 7, 10)), "taps one lower"),
    "in both directions, and read causally": (
        {}, lambda made: made.read_as({"causal": (True, True)}), "rows that see their whole block"
    ),
    "causal, and read in both directions": (
        {"causal": True}, lambda made: made.read_as({"causal": ()}), "rows that see only earlier rows"
    ),
    "queries of another library": ({}, woven, "neighbours rotated together"),
    "a window it has not": ({}, lambda made: made.read_as(windows=(3, 3)), "the whole text instead of a window"),
    "another model's head": ({}, lambda made: made.with_ends(head=made.head.flip(1)), "the target's own head"),
}  # fmt: skip


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_drafter_broken_in_one_way_is_told_which(name):
    conventions, broken, better = BLOCKS[name]
    made = block(**conventions)
    texts = blocks(made)
    assert not judge(Reading(made), texts, target(), 1, 100.0).steps
    check(made, broken, better, texts, 1)


@pytest.mark.spread(1)
@pytest.mark.parametrize(("shift", "lag", "better"), [(1, 0, "drafted positions one lower"), (0, 1, "states of one token later")])
def test_an_engine_that_counts_an_mtp_layer_wrong_is_told_so(shift, lag, better):
    made = paired(theta=2.0)
    verdict = judge(Reading(made, shift, lag), passages(made), target(), DEPTH, 2.0)
    assert [step.other.name for step in verdict.steps] == [better]


@pytest.mark.spread(1)
@pytest.mark.parametrize("layers", [1, 2])
def test_a_good_head_is_left_alone(layers):
    made = head(layers=layers, own=True)
    verdict = judge(Reading(made), passages(made), target(), DEPTH, 100.0)
    assert not verdict.steps
    assert advice(verdict) == "Acceptance is 1.00 as loaded, and no other reading is clearly better: the head is read correctly."


@pytest.mark.slow
def test_a_head_for_another_model_is_no_matter_of_reading():
    verdict = judge(Reading(head("another")), passages(head()), target(), DEPTH, 100.0)
    assert not verdict.steps and "trained for another target" in advice(verdict)


@pytest.mark.parametrize(("lengths", "ending"), [([0] * 9 + [1], ": the drafter was trained for another target"), ([1], ".")])
def test_heads_without_other_readings_are_not_said_to_have_been_compared(lengths, ending):
    said = advice(Diagnosis(TeacherForcedStats(1, [torch.tensor(lengths)])))
    assert f" as loaded, and there are no alternative readings{ending}" in said


def test_texts_too_short_to_judge_on_say_so():
    made = head()
    verdict = judge(Reading(made), passages(made, 1, DEPTH), target(), DEPTH)
    assert "too short to judge" in advice(verdict)


def test_the_draft_vocabulary_bounds_what_can_be_foreseen():
    made = head()
    texts = passages(made)
    found = teacher_force(Reading(made), texts, DEPTH)
    assert found.known == found.places and found.overlap_rate < 1
    few = replace(made, draft_ids=made.draft_ids[:10], head=made.head[:10])
    assert teacher_force(Reading(few), texts, DEPTH).known < found.places
    assert int(made.draft_ids.max()) < VOCAB - 1


def test_layers_are_asked_for_as_far_as_readings_go():
    assert required_layers((1, 6, 11), LAYERS, 2) == (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
    assert required_layers((6,), LAYERS, 1) == (5, 6, 7)
