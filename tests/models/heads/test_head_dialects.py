"""Every dialect of published heads computes what its trainer computes: against transformers' layers, and our own networks."""

import math

import pytest
import torch

from specviz.drafting.networks.eagle_head import EagleRuntime
from specviz.errors import ModelUnavailable
from specviz.models.heads.published import read
from specviz.models.hub.published import LAYOUTS, Fit, layout_of
from tests.support.referee.decoder_layer import below, decoder_layer
from tests.support.referee.speculators_heads import DEPTH, filled
from tests.support.referee.stored_heads import FIT, HEADS, furthest
from tests.support.tiny.published_heads import (
    CONFIG,
    EAGLE4,
    HEAD_SIZE,
    HIDDEN,
    NARROW,
    VOCAB,
    eagle4_tensors,
    feature_tensors,
    logits_of,
    narrow_tensors,
    opened,
    target,
    text,
)
from tests.support.tiny.text import tiny_llama
from tests.support.worlds.feature import tiny_net


def head_of(kind, stored, fit=None):
    head = read(kind, stored, fit or target())
    return head


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_heads_of_the_first_kind_are_decoder_layers_without_a_norm_before(tmp_path, layers, biased):
    tensors = narrow_tensors(layers, biased)
    config = {**NARROW, "num_hidden_layers": layers, "qkv_bias": biased}
    head = head_of("eagle", opened(tmp_path, tensors, config))
    tokens, features = text()[0], text()[1][:, :HIDDEN]
    part = below(tensors, "")
    x = torch.cat((target().embedding[tokens], features), dim=-1) @ part["fc.weight"].T + part["fc.bias"]
    for number in range(layers):
        x = decoder_layer(below(part, f"layers.{number}."), x, torch.arange(len(tokens)), 4, theta=5000.0, eps=1e-5)
    assert (logits_of(head, tokens, features) - x @ target().head.T).abs().max() < 1e-9
    assert head.config.taps == (2,)


def test_settings_that_vllm_wraps_once_more_are_read(tmp_path):
    plain = head_of("eagle", opened(tmp_path / "plain", narrow_tensors(), NARROW))
    wrapped = head_of("eagle", opened(tmp_path / "vllm", narrow_tensors(), {"model_type": "eagle", "model": NARROW}))
    assert plain.config == wrapped.config


FLAT = [name for name, case in HEADS.items() if case["config"]["transformer_layer_config"]["num_hidden_layers"] == 1]


@pytest.mark.spread(11)
@pytest.mark.parametrize("name", FLAT)
def test_the_same_head_with_flat_settings_computes_the_same(tmp_path, name):
    case = HEADS[name]
    outer, inner = case["config"], case["config"]["transformer_layer_config"]
    kept = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "eagle_aux_hidden_state_layer_ids")
    flat = {**inner, **{flag: outer[flag] for flag in kept}, "architectures": ["LlamaForCausalLMEagle3"]}
    tensors = {part.replace("layers.0.", "midlayer."): filled(part, shape) for part, shape in case["tensors"].items()}
    if name == "yarn":
        flat["rope_scaling"] = flat.pop("rope_parameters")
    head = head_of("eagle3", opened(tmp_path, tensors, flat), FIT)
    assert furthest(head, name, 1 if "window" in name else DEPTH) < 1e-4
    assert any("norm_output is read as vLLM" in note for note in head.notes) == outer["norm_output"]


def test_a_head_narrower_than_its_target_is_read_with_what_it_brings(tmp_path):
    wide = Fit("wide", 8, torch.randn(FIT.embedding.shape[0], 24), torch.randn(FIT.embedding.shape[0], 24))
    tensors = {part: filled(part, shape) for part, shape in HEADS["llama"]["tensors"].items()}
    tensors["fc.weight"] = filled("fc.weight", [16, 72])
    flat = {**HEADS["llama"]["config"]["transformer_layer_config"], "target_hidden_size": 24}
    flat["eagle_aux_hidden_state_layer_ids"] = [2, 4, 5]
    head = head_of("eagle3", opened(tmp_path / "whole", tensors, flat), wide)
    assert EagleRuntime(head).fuse(torch.zeros(3, 72)).shape == (3, 16)
    del tensors["embed_tokens.weight"]
    with pytest.raises(ModelUnavailable, match="width 24 and is 16 wide"):
        head_of("eagle3", opened(tmp_path / "bare", tensors, flat), wide)


def test_layer_numbers_that_engines_count_in_two_ways_are_told(tmp_path):
    nested = {**CONFIG, "eagle_aux_hidden_state_layer_ids": None, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}}
    head = head_of("eagle3", opened(tmp_path, feature_tensors(), nested))
    assert head.config.taps == (1, 2, 2) and any("vLLM 0.32 takes the states before them" in note for note in head.notes)
    deepspec = {**CONFIG, "eagle_aux_hidden_state_layer_ids": None, "target_layer_ids": [0, 1, 1], "ttt_length": 7}
    assert head_of("eagle3", opened(tmp_path, feature_tensors(), deepspec)).config.taps == (1, 2, 2)


