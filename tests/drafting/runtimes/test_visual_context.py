"""Drafters beside a picture: all of its rows, or none of them, against the network worked out from scratch."""

import pytest
import torch

from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.runtimes.language_model import LanguageModelDrafter, SmallModel
from specviz.drafting.runtimes.visual_context import AllRows, Layout, TextAlone, spans
from specviz.methods.hivis.step_embedding import StepwiseDrafter
from tests.support.rounds import context
from tests.support.worlds.vision import eagle_head, expected, step_vectors, text_model, world
from tests.support.worlds.witness import Witness, drafting, hidden_states

KINDS = ["smolvlm", "qwen2_5vl"]


def audited(here, witness, net, steps, kept):
    """Largest relative difference between what was said and what should have been. ``kept`` are prompt places seen."""

    def truth(ids, path):
        words, features = hidden_states(here, ids)
        places = kept + list(range(here.layout.length, len(ids)))
        return expected(net, words[places], features[places][:-1], path, steps)

    return witness.error(truth)


@pytest.mark.spread(1)
@pytest.mark.parametrize("kind", KINDS)
def test_all_rows_reads_the_picture_at_its_places(kind):
    here = world(kind)
    net = eagle_head(here.tiny.model)
    drafter = AllRows(net.runtime(), here.layout)
    witness = Witness(drafter)
    drafting(witness, here.target, here.prompt, drafter.reads)
    assert len(witness.answers) > 20
    assert audited(here, witness, net, None, list(range(here.layout.length))) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "stepwise"), [(KINDS[0], True), (KINDS[1], False)])
def test_text_alone_is_the_drafter_on_the_text_places(kind, stepwise):
    here = world(kind)
    net, steps = eagle_head(here.tiny.model), step_vectors(here.tiny.model) if stepwise else None
    drafter = FeatureDrafter(net.runtime()) if steps is None else StepwiseDrafter(net.runtime(), steps)
    witness = Witness(TextAlone(drafter, here.layout))
    drafting(witness, here.target, here.prompt, net.config.taps)
    kept = [place for place in range(here.layout.length) if place not in here.layout.hidden]
    assert len(kept) == here.layout.length - (6 if kind == "qwen2_5vl" else 4)
    assert len(witness.answers) > 20
    assert audited(here, witness, net, steps, kept) < 1e-9


def test_the_drafters_prefill_is_as_long_as_the_text(monkeypatch):
    here = world()
    rows, run = [], FeatureDrafter._commit

    def counted(self, ids, until):
        rows.append(until - self._committed)
        return run(self, ids, until)

    monkeypatch.setattr(FeatureDrafter, "_commit", counted)
    net = eagle_head(here.tiny.model)
    alone = TextAlone(FeatureDrafter(net.runtime()), here.layout)
    found = drafting(alone, here.target, here.prompt, net.config.taps, 4)
    seen = {note.type: note.data for note in found.steps[0].notes}["visual_tokens"]
    # The root's own row belongs to the first round, and every row pairs a token with the one before it.
    assert rows[0] + 2 == seen["drafter"] == here.layout.length - len(here.layout.visual)
    rows.clear()
    drafter = AllRows(net.runtime(), here.layout)
    found = drafting(drafter, here.target, here.prompt, drafter.reads, 4)
    seen = {note.type: note.data for note in found.steps[0].notes}["visual_tokens"]
    assert rows[0] + 2 == seen["drafter"] == seen["target"] == here.layout.length
    assert seen["kept"] == seen["visual"] == [[4, 4]]


def test_a_language_model_drafts_from_the_words_alone():
    here = world()
    small = text_model(here.tiny.model)
    fed = []

    class Reading(SmallModel):
        def extend(self, ids):
            fed.append(list(ids))
            return super().extend(ids)

        def chain(self, ids, deepest):
            fed.append(list(ids))
            return super().chain(ids, deepest)

    inner = LanguageModelDrafter(lambda capacity: Reading(small, capacity), 512)
    drafter = TextAlone(inner, here.layout)
    drafter.begin(context(here.prompt), None)
    (logits,) = drafter.levels(context(here.prompt)).ask()
    text = [token for place, token in enumerate(here.prompt) if place not in here.layout.hidden]
    assert fed == [text[:-1], text[-1:]]
    cache = small.open(64)
    torch.testing.assert_close(logits, small(torch.tensor(text), cache)[-1])


def test_places_are_told_as_unbroken_rows():
    assert spans([]) == []
    assert spans([3, 4, 5, 9, 11, 12]) == [[3, 3], [9, 1], [11, 2]]
    note = Layout(20, (4, 5, 6, 7), (3, 4, 5, 6, 7, 8)).note((5, 6), (3, 8)).data
    assert note == {"target": 20, "drafter": 16, "visual": [[4, 4]], "kept": [[5, 2]], "unseen": [[3, 1], [8, 1]]}
