"""How far a masked language model's blocks agree with held-out answers."""

import numpy as np
import pytest
import torch

from specviz.training import data
from specviz.training.families.masked import block_agreement
from tests.support.training.tiny_masked import state_of, taught
from tests.support.training.tiny_training import MARKERS, dialogues


@pytest.mark.slow
def test_agreement_counts_blocks_by_hand():
    made, told = state_of(), dialogues(120)
    taught(made, 50)
    learned = made.model
    number = data.split(told)[1][0]
    found = block_agreement(learned, told, [number], MARKERS, 3, 100)
    text = [*MARKERS.prefix, *told.of(number)]
    at, answer, lengths = len(text) - len(told.answer(number)), told.answer(number).tolist(), []
    while at + 4 <= len(text):
        best = learned.draft_ids[learned(torch.tensor(text[:at]), 3).argmax(-1)].tolist()
        right = [one == other for one, other in zip(best, text[at:], strict=False)]
        lengths.append(right.index(False) if False in right else 3)
        at += lengths[-1] + 1
    assert found["tau"] == pytest.approx(np.mean(lengths) + 1) and found["steps"] == len(lengths)
    assert found["longest"] == max(lengths) and len(answer) > 4
    assert found["first1"] == pytest.approx(np.mean([length > 0 for length in lengths]))
