"""Our drafters in vLLM's slot for a class: the chains that they draft there are those that they draft here."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from specviz.errors import BadInput
from specviz.interop.vllm_plugin.labels import DRAFTER
from specviz.interop.vllm_plugin.proposer import Drafter

WINDOW = 40


def drafter(monkeypatch, method, most=4, **parameters):
    monkeypatch.setenv(DRAFTER, json.dumps({"method": method, "parameters": parameters}))
    return Drafter(
        SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=most), model_config=SimpleNamespace(max_model_len=WINDOW)
        )
    )


def proposed(one, *rows):
    """Rows of (tokens so far, how many of them are new) through the class, as vLLM's batch holds them."""
    tokens = np.zeros((len(rows), WINDOW), dtype=np.int32)
    for row, (ids, _) in enumerate(rows):
        tokens[row, : len(ids)] = ids
    lengths = np.array([len(ids) for ids, _ in rows])
    return one.propose([ids[len(ids) - new :] for ids, new in rows], lengths, tokens, slot_mappings=None)


def test_lookup_copies_from_where_it_was_told_to(monkeypatch):
    text = [1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 1, 2]
    assert proposed(drafter(monkeypatch, "prompt_lookup", copied=2), (text, 1)) == [[3, 4]]
    assert proposed(drafter(monkeypatch, "prompt_lookup", copied=2, occurrence="latest"), (text, 1)) == [[6, 7]]
    assert proposed(drafter(monkeypatch, "prompt_lookup", copied=2, shortest=3), (text, 1)) == [[]]


def test_suffix_drafts_as_long_as_it_matches(monkeypatch):
    text = [1, 2, 3, 4, 5, 9, 1, 2, 3]
    assert proposed(drafter(monkeypatch, "suffix_decoding", shape="path", offset=0), (text, 1)) == [[4, 5, 9]]
    assert proposed(drafter(monkeypatch, "suffix_decoding", shape="path", threshold=9), (text, 1)) == [[]]


def test_a_request_keeps_its_text_where_its_row_is_moved(monkeypatch):
    one = drafter(monkeypatch, "prompt_lookup", copied=2)
    first, second = [1, 2, 3, 4, 1], [5, 6, 7, 8, 5]
    assert proposed(one, (first, 1), (second, 1)) == [[2, 3], [6, 7]]
    assert proposed(one, (second + [6, 7], 2)) == [[8, 5]]
    assert proposed(one, ([9, 9, 9], 0), (second + [6, 7, 3], 1)) == [[], []], "a row that reads its prompt drafts nothing"


def test_outputs_of_ended_requests_are_remembered(monkeypatch):
    one = drafter(monkeypatch, "suffix_decoding", shape="path", offset=1, remembered=4)
    proposed(one, ([1, 2, 3, 20], 1))
    proposed(one, ([1, 2, 3, 20, 21, 22, 23], 3))
    assert proposed(one, ([7, 8, 20, 21], 1)) == [[22, 23]]
    forgetful = drafter(monkeypatch, "suffix_decoding", shape="path", offset=1, remembered=0)
    proposed(forgetful, ([1, 2, 3, 20, 21, 22, 23], 4))
    assert proposed(forgetful, ([7, 8, 20, 21], 1)) == [[]]


def test_no_draft_runs_over_the_context(monkeypatch):
    text = [1, 2, 3, 4] * 10
    assert proposed(drafter(monkeypatch, "prompt_lookup"), (text[:38], 1)) == [[3]]
    assert proposed(drafter(monkeypatch, "prompt_lookup"), (text[:39], 1)) == [[]]


@pytest.mark.parametrize("told", ["", "[]", '{"method": "eagle3"}', '{"method": "suffix_decoding"}'])
def test_a_variable_that_names_no_such_drafter_stops_the_server_with_a_sentence(told, monkeypatch):
    monkeypatch.setenv(DRAFTER, told)
    with pytest.raises(BadInput, match=DRAFTER):
        Drafter(SimpleNamespace())
