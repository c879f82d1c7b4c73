"""Layers side by side: what they compute, that drafts made so leave the target's text and distribution as they are, and the
repair."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.acceptance.exact import Rejection
from specviz.drafting.levels import ChainLevels
from specviz.drafting.networks.fused_decoder import spans
from specviz.drafting.runtimes.language_model import DraftModel, SmallModel
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.interfaces import Composition, SingleDrafter
from specviz.engine.sampling import Warp
from specviz.engine.tree import chain
from specviz.methods.easyspec.layer_parallel import FusedFuzzy, GroupedDrafter, GroupedRuntime, SmallFuzzy, grouped_model
from specviz.methods.registry import get
from specviz.models.heads.intermediate_models import lean_copy
from specviz.targets.text import TextTarget
from tests.support.tiny.text import decode, parts_for, tiny_target
from tests.support.worlds.text import DEEP, GREEDY, PROMPT, WARPS, compose, deep_target, grouped, small
from tests.support.worlds.three_tokens import keeps_distribution


def composed(values: dict[str, Any], target: TextTarget, warp: Warp) -> Composition:
    return compose("easyspec", values, target, warp)


def test_the_first_and_the_last_layer_are_alone():
    assert spans(6, 1) == ((0,), (1,), (2,), (3,), (4,), (5,))
    assert spans(6, 4) == spans(6, 5) == ((0,), (1, 2, 3, 4), (5,))
    assert spans(30, 4)[-2:] == ((25, 26, 27, 28), (29,))
    assert [len(spans(30, group)) for group in (1, 2, 3, 4, 5)] == [2 + -(-28 // group) for group in (1, 2, 3, 4, 5)]
    assert (spans(1, 4), spans(2, 4)) == (((0,),), ((0,), (1,)))


@pytest.mark.parametrize("group", [1, 2, 3, 4])
def test_a_decoders_groups_are_what_the_models_own_layers_give(group):
    """An independent account: the model's modules, attention of a group from one input, feed-forward one by one."""
    target = deep_target()
    body, ids = target.model.model, torch.tensor([PROMPT])
    x = body.embed_tokens(ids)
    turns = body.rotary_emb(x, torch.arange(len(PROMPT))[None])
    hidden = torch.full((len(PROMPT), len(PROMPT)), float("-inf"), dtype=x.dtype).triu(1)[None, None]
    for span in spans(DEEP, group):
        layers = [body.layers[place] for place in span]
        found = [
            layer.self_attn(layer.input_layernorm(x), position_embeddings=turns, attention_mask=hidden)[0] for layer in layers
        ]
        for layer, attended in zip(layers, found, strict=True):
            x = x + attended
            x = x + layer.mlp(layer.post_attention_layernorm(x))
    wanted = target.model.lm_head(body.norm(x))[0]
    run = FusedFuzzy(lean_copy(target, group=group), target.vocab_size, True)
    found = run.extend(PROMPT, True)
    assert torch.allclose(found, wanted[-1], atol=1e-4)
    if group > 1:
        exact = target.model(ids).logits[0, -1]
        assert float((found - exact).abs().max()) > 1e-3, "side by side is not the same as one after the other"


def attention_alone(block: Any) -> Any:
    """A copy of the layer whose feed-forward adds nothing."""
    alone = copy.deepcopy(block)
    torch.nn.init.zeros_(alone.down.weight)
    return alone


def stepwise(model: Any, groups: Any, ids: list[int]) -> Tensor:
    """The small model's groups by its training layers: [draft] after the last token."""
    cosine, sine = model.turns(torch.arange(len(ids)))
    pair = torch.tensor([[0, *ids[:-1]], ids]).T
    x = model.enter(F.embedding(pair, model.embedding).flatten(-2))[None]
    for span in groups:
        blocks = [model.blocks[place] for place in span]
        found = [attention_alone(block)(x, cosine, sine) - x for block in blocks]
        for block, attended in zip(blocks, found, strict=True):
            x = x + attended
            x = x + block.down(F.relu(block.up(F.rms_norm(x, (x.shape[-1],)))).square())
    return (F.rms_norm(x, (x.shape[-1],)) @ model.head().T + model.bias)[0, -1]


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("group", [1, 2])
def test_the_small_models_groups_are_what_its_blocks_give(group, fixed):
    model = small(tiny_target())
    runtime = GroupedRuntime(model, group)
    with torch.inference_mode():
        whole = SmallFuzzy(model, 100, fixed, (runtime, runtime)).chain(PROMPT, 9).ask()
        levels = SmallFuzzy(model, 100, fixed, (runtime, runtime)).chain(PROMPT[:-3], 9)
        levels.ask()
        for token in PROMPT[-3:]:
            single = levels.ask(torch.tensor([token]), torch.tensor([0]))
    assert torch.allclose(whole[0], stepwise(model, runtime.spans, PROMPT), atol=1e-9)
    assert torch.allclose(single, whole, atol=1e-9), "token by token the same"


