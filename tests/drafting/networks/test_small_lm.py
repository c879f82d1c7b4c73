"""The small draft model: drafting token by token, taking drafts back, and coming off the disk as it was trained."""

import pytest
import torch
import torch.nn.functional as F

from specviz.drafting.networks.small_lm import SmallConfig, SmallLM
from specviz.drafting.runtimes.language_model import SmallModel
from specviz.errors import ContextFull

CONFIG = SmallConfig(vocab_size=50, hidden=24, draft_vocab=20, width=16, layers=6, heads=2, inner=32, window=64)


def embedding():
    return torch.randn(50, 24, generator=torch.Generator().manual_seed(1))


def small(config=CONFIG):
    torch.manual_seed(0)
    model = SmallLM(config, embedding(), torch.arange(0, 40, 2))
    for weight in model.parameters():
        weight.data.normal_(std=0.3)
    return model.requires_grad_(False).eval()


def whole(model, ids):
    """What training computes for all of ``ids`` at once, [token, draft]."""
    features = model.features(F.pad(ids[None, :-1], (1, 0)), ids[None])[0]
    return F.linear(features, model.head(), model.bias)


def some_ids(count):
    return torch.randint(0, 50, (count,), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("pieces", [[30], [1] * 30, [12, 1, 1, 5, 11]])
def test_drafting_in_pieces_gives_what_training_saw(pieces):
    model, ids = small(), some_ids(30)
    cache = model.open(30)
    found = torch.cat([model(piece, cache) for piece in ids.split(pieces)])
    torch.testing.assert_close(found, whole(model, ids), atol=1e-5, rtol=1e-4)


def test_rejected_drafts_leave_no_trace():
    model, ids = small(), some_ids(20)
    cache = model.open(40)
    model(ids[:12], cache)
    model(torch.tensor([7, 7, 7]), cache)
    cache.keep(12)
    torch.testing.assert_close(model(ids[12:], cache), whole(model, ids)[12:], atol=1e-5, rtol=1e-4)


def test_keeping_more_than_there_is_is_refused():
    model = small()
    cache = model.open(8)
    model(some_ids(4), cache)
    with pytest.raises(ValueError, match="cannot keep 5 of 4"):
        cache.keep(5)


def test_a_full_cache_says_so():
    model = small()
    cache = model.open(4)
    with pytest.raises(ContextFull, match="holds 4"):
        model(some_ids(5), cache)


def test_text_longer_than_the_window_is_read_the_same_in_one_go_or_many():
    model = small(SmallConfig(**{**CONFIG.__dict__, "window": 8}))
    ids = some_ids(40)
    once, often = model.open(40), model.open(40)
    last = model(ids, once, last_only=True)
    for piece in ids.split(1):
        stepwise = model(piece, often)
    torch.testing.assert_close(last, stepwise, atol=1e-5, rtol=1e-4)
    assert once.length == often.length == 40


def test_the_drafter_speaks_in_the_targets_ids():
    model = small()
    opened = SmallModel(model, 16)
    assert opened.extend(some_ids(5).tolist()).shape == (20,)
    assert opened.support.tolist() == list(range(0, 40, 2))


def test_fixed_tensors_read_a_short_text_without_an_eager_pass(monkeypatch):
    model, ids = small(), some_ids(5).tolist()
    eager = SmallModel(model, 16, fixed=False).extend(ids)
    monkeypatch.setattr(model, "forward", None)
    torch.testing.assert_close(SmallModel(model, 16, fixed=True).extend(ids), eager)
