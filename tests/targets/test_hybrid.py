"""Hybrid and pure Mamba-2 targets: a tree in one pass equals every path alone, and what is kept equals a fresh prefill."""

import numpy as np
import pytest
import torch

from specviz.engine.tree import DraftTree
from specviz.errors import ContextFull, ModelUnavailable
from specviz.targets.hybrid import CHUNK, REWIND
from tests.support.rounds import entries
from tests.support.tiny.hybrid import VOCAB, delta, delta_experts, granite, hybrid, pure, random_parents, target
from tests.support.tiny.text import tiny_llama

MODELS = {
    "hybrid": hybrid,
    "pure": pure,
    "pure, wide residual": lambda **kind: pure(residual_in_fp32=True, **kind),
    "granite": granite,
    "granite with experts": lambda **kind: granite(experts=4, **kind),
    "delta": delta,
    "delta with experts": delta_experts,
}
KINDS = ["hybrid", "pure", "granite", "delta", "delta with experts"]
PROMPT = [5, 9, 2, 44, 17, 30, 8, 21, 3, 40, 33, 12]
TREE = DraftTree.of([12, 1, 2, 3, 4, 5, 6, 7], [-1, 0, 0, 1, 2, 2, 4, 4])


def library(model, ids):
    """The library's own forward, which computes norms and scan in float32 whatever the model's dtype."""
    return model(torch.tensor([ids]), use_cache=False).logits[0, -1].to(model.dtype)


def one_by_one(session, ids):
    """Tokens through the session one at a time: the recurrence walked, no tree."""
    row = torch.empty(0)
    for token in ids:
        row = session.score(DraftTree.of([token], [-1])).logits[0]
        session.keep((0,))
    return row


def random_tree(nodes, seed):
    generator = np.random.default_rng(seed)
    return DraftTree.of(generator.integers(0, VOCAB, nodes).tolist(), random_parents(nodes, generator, 0.6))


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", list(MODELS))
def test_every_node_equals_the_library_on_its_path(kind, dtype):
    model = MODELS[kind](dtype=dtype)
    session = target(model).open(64)
    wanted = library(model, PROMPT[:-1])
    assert torch.allclose(session.prefill(PROMPT[:-1]).logits[0], wanted, atol=2e-4)
    ids = list(PROMPT[:-1])
    for seed in range(2):
        tree = random_tree(24, seed)
        logits = session.score(tree).logits
        for node in range(0, 24, 3):
            path = [tree.host_tokens[one] for one in tree.shape.path(node)]
            assert torch.allclose(logits[node], library(model, ids + path), atol=5e-4), (seed, node)
        deepest = tree.shape.path(tree.shape.depths.index(max(tree.shape.depths)))
        session.keep(deepest)  # the second tree then stands on a replayed state
        ids += [tree.host_tokens[one] for one in deepest]


