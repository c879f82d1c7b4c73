"""Seven families of vision-language models: a tree pass equals every path alone, the cache a fresh prefill."""

import pytest
import torch
from transformers import LlamaConfig, LlavaConfig, MllamaConfig, MllamaForConditionalGeneration

from specviz.engine.tree import DraftTree
from specviz.errors import BadInput, ModelUnavailable
from specviz.targets import image_prompt as sights
from specviz.targets.vision_language import VisionLanguageTarget, family_of
from tests.support.tiny.vision import FAMILIES as TINY
from tests.support.tiny.vision import IMAGE, tiny_vision

BRANCHES = [11, 12, 13, 14, 15, 16, 17, 18, 19]
LAYERS = 3
PARENTS = [-1, 0, 0, 0, 1, 1, 2, 4, 4, 7]
KINDS = list(TINY)
TWO_WAYS = {"gemma3", "paligemma"}
# One-way prompts can be captured in a graph; the others are refused there, which is tested below.
WAYS = [(kind, attention, "eager") for kind in KINDS for attention in ("sdpa", "eager")]
WAYS += [(kind, "sdpa", "graph") for kind in KINDS if kind not in TWO_WAYS]


def target_of(tiny, tier="eager", seed=None):
    """On the tiny model's own picture, or on another one."""
    inputs = dict(tiny.prompt.inputs)
    if seed is not None:
        pixels = inputs["pixel_values"]
        generator = torch.Generator().manual_seed(seed)
        inputs["pixel_values"] = torch.randn(pixels.shape, generator=generator, dtype=torch.float64).to(pixels.dtype)
    axes = family_of(tiny.model, tiny.name).axes
    return VisionLanguageTarget(tiny.model, tiny.name, (), sights.sight(tiny.model, tiny.prompt.ids, inputs, axes), tier)


def far(one, other):
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.spread(3)
@pytest.mark.parametrize(("kind", "attention", "tier"), WAYS)
def test_a_tree_pass_equals_every_path_alone(kind, attention, tier):
    tiny = tiny_vision(kind, attention)
    ids = list(tiny.prompt.ids)
    session = target_of(tiny, tier).open(64)
    first = session.prefill(ids[:-1])
    tree = DraftTree.of([ids[-1], *BRANCHES], PARENTS)
    logits = session.score(tree).logits
    assert session.length == len(ids) - 1
    assert first.logits.shape == (1, logits.shape[1])
    for node in range(len(tree)):
        path = [tree.host_tokens[one] for one in tree.shape.path(node)][1:]
        assert far(logits[node], tiny.whole(path)[-1]) < 1e-5
    session.keep((0, 1, 4, 7, 9))
    after = session.score(DraftTree.of([60], [-1])).logits[0]
    assert far(after, tiny.whole([11, 14, 17, 19, 60])[-1]) < 1e-5


@pytest.mark.spread(3)
@pytest.mark.parametrize("kind", KINDS)
def test_taps_cover_the_whole_prompt(kind):
    tiny = tiny_vision(kind, dtype=torch.float64)
    prompt = tiny.prompt
    hidden = target_of(tiny).open(64, taps=(0, LAYERS)).prefill(prompt.ids[:-1]).hidden
    tokens = torch.tensor([prompt.ids])
    with torch.no_grad():
        found = tiny.model(input_ids=tokens, use_cache=False, output_hidden_states=True, **prompt.inputs).hidden_states
    for layer in (0, LAYERS):
        assert hidden[layer].shape == (len(prompt.ids) - 1, 48)
        assert far(hidden[layer], found[layer][0, : len(prompt.ids) - 1]) < 1e-9


@pytest.mark.spread(3)
@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_behind_the_picture_may_be_read_in_pieces(kind):
    tiny = tiny_vision(kind, dtype=torch.float64)
    ids = [*tiny.prompt.ids, *BRANCHES]
    target = target_of(tiny)
    whole_session = target.open(64, taps=(LAYERS,))
    whole = whole_session.prefill(ids)
    target.piece = 2
    session = target.open(64, taps=(LAYERS,))
    pieces = session.prefill(ids)
    assert session.length == whole_session.length and pieces.hidden[LAYERS].shape == whole.hidden[LAYERS].shape
    assert far(pieces.logits, whole.logits) < 1e-9 and far(pieces.hidden[LAYERS], whole.hidden[LAYERS]) < 1e-9


