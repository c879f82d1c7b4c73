"""Drafters for pictures: what each is shown and learns from, on a tiny target."""

import pytest
import torch

from specviz.targets.attention_maps import importance, most_attended
from specviz.training.families import picture_drafters as making
from specviz.training.families.picture_drafters import (
    ALL,
    COMPRESSED,
    WORDS,
    PictureDialogues,
    PictureStore,
    acceptance_metrics,
    draft_logits,
)
from specviz.training.families.scenes_words import Writer
from specviz.training.registry import Job, recipes
from tests.support.training.stand_ins import stand_in

LAYERS, VISUAL = 4, 64
JOB = Job(recipes()["vlm_eagle"], "cpu", 0.02, False)


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """A tiny target with opinions, as it ships."""
    folder = tmp_path_factory.mktemp("weights")
    with pytest.MonkeyPatch.context() as patch:
        stand_in("vlm_eagle", folder, patch)
        yield folder


def stored(taps, shown):
    learner, tokenizer, spoken = making.target_and_answers(JOB)
    return learner, PictureStore(learner, Writer(tokenizer), spoken, shown, taps), spoken


@pytest.mark.slow
def test_answers_are_written_once_and_held_out_scenes_are_greedy(home):
    _, store, spoken = stored((LAYERS,), WORDS)
    assert isinstance(spoken, PictureDialogues)
    training, held_out = spoken.split()
    assert len(training) + len(held_out) == len(spoken.scene) and set(spoken.scene[held_out]) == {12, 13, 14, 15}
    assert (spoken.dialogues.temperature[held_out] == 0).all() and (spoken.dialogues.temperature > 0).any()
    files = list((home / "data").glob("picture-answers-*.npz"))
    before = files[0].stat().st_mtime_ns
    making.target_and_answers(JOB)
    assert len(files) == 1 and files[0].stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_store_shows_each_drafter_its_part_of_the_prompt(monkeypatch):
    monkeypatch.setattr(making, "KEEP", 0.25)
    learner, every, spoken = stored((0, 2, LAYERS), ALL)
    whole = every.get([0])[0]
    assert whole.tokens[1 : 1 + VISUAL].eq(3).all() and len(whole.tokens) == 1 + VISUAL + len(spoken.dialogues.of(0))
    words = PictureStore(learner, every.writer, spoken, WORDS).get([0])[0]
    assert words.tokens.tolist() == [1, *spoken.dialogues.of(0).tolist()]
    assert torch.equal(words.features[1:, 0], whole.features[1 + VISUAL :, 2]) and words.first == whole.first - VISUAL
    assert words.positions.tolist() == list(range(len(words.tokens)))
    some = PictureStore(learner, every.writer, spoken, COMPRESSED).get([0])[0]
    assert int((some.tokens == 3).sum()) == 16 and some.positions[-1] == len(whole.tokens) - 1
    assert torch.equal(some.features[-1, 2], whole.features[-1, 2])


def test_the_visual_tokens_kept_are_those_the_last_layer_looks_at_most(monkeypatch):
    monkeypatch.setattr(making, "KEEP", 0.5)
    learner, every, spoken = stored(tuple(range(LAYERS + 1)), ALL)
    whole = every.get([1])[0]
    prefill = whole.first - 1
    hidden = {layer: whole.features[:prefill, layer] for layer in range(LAYERS + 1)}
    looked = importance(learner.model.model.text_model, hidden, torch.arange(prefill), range(1, 1 + VISUAL))
    some = PictureStore(learner, every.writer, spoken, COMPRESSED, (0,)).get([1])[0]
    kept = (some.positions[(some.tokens == 3)] - 1).tolist()
    assert len(set(kept) & set(most_attended(looked, 0.5))) >= 31  # float16 may swap two that are equally bright


@torch.no_grad()
def test_acceptance_is_chain_drafting_by_hand():
    learner, store, spoken = stored((0, LAYERS), ALL)
    net = making.network(learner, store, [0, 1, 2, 3])
    numbers = spoken.split()[1][:3]
    found = acceptance_metrics(net, store.get(numbers), 2)
    emitted, starts = 0, 0
    for seen in store.get(numbers):
        for start in range(max(0, seen.first - 2), len(seen.tokens) - 3):
            one, two = (int(row.argmax()) for row in draft_logits(net, seen, torch.tensor([start]), 2))
            right = one == int(seen.tokens[start + 2])
            emitted += 1 + right + (right and two == int(seen.tokens[start + 3]))
            starts += 1
    assert found["tau"] == pytest.approx(emitted / starts)