def audit(session, ids, limit=1e-11):
    """Window, state, keys and values equal a fresh prefill of the same text."""
    fresh = session.target.open(256)
    fresh.prefill(ids)
    assert session.length == fresh.length == len(ids)
    assert float((session.carried.state - fresh.carried.state).abs().max()) < limit
    assert float((session.carried.window - fresh.carried.window).abs().max()) < limit
    for ours, theirs in zip(entries(session), entries(fresh), strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            assert torch.allclose(mine, other, atol=limit)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_prompt_is_read_in_parts(kind):
    model = MODELS[kind]()
    ids = np.random.default_rng(1).integers(0, VOCAB, 2 * CHUNK + 7).tolist()
    session = target(model).open(512)
    assert torch.allclose(session.prefill(ids).logits[0], library(model, ids), atol=1e-3)
    walked = target(model).open(512)
    one_by_one(walked, ids)
    assert torch.allclose(session.carried.state, walked.carried.state, atol=1e-11)


@pytest.mark.spread(1)
@pytest.mark.parametrize("kind", KINDS)
def test_going_back_a_little_and_far(kind):
    session = target(MODELS[kind]()).open(512)
    session.prefill(PROMPT)
    session.rewind(len(PROMPT) - 1)  # from now on it keeps what it takes to go back
    one_by_one(session, PROMPT[-1:])
    ids = list(PROMPT)
    for seed in range(3 * REWIND // 4):
        tree = DraftTree.of([seed % VOCAB, 3, 1, 7], [-1, 0, 1, 2])
        session.score(tree)
        session.keep((0, 1, 2, 3))
        ids += tree.host_tokens
    for length in (len(ids) - 1, len(ids) - 9, len(ids) - REWIND + 8, len(ids) - 2 * REWIND, len(PROMPT), 5, 0):
        session.rewind(length)
        if length:
            audit(session, ids[:length])
    session.prefill(ids)
    audit(session, ids)


def test_only_a_session_that_goes_back_keeps_what_it_takes_to_go_back(monkeypatch):
    session, tree = target(hybrid()).open(200), DraftTree.of([1, 2, 3], [-1, 0, 1])
    session.prefill(PROMPT)
    for _ in range(8):
        session.score(tree)
        session.keep((0, 1, 2))
        session.rewind(session.length)
    assert session._earlier is None, "a target that verifies"
    ids = [*PROMPT, *tree.host_tokens * 8]
    session.rewind(len(ids) - 2)
    audit(session, ids[:-2])
    one_by_one(session, ids[-2:])
    monkeypatch.setattr(session, "prefill", lambda ids: pytest.fail("it was kept"))
    session.rewind(len(ids) - 1)
    audit(session, ids[:-1])


def test_a_pass_that_was_not_kept_leaves_no_trace():
    session = target(hybrid()).open(64)
    session.prefill(PROMPT)
    first = session.score(TREE).logits
    session.rewind(session.length)
    session.score(random_tree(9, 5))
    assert torch.equal(session.score(TREE).logits, first)
    session.rewind(session.length)
    audit(session, PROMPT)


@pytest.mark.parametrize("kind", ["hybrid", "granite", "delta"])
def test_tapped_layers_are_the_library_s_hidden_states(kind):
    model = MODELS[kind]()
    last = model.config.num_hidden_layers  # behind the final norm, where MTP layers start
    session = target(model).open(64, taps=(0, 2, last))
    found = session.prefill(PROMPT)
    wanted = model(torch.tensor([PROMPT]), use_cache=False, output_hidden_states=True).hidden_states
    for layer in (0, 2, last):
        assert torch.allclose(found.hidden[layer], wanted[layer][0], atol=1e-4), layer


def test_the_pass_tells_of_its_decays_and_of_what_states_would_cost():
    session = target(hybrid()).open(64)
    session.prefill(PROMPT)
    (note,) = session.score(TREE).notes()
    data = note.data
    assert note.type == "decay_mask" and data["layers"] == ["state", "attention", "state"] and data["taps"] == 4
    assert [head["name"] for head in data["heads"]] == ["slow", "middle", "fast"]
    for head in data["heads"]:
        fade = head["fade"]
        assert all(fade[node] <= fade[parent] for node, parent in enumerate(TREE.shape.parents) if parent >= 0)
        assert fade[0] <= 0
    slow, _, fast = (sum(head["fade"]) for head in data["heads"])
    assert slow > fast, "the fast head forgets more"
    state = 2 * 4 * 16 * 8 * 8  # layers, heads, head size, state, bytes of a float64
    assert (data["state_bytes"], data["per_node_bytes"]) == (state, 8 * state)
    assert data["replay_bytes"] == 2 * 8 * (64 + 2 * 2 * 8 + 4) * 8 < data["per_node_bytes"]
    assert session.score(DraftTree.of([12], [-1])).notes() == (), "a lone root has no branches to tell of"


def test_what_cannot_run_says_why():
    with pytest.raises(ModelUnavailable, match="Mamba-2"):
        target(tiny_llama())
    with pytest.raises(ContextFull, match="1024"):
        target(hybrid()).open(2000)
