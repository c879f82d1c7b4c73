"""The feature store: what the target thinks, computed once, found again, whoever writes beside it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from specviz.training.features import FeatureStore
from tests.support.tiny.text import tiny_llama
from tests.support.training.tiny_training import MARKERS, VOCAB, dialogues

TAPS = (1, 0, 2)


class Counting:
    """A model that counts how many texts it has read."""

    def __init__(self):
        self.model = tiny_llama(dtype=torch.float32, vocab=VOCAB)
        self.config, self.device, self.read = self.model.config, self.model.device, 0

    @property
    def base_model(self):
        return self

    def __call__(self, **asked):
        self.read += len(asked["input_ids"])
        return self.model.base_model(**asked)


def store(folder, model=None):
    return FeatureStore(model or Counting(), dialogues(), MARKERS, TAPS, folder)


def truth(model, found, number):
    """[token, tap, hidden] of a plain pass over one dialogue alone."""
    with torch.no_grad():
        passed = model.model(torch.from_numpy(found.ids(number))[None], output_hidden_states=True)
    return torch.stack([passed.hidden_states[tap][0] for tap in TAPS], dim=1)


@pytest.mark.parametrize("kept", [True, False])
def test_features_are_the_targets_hidden_states_also_in_a_padded_batch(tmp_path, kept):
    model = Counting()
    found = store(tmp_path if kept else None, model)
    for _ in range(2):  # computed, then read again
        for number, seen in zip((5, 0, 13), found.get([5, 0, 13]), strict=True):
            assert torch.allclose(seen.features, truth(model, found, number), rtol=2e-3, atol=2e-3)
            assert seen.tokens.tolist() == [*MARKERS.prefix, *found.dialogues.of(number).tolist()]
            assert seen.tokens[seen.first :].tolist() == found.dialogues.answer(number).tolist()
    assert model.read == (3 if kept else 6)


def test_a_gpu_remembers_as_many_texts_as_it_has_memory_for():
    model = Counting()
    size = store(None, model).get([5])[0].features.nbytes // 2
    found = FeatureStore(model, dialogues(), MARKERS, TAPS, None, memory=size)
    model.read = 0
    first, again = (found.get([5])[0].features for _ in range(2))
    for _ in range(2):
        found.get([0])
    assert model.read == 3 and found.has(5) and not found.has(0) and not found.keeps
    assert torch.equal(first, again)


def test_another_process_finds_what_was_computed(tmp_path):
    first = store(tmp_path)
    before = first.get([1, 2, 3])
    again = Counting()
    second = store(tmp_path, again)
    assert second.has(2) and not second.has(4)
    assert all(torch.equal(a.features, b.features) for a, b in zip(before, second.get([1, 2, 3]), strict=True))
    assert again.read == 0


def test_what_was_cut_off_in_the_middle_leaves_no_file(tmp_path, monkeypatch):
    def stopped(path, array):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("numpy.save", stopped)
    with pytest.raises(KeyboardInterrupt):
        store(tmp_path).get([2])
    assert not store(tmp_path).has(2)


def test_threads_get_right_features(tmp_path):
    model = Counting()
    found = store(tmp_path, model)
    with ThreadPoolExecutor(4) as pool:
        asked = [[number % 7, (3 * number) % 11] for number in range(40)]
        for numbers, seen in zip(asked, pool.map(found.get, asked), strict=True):
            for number, one in zip(numbers, seen, strict=True):
                assert torch.allclose(one.features, truth(model, found, number), rtol=2e-3, atol=2e-3)


def test_huge_activations_stay_finite(tmp_path):
    model = Counting()
    model.model.base_model.embed_tokens.weight.mul_(1e7)
    assert torch.isfinite(store(tmp_path, model).get([0])[0].features).all()
