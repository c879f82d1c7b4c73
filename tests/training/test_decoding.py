"""Batched decoding: every row is what the model alone would have written, whoever stands beside it."""

from itertools import islice

import pytest
import torch

from specviz.training import decoding
from specviz.training.decoding import GRAM, REPEATS, Decoder, Request
from tests.support.emulated_cuda import emulated_cuda
from tests.support.tiny.text import tiny_llama

END, VOCAB, TAPS, LONGEST = 2, 40, (1, 0, 2), 14
PREFIX = (1, 4, 3)
ASKED = [(7, 8, 5), (10, 12, 13, 14, 15, 16, 5), (9,), (30, 31, 5), (22, 5), (8, 8, 9, 5), (11, 5)]


def decoder(rows=3):
    return Decoder(tiny_llama(dtype=torch.float32, vocab=VOCAB), END, PREFIX, TAPS, rows, 64)


def answers(one, temperature, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = list(one.run((Request(ids, temperature, LONGEST, "tag") for ids in ASKED), generator))
    assert len(found) == len(ASKED), "every request is answered once"
    return {one.request.ids: one for one in found}


@torch.no_grad()
def test_a_greedy_answer_is_the_models_own_and_so_are_its_features():
    model = tiny_llama(dtype=torch.float32, vocab=VOCAB)
    for asked, found in answers(decoder(), 0.0).items():
        ids = [*PREFIX, *asked]
        for token in found.answer:
            assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)
        assert found.answer[-1] == END or found.looped or len(found.answer) == LONGEST
        passed = model.base_model(torch.tensor([ids]), output_hidden_states=True)
        truth = torch.stack([passed.hidden_states[tap][0] for tap in TAPS], dim=1)
        assert found.features.shape == truth.shape, "the last token's are there as well"
        assert torch.allclose(found.features.float(), truth, rtol=2e-3, atol=2e-3)


def test_a_model_in_float32_decodes_under_autocast_too():
    with torch.autocast("cpu", torch.bfloat16):
        found = answers(decoder(), 0.0)
    assert all(one.answer[-1] == END or one.looped or len(one.answer) == LONGEST for one in found.values())


def test_nothing_follows_an_answers_end():
    found = [one for seed in range(4) for one in answers(decoder(), 1.0, seed).values()]
    assert all(END not in one.answer[:-1] and 0 < len(one.answer) <= LONGEST for one in found)
    assert any(one.answer[-1] == END for one in found) and any(len(one.answer) == LONGEST for one in found)


@pytest.mark.parametrize("tokens", [1, 5, 9])
def test_many_requests_are_read_in_passes_of_few_tokens(tokens, monkeypatch):
    together = answers(decoder(rows=7), 0.0)
    monkeypatch.setattr(decoding, "TOKENS", tokens)
    widths = []
    one = decoder(rows=7)
    one_pass = one._pass
    monkeypatch.setattr(one, "_pass", lambda ids, *more: (widths.append(ids[..., 0].numel()), one_pass(ids, *more))[1])
    assert {ids: found.answer for ids, found in answers(one, 0.0).items()} == {ids: f.answer for ids, f in together.items()}
    assert max(widths) <= max(tokens, *map(len, ASKED)), "one request is read at once, however long, and the prefix never again"


@pytest.mark.parametrize("period", [1, 3, GRAM])
def test_an_answer_that_goes_round_in_circles_is_stopped_at_the_second_repeat(period):
    one = decoder(rows=1)

    def say(places, hidden, generator):
        answer = one._rows[0].answer
        answer.append(20 + len(answer) % period)

    one._draw_next = say
    found = next(islice(one.run([Request((7, 8), 0.0, 60)]), 1))
    assert found.looped and len(found.answer) == REPEATS * period + GRAM


@pytest.mark.parametrize("taps", [TAPS, ()])
def test_a_gpu_writes_the_same_with_its_rows_in_one_group(taps):
    on_cpu = answers(decoder(), 0.0)
    with emulated_cuda():
        model = tiny_llama(dtype=torch.float32, vocab=VOCAB).to("cuda")
        requests = [Request(ids, 0.0, LONGEST) for ids in ASKED]
        found = {one.request.ids: one for one in Decoder(model, END, PREFIX, taps, 3, 64).run(requests)}
        assert {ids: one.answer for ids, one in found.items()} == {ids: one.answer for ids, one in on_cpu.items()}
        if taps:
            assert all(
                torch.allclose(one.features.cpu().float(), on_cpu[ids].features.float(), 2e-3, 2e-3) for ids, one in found.items()
            )