@pytest.mark.parametrize("fed", [True, False])
def test_a_low_rank_head_chooses_the_candidates_that_the_output_head_scores(tmp_path, fed):
    tensors, config = eagle4_tensors(), {**EAGLE4, "norm_output": fed}
    head = head_of("eagle3", opened(tmp_path / "low rank", tensors, config))
    factors = [tensors.pop(f"efficient_lm_head{part}.weight").double() for part in ("", "_down_proj")]
    whole = head_of("eagle3", opened(tmp_path / "whole", tensors, {**config, "efficient_lm_head_config": None}))
    tokens, features = text()
    found, full = logits_of(head, tokens, features), logits_of(whole, tokens, features)
    entering = torch.linalg.lstsq(tensors["lm_head.weight"].double(), full.T).solution  # both heads read the same input
    chosen = (factors[0] @ factors[1] @ entering).T.topk(16).indices
    expected = torch.full((len(tokens), VOCAB), -math.inf, dtype=torch.float64).scatter(-1, chosen, full.gather(-1, chosen))
    assert torch.allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("wide", [True, False])
def test_our_own_network_is_the_same_head(wide):
    net = tiny_net(tiny_llama(), wide, 30)
    runtime = net.runtime()
    tokens = text()[0]
    features = torch.randn(len(tokens), len(net.config.taps) * net.config.hidden, dtype=torch.float64)
    rows, mask = torch.arange(len(tokens)), torch.ones(len(tokens), len(tokens)).tril().bool()
    cache = runtime.open(16)
    outputs = runtime(tokens, runtime.fuse(features), rows, cache, 0, mask)
    assert (logits_of(net.as_head("own"), tokens, features) - runtime.logits(outputs)).abs().max() < 1e-9


def test_three_positions_turn_the_rates_of_their_own_axis(tmp_path):
    rope = {"type": "mrope", "mrope_section": [1, 1, 1]}
    runtime = EagleRuntime(head_of("eagle3", opened(tmp_path, feature_tensors(), {**CONFIG, "rope_scaling": rope})))
    places = torch.tensor([[0, 1, 2, 2, 2, 5], [0, 1, 2, 3, 2, 5], [0, 1, 2, 2, 4, 5]])
    cosine, sine = runtime._turns(places)
    for row in range(6):
        for rate in range(3):  # time, height, width: one rate each
            angle = float(places[rate, row]) * 5000.0 ** -(2 * rate / HEAD_SIZE)
            assert float(cosine[row, 0, rate]) == pytest.approx(math.cos(angle)) == float(cosine[row, 0, 3 + rate])
            assert float(sine[row, 0, 3 + rate]) == pytest.approx(math.sin(angle)) == -float(sine[row, 0, rate])
    words = torch.arange(6)
    assert torch.equal(runtime._turns(words)[0], runtime._turns(words.expand(3, 6))[0]), "words have one position three times"


@pytest.mark.parametrize(
    ("architecture", "rope", "woven"),
    [
        ("LlamaForCausalLMEagle3", {"type": "mrope"}, False),
        ("Eagle3LlamaForCausalLM", {"type": "mrope"}, True),
        ("LlamaForCausalLMEagle3", {"rope_type": "default", "mrope_interleaved": True}, True),
    ],
)
def test_trainers_deal_out_rates_each_in_their_own_way(tmp_path, architecture, rope, woven):
    config = {**CONFIG, "architectures": [architecture], "rope_scaling": {**rope, "mrope_section": [1, 1, 1]}}
    assert head_of("eagle3", opened(tmp_path, feature_tensors(), config)).config.how.sections_woven is woven


def test_a_window_follows_the_positions_and_not_the_columns(tmp_path):
    config = {**CONFIG, "layer_types": ["sliding_attention"], "sliding_window": 3}
    tokens, features = text()
    runtime = EagleRuntime(head_of("eagle3", opened(tmp_path, feature_tensors(), config)))

    def drafted(changed):
        """A sibling's child: column 8, at position 6; what stands at ``changed`` in the text is another token."""
        cache, rows = runtime.open(9), torch.arange(5)
        words = tokens.clone()
        words[changed] = (words[changed] + 1) % 48
        runtime(words[:5], runtime.fuse(features[:5]), rows, cache, 0, torch.ones(5, 5).tril().bool())
        places, mask = torch.tensor([5, 5, 5, 6]), torch.ones(4, 9).bool()
        mask[:, 5:] = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]).bool()
        return runtime(tokens[1:5], runtime.fuse(features[1:5]), places, cache, 5, mask)[-1]

    seen = drafted(6)  # no column at all
    assert torch.equal(drafted(3), seen), "position 3 lies three behind position 6"
    assert not torch.equal(drafted(4), seen)


def test_partial_rotation_leaves_the_other_channels(tmp_path):
    head = head_of("eagle3", opened(tmp_path, feature_tensors(), {**CONFIG, "partial_rotary_factor": 0.7}))
    cosine, sine = EagleRuntime(head)._turns(torch.arange(4))
    assert head.config.channels().tolist() == [0, 1, 4, 2, 3, 5], "the two channels that stay end the halves"
    for still in (2, 5):
        assert bool((cosine[..., still] == 1).all()) and not bool(sine[..., still].any())
    assert bool(sine[1:, 0, [0, 1, 3, 4]].all())


def test_what_holds_no_heads_is_told_apart_from_heads(tmp_path):
    layers = {f"model.layers.{number}.self_attn.q_proj.weight": torch.zeros(2, 2) for number in (0, 1)}
    for layout, tensors in (("model", layers), ("unknown", {"x": torch.zeros(1)})):
        stored = opened(tmp_path / layout, tensors, {})
        assert layout_of(stored) is LAYOUTS[layout]
        with pytest.raises(ModelUnavailable, match="eagle3 requires heads made for it"):
            read("eagle3", stored, target())