@pytest.mark.spread(1)
@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_draft_of_the_target_itself_is_kept_as_far_as_it_is_exact(group):
    """One layer at a time the draft is the target's own text; side by side only the first token of a round is."""
    target = deep_target()
    model = grouped_model("itself", lean_copy(target, group=group), target)
    composition = Composition(SingleDrafter(GroupedDrafter(model), Sampled(chain(4))), Rejection())
    run = decode(target, composition, PROMPT, 60, GREEDY)
    kept = [len(step.path) for step in run.steps[:-1]]
    assert min(kept) >= 1, "the distribution after the exact pass is the target's own"
    assert (set(kept) == {4}) == (group == 1)


@pytest.mark.slow
def test_one_layer_a_group_is_speculative_sampling():
    """The strict end: same draws, same distributions, same text."""
    target, warp = tiny_target(), WARPS["warm"]
    model = small(target)
    draft = DraftModel("small", 1024, lambda capacity: SmallModel(model, capacity))
    plain = get("speculative_sampling")
    usual = plain.compose(plain.parameters(gamma=4), parts_for(target, warp).using(draft_model=lambda: draft))
    ours = composed({"group": 1, "gamma": 4}, target, warp)
    first, second = (decode(target, one, PROMPT, 120, warp, 5) for one in (usual, ours))
    assert first.ids == second.ids
    for one, other in zip(first.steps, second.steps, strict=True):
        assert [node.q for node in one.nodes[1:]] == pytest.approx([node.q for node in other.nodes[1:]], abs=1e-9)


@pytest.mark.parametrize("calibrated", [True, False])
def test_a_round_without_a_draft_has_no_note_on_one(calibrated):
    target = tiny_target(context=len(PROMPT) + 9)
    run = decode(target, composed({"group": 2, "gamma": 2, "calibrated": calibrated}, target, GREEDY), PROMPT, 9, GREEDY)
    drafted = [step.verified > 0 for step in run.steps]
    assert drafted == [bool(step.notes) for step in run.steps] and {*drafted} == {True, False}


class _Watched(GroupedDrafter):
    """Compares the cache with a fresh exact one after each round's first pass, and every distribution with a fresh fuzzy one."""

    worst, checked, fuzziest = 0.0, 0, 0.0

    def levels(self, context):
        inner, drafted = super().levels(context), list[int]()

        def after(token):
            drafted.extend([] if token is None else token.tolist())
            found = inner.ask() if token is None else inner.ask(token, torch.tensor([0]))
            assert self._model is not None
            fresh = self._grouped.open(200, True)
            again = fresh.chain(context.ids, 9)
            wanted = again.ask()
            if not drafted:
                self._note(self._model.entries(0, len(context.ids)), fresh.entries(0, len(context.ids)))
            for one in drafted:
                wanted = again.ask(torch.tensor([one]), torch.tensor([0]))
            self._note(found.softmax(-1), wanted.softmax(-1))
            if drafted:
                after = len(context.ids), len(context.ids) + len(drafted)
                plain = self._grouped.open(200, True)
                plain.extend([*context.ids, *drafted])
                type(self).fuzziest = max(self.fuzziest, float((plain.entries(*after) - fresh.entries(*after)).abs().max()))
            return found[0]

        return ChainLevels(after, inner.deepest)

    def _note(self, found, wanted):
        type(self).worst = max(self.worst, float((found - wanted).abs().max()))
        type(self).checked += 1


@pytest.mark.spread(1)
@pytest.mark.parametrize("kind", ["small_draft", "draft"])
def test_every_round_begins_exact_and_drafts_with_the_distributions_it_kept(kind):
    target, warp = tiny_target(), WARPS["warm"]
    _Watched.worst, _Watched.checked, _Watched.fuzziest = 0.0, 0, 0.0
    controller = SingleDrafter(_Watched(grouped(kind, target, 4)), Sampled(chain(3)))
    decode(target, Composition(controller, Rejection()), PROMPT, 40, warp, 2)
    assert _Watched.checked > 60 and _Watched.worst < 1e-9
    assert _Watched.fuzziest > 1e-3, "drafted entries are fuzzy, or nothing was repaired"


@pytest.mark.slow
def test_whole_runs_keep_the_distribution():
    """Also with entries that nobody repairs."""
    target = tiny_target(vocab=3)
    model = grouped("small_draft", target, 2)
    made = lambda: Composition(SingleDrafter(GroupedDrafter(model, False), Sampled(chain(2))), Rejection())  # noqa: E731
    assert keeps_distribution(target, made, 250)
