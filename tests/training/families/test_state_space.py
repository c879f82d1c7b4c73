"""The state-space recipes: where they start, what they lose, and that the data is what it says."""

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from specviz.training.driver import Schedule
from specviz.training.families import hybrid as recipe
from specviz.training.families.hybrid import (
    END,
    START,
    Split,
    StateSpaceTraining,
    corpus,
    distillation_loss,
    draft_config,
    loops,
    new_model,
    next_token_loss,
    rows,
    small_tokenizer,
    target_config,
)
from tests.support.tiny.hybrid import VOCAB, hybrid
from tests.support.tiny.shelf import TEXTS, spell
from tests.support.training.stand_ins import begun

CHUNK = 64
SETTINGS = Schedule(minutes=0.02, batch=2)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(recipe, "LENGTH", CHUNK)


def spoken(many=12):
    """Texts in which every token follows from the one before: the next one, or sometimes the one after it."""
    generator = np.random.default_rng(0)
    return [np.cumsum(generator.integers(1, 3, 40)) % VOCAB for _ in range(many)]


def state_of(model, settings=SETTINGS):
    return StateSpaceTraining(model, Split(spoken(), spoken(2)), partial(next_token_loss, model), settings)


def test_the_shipped_shapes_are_small_and_start_calm():
    target, draft = new_model(target_config(2048)), new_model(draft_config(2048))
    counts = [sum(weight.numel() for weight in model.parameters()) for model in (target, draft)]
    assert counts == [2_849_306, 480_280]
    ids = torch.randint(0, 2048, (1, CHUNK), generator=torch.Generator().manual_seed(0))
    for model in (target, draft):
        with torch.no_grad():
            x = model.base_model(ids).last_hidden_state
            alone = model.get_input_embeddings()(ids)
        assert torch.allclose(F.normalize(x, dim=-1), F.normalize(alone, dim=-1), atol=1e-4), "layers are silent at first"


def test_a_drafter_that_is_its_teacher_has_nothing_to_learn():
    teacher = hybrid(dtype=torch.float32).requires_grad_(True)
    tokens = torch.from_numpy(np.stack([next(rows(spoken(), CHUNK, np.random.default_rng(0)))]))
    assert abs(float(distillation_loss(teacher, teacher, tokens))) < 1e-3
    other = hybrid(seed=3, dtype=torch.float32).requires_grad_(True)
    assert float(distillation_loss(other, teacher, tokens)) > 1
    assert state_of(teacher).agreement(teacher, 2) == {"top1": 1.0, "top4": 1.0}
    assert state_of(other).agreement(teacher, 2)["top1"] < 0.9


def test_rows_open_with_a_dialogue_and_every_dialogue_is_read_whole():
    texts = [np.arange(100 * number, 100 * number + 5 + number) for number in range(6)]
    stream = rows(texts, 20, np.random.default_rng(1))
    whole = set()
    for _ in range(30):
        row = next(stream)
        assert len(row) == 21 and row[0] % 100 == 0, "the first one is never a rest"
        whole |= {int(token) // 100 for token in row if token % 100 == 4 + token // 100}
    assert whole == set(range(6)), "the last token of each was seen"


def test_bits_a_byte_are_of_the_bytes_that_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "LONGEST", 5)
    state = begun("hybrid", tmp_path, monkeypatch)
    read = [spell().decode(ids.tolist(), skip_special_tokens=False) for ids in state.corpus.held_out]
    assert all(text.startswith(part) and len(part) < len(text) for part, text in zip(read, TEXTS, strict=True))
    assert state.tokens_a_byte == pytest.approx(5 * len(TEXTS) / len("".join(read).encode()))
    state.held_out_loss = lambda many: math.log(2)
    assert state.metrics() == {"held_out_nats": math.log(2), "held_out_bits_a_byte": pytest.approx(state.tokens_a_byte)}


def test_looping_answers_are_left_out():
    assert loops([1, 2, 3] * 20) and not loops(list(range(40))) and not loops([1, 2])


def test_the_tokenizer_spells_any_text_and_knows_its_markers():
    made = small_tokenizer([f"{START}user\nthe sky the sky{END}"] * 3, 300)
    for text in ("the sky", "Öl £ 日本 🙂\n", f"{START}user\nx{END}"):
        assert made.decode(made.encode(text).ids, skip_special_tokens=False) == text
    found = corpus(Split([f"{START}user\na{END}"], []), made)
    assert found.training[0][0] == 0 and found.training[0][-1] == 1
