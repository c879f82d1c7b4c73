"""What a search is worth is counted by hand: the same lattice with and without the n-grams."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specviz.drafting.memory.ngram_model import NgramModel
from specviz.methods.diffuspec.lattice import columns, distribution, search
from specviz.training.families.ngrams import SEARCH_WEIGHTS, counted, searched_agreement, texts
from tests.support.training.tiny_masked import state_of, taught
from tests.support.training.tiny_training import END, MARKERS, dialogues


@pytest.mark.slow
def test_accepted_tokens_are_counted_along_the_answer() -> None:
    told, made = dialogues(60), state_of()
    taught(made, 30)
    model = made.model
    ngrams = NgramModel(counted(texts(told, range(40)), np.arange(4, 40), 2, 2))
    found = searched_agreement(model, ngrams, told, [41, 44], MARKERS, 3, 4)
    assert list(found) == [str(weight) for weight in SEARCH_WEIGHTS]
    lengths = []
    for number in (41, 44):
        text, answer = [*MARKERS.prefix, *told.of(number).tolist()], told.answer(number).tolist()
        for at in range(0, len(answer) - 3, 4):
            before = text[: len(text) - len(answer) + at]
            lattice = columns(distribution(model(torch.tensor(before), 3)), model.draft_ids, 0.8, 15, frozenset([END]))
            path = search(lattice, ngrams, before, 0.5, 3, frozenset([END])).path
            kept = 0
            while kept < len(path) and path[kept] == answer[at + kept]:
                kept += 1
            lengths.append(kept)
    assert found["0.5"][0] == pytest.approx(np.mean(lengths)) and found["0.5"][0] > 0
    assert found["0.5"][0] > found["1.0"][0], "the n-grams know how these answers count, the hardly taught model does not"