def test_positions_of_a_run_never_reach_the_shared_model():
    tiny = tiny_vision("qwen2_5vl")
    first, second = target_of(tiny), target_of(tiny, seed=1)
    assert first.sight.shift == -2  # four patches take two rows and columns
    one, two = first.open(64), second.open(64)
    one.prefill(tiny.prompt.ids[:-1])
    two.prefill(tiny.prompt.ids[:-1])
    tree = DraftTree.of([tiny.prompt.ids[-1], *BRANCHES], PARENTS)
    before = one.score(tree).logits.clone()
    one.rewind(one.length)
    two.score(tree)
    assert torch.equal(one.score(tree).logits, before)
    assert tiny.model.model.rope_deltas is None


def test_only_the_last_few_pictures_are_kept(monkeypatch):
    tiny = tiny_vision("smolvlm")
    monkeypatch.setattr(sights, "KEPT", 2)
    first = target_of(tiny, seed=0).sight
    for seed in (1, 2):
        target_of(tiny, seed=seed)
    assert target_of(tiny, seed=0).sight.features is not first.features


def test_the_picture_is_not_sent_again_with_the_trees(monkeypatch):
    tiny = tiny_vision("llava")
    session = target_of(tiny).open(64)
    shown = []
    forward = tiny.model.forward

    def watched(*args, **kwargs):
        shown.append("mm_encoder_outputs" in kwargs)
        return forward(*args, **kwargs)

    monkeypatch.setattr(tiny.model, "forward", watched)
    session.prefill(tiny.prompt.ids[:-1])
    session.score(DraftTree.of([5, 6], [-1, 0]))
    assert shown == [True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_text_without_a_picture_is_text(kind):
    target, ids = target_of(tiny_vision(kind)), [9, 14, 22, 31, 40, 41, 17]
    session = target.open(64)
    session.prefill(ids[:4])
    logits = session.score(DraftTree.of(ids[4:], range(-1, 2))).logits
    assert far(target.open(64).prefill(ids).logits[0], logits[-1]) < 1e-5


def test_another_text_with_a_place_for_a_picture_is_refused():
    tiny = tiny_vision("smolvlm")
    session = target_of(tiny).open(64)
    with pytest.raises(BadInput, match="not the picture"):
        session.prefill([17, *[IMAGE] * 4, 18])
    with pytest.raises(BadInput, match="not the picture"):
        session.prefill(tiny.prompt.ids[:6])  # cut in the middle of the picture


def test_a_prompt_and_its_picture_have_to_belong_together():
    tiny = tiny_vision("smolvlm")
    ids, inputs = tiny.prompt.ids, tiny.prompt.inputs
    with pytest.raises(BadInput, match="Choose one"):
        sights.sight(tiny.model, ids, {})
    with pytest.raises(BadInput, match="no placeholder for it"):
        sights.sight(tiny.model, [14, 15, 16], inputs)
    with pytest.raises(BadInput, match="4 tokens, but the prompt has 3 placeholders"):
        sights.sight(tiny.model, [14, *[IMAGE] * 3, 16], inputs)
    with pytest.raises(BadInput, match="add a question"):
        VisionLanguageTarget(tiny.model, "smolvlm", (), sights.sight(tiny.model, [14, *[IMAGE] * 4], inputs))


def test_models_that_cannot_work_are_refused_with_a_reason():
    crossing = MllamaForConditionalGeneration.__new__(MllamaForConditionalGeneration)
    torch.nn.Module.__init__(crossing)
    crossing.config = MllamaConfig(text_config={"num_hidden_layers": 2, "cross_attention_layers": [1]})
    crossing.config._attn_implementation = "sdpa"
    with pytest.raises(ModelUnavailable, match="type mllama, for which tree passes are untested"):
        family_of(crossing, "a model that looks across")
    recurrent = tiny_vision("llava").model
    recurrent.config = LlavaConfig(
        text_config=LlamaConfig(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"]).to_dict()
    )
    recurrent.config._attn_implementation = "sdpa"
    with pytest.raises(ModelUnavailable, match="linear_attention, which cannot hold the branches"):
        family_of(recurrent, "a hybrid")
    sliding = tiny_vision("paligemma").model
    sliding.config.text_config.layer_types = ["sliding_attention"] * LAYERS
    with pytest.raises(ModelUnavailable, match="no sliding_window"):
        family_of(sliding, "PaliGemma 2")
    sliding.config.text_config.sliding_window = 4
    with pytest.raises(ModelUnavailable, match="takes one mask"):
        family_of(sliding, "PaliGemma 2")


@pytest.mark.parametrize("kind", sorted(TWO_WAYS))
def test_prompts_that_look_both_ways_are_refused_in_the_graph_tier(kind):
    with pytest.raises(BadInput, match="bidirectional attention"):
        target_of(tiny_vision(kind), "graph")
    assert target_of(tiny_vision(kind), "auto").tier == "eager"
