"""The ladder for trees on state-space targets, composed as a user gets them: hybrid and pure, exact and by the ratio test."""

from functools import cache, partial

import pytest
import torch

from specviz.drafting.trees.sampled import Sampled
from specviz.engine.interfaces import SingleDrafter
from specviz.engine.sampling import Warp
from specviz.engine.tree import shape_from_counts
from specviz.errors import BadInput, ModelUnavailable
from specviz.methods.stree.drafter import TreeModelDrafter
from specviz.targets.hybrid import HybridSession, HybridTarget
from tests.support import rounds
from tests.support.tiny.hybrid import hybrid, target
from tests.support.tiny.text import tiny_target
from tests.support.worlds.fancy import Fancy, outside
from tests.support.worlds.hybrid import BEAM, GREEDY, MODELS, PROMPT, WARM, Audited, alone, compose, models, run
from tests.support.worlds.three_tokens import PROMPT as SHORT
from tests.support.worlds.three_tokens import VOCAB, keeps_distribution

Values = dict[str, object]


@pytest.mark.slow
def test_a_drafter_that_is_the_target_is_accepted_whole():
    found = models("hybrid")[0]
    kept = run({"depth": 4, "width": 1, "nodes": 4}, (found, found), GREEDY, 100)
    assert tuple(kept.ids) == alone("hybrid", torch.float64, "greedy")[:100]
    assert all(len(step.path) == 4 for step in kept.steps[:-1])


@pytest.mark.spread(1)
@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_a_drafter_all_of_whose_layers_attend_will_do(tier):
    """Its cache is written behind the committed text, so each level's pass has to write over the one before it."""
    kept = run(BEAM, (models("hybrid")[0], tiny_target(tier)), GREEDY, 40)
    assert tuple(kept.ids) == alone("hybrid", torch.float64, "greedy")[:40]


@pytest.mark.parametrize("warped", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("own", [{}, {"nodes": 0}, {"tree": "fixed"}, {"tree": "drawn"}])
def test_heads_draft_where_the_draft_model_only_extends_chains(own, warped):
    found = models("hybrid")[0]
    kept = run({**BEAM, **own}, (found, None), warped, 60)
    assert tuple(kept.ids) == alone("hybrid", torch.float64, "greedy" if warped is GREEDY else "warm")[:60]
    assert any(step.path for step in kept.steps)
    assert any(note.type == "decay_mask" for step in kept.steps for note in step.notes)


@pytest.mark.spread(1)
@pytest.mark.parametrize("kind", list(MODELS))
def test_cache_window_and_state_equal_a_fresh_prefill_after_every_step(kind, monkeypatch):
    found, draft = models(kind)
    monkeypatch.setattr(found, "open", lambda capacity, taps=(): Audited(found, capacity, taps))
    monkeypatch.setattr(draft, "open", lambda capacity, taps=(): Audited(draft, capacity, taps))
    Audited.checked, Audited.worst = 0, 0.0
    kept = run(BEAM, (found, draft), WARM, 40)
    assert Audited.checked > len(kept.steps), "the target's steps and the drafter's"
    assert Audited.worst < 1e-10


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["prompt_lookup", "token_recycling", "suffix_decoding"])
def test_methods_without_a_model_run_through_the_same_pass(name):
    pair = models("hybrid")
    prompt = PROMPT * 3
    kept = run({}, pair, GREEDY, 120, name, prompt)
    assert kept.ids == run({}, pair, GREEDY, 120, "autoregressive", prompt).ids
    assert any(step.path for step in kept.steps)
    assert any(note.type == "decay_mask" for step in kept.steps for note in step.notes)


@pytest.mark.slow
def test_a_chain_drafted_by_the_same_model_runs_too():
    """The draft model of speculative sampling goes back in its text, which a state-space session does by replay."""
    pair = models("pure")
    kept = run({"gamma": 4}, pair, GREEDY, 120, "speculative_sampling")
    assert tuple(kept.ids) == alone("pure", torch.float64, "greedy")[:120]
    assert any(len(step.path) == 4 for step in kept.steps)


@pytest.mark.parametrize(("context", "read"), [(len(PROMPT) - 1, []), (len(PROMPT), [len(PROMPT) - 1])])
def test_a_prompt_beyond_the_drafter_s_context_is_not_read(context, read, monkeypatch):
    found, draft = models("hybrid")[0], models("hybrid", context=context)[1]
    told, prefill = [], HybridSession.prefill
    monkeypatch.setattr(
        HybridSession, "prefill", lambda one, ids: told.extend([len(ids)] * (one.target is draft)) or prefill(one, ids)
    )
    kept = run(BEAM, (found, draft), GREEDY, 10)
    assert tuple(kept.ids) == alone("hybrid", torch.float64, "greedy")[:10] and told == read
    assert [step.verified > 0 for step in kept.steps] == [bool(read), *[False] * (len(kept.steps) - 1)]


def test_what_cannot_run_says_why():
    found, draft = models("hybrid")
    with pytest.raises(ModelUnavailable, match="hybrid-small"):
        compose(BEAM, tiny_target(), draft, GREEDY)
    with pytest.raises(ModelUnavailable, match="near can only extend a chain"):
        compose(BEAM, found, None, GREEDY, named="near")
    assert compose(BEAM, found, None, GREEDY, named="eagle3").draft_name == "eagle3", "as the run reports it"
    with pytest.raises(BadInput, match="drawn"):
        compose({**BEAM, "rule": "ratio"}, found, draft, GREEDY)
    with pytest.raises(ModelUnavailable, match="eagle3"):
        compose({}, found, draft, GREEDY, "eagle3")


# The ratio test.
SHAPE = shape_from_counts([[3], [2, 1]])


context = partial(rounds.context, SHORT, warp=WARM, seed=3, story=False)


@cache
def doubtful() -> tuple[HybridTarget, HybridTarget]:
    """Over three tokens, a target and a drafter whose distributions are neither 0 nor 1."""
    made = [hybrid(vocab=VOCAB, seed=seed) for seed in (0, 4)]
    for model in made:
        model.get_output_embeddings().weight.mul_(0.15)
    return target(made[0]), target(made[1])


@pytest.mark.slow
def test_whole_runs_under_the_ratio_test_keep_the_distribution():
    found, draft = doubtful()
    values: Values = {"depth": 2, "width": 3, "nodes": 6, "tree": "drawn", "rule": "ratio"}
    assert keeps_distribution(found, lambda: compose(values, found, draft, Warp(1.0)), 400)


def test_a_fixed_tree_stays_inside_the_nucleus():
    warp, drafter = Warp(0.8, top_p=0.7), Fancy(3)
    composition = compose({"tree": "fixed", "depth": 3, "width": 4, "nodes": 20}, *models("hybrid"), warp)
    assert isinstance(composition.controller, SingleDrafter)
    draft = composition.controller.builder.build(drafter, rounds.context(warp=warp))
    assert 1 < len(draft.tree) < 21 and not outside(draft, drafter, warp)


def test_the_distributions_kept_with_a_drawn_tree_are_the_ones_its_children_came_from():
    found, draft = doubtful()
    drafter = TreeModelDrafter(draft, VOCAB)
    drafter.begin(context(), None)
    grown = Sampled(SHAPE).build(drafter, context())
    for node, distribution in grown.proposals.items():
        text = [*SHORT[:-1], *(grown.tree.host_tokens[one] for one in grown.tree.shape.path(node))]
        own = WARM.probabilities(draft.open(20).prefill(text).logits)[0]
        assert torch.allclose(distribution.probability, own, atol=1e-12)
