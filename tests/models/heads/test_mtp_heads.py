"""MTP layers in a model's own checkpoint: the published formula, read from either layout, and what is not read told."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from specviz.drafting.networks.decoder_layer import ExpertLayer, plain
from specviz.drafting.networks.eagle_head import EagleRuntime
from specviz.errors import ModelUnavailable
from specviz.models.heads.published import read
from specviz.models.hub.published import LAYOUTS, drafting, layout_of, open_repository
from tests.support.tiny.mtp import KINDS, made, stored

IDS = [5, 9, 2, 44, 17, 30, 8, 21, 3]


def head_of(folder, one):
    head = read("eagle", open_repository(str(folder)), one.fit)
    return head


def chained(head, tokens, states, depth):
    """Logits [step, vocab] of a chain that goes on from the last row with its own best tokens."""
    runtime, rows = EagleRuntime(head), len(tokens)
    cache, place = runtime.open(64), torch.arange(rows)
    output = runtime(tokens, runtime.fuse(states), place, cache, 0, place[None] <= place[:, None])[-1:]
    logits = [runtime.logits(output)]
    for step in range(depth):
        at = rows + step
        output = runtime(logits[-1].argmax(-1), output, torch.tensor([at]), cache, at, None)
        logits.append(runtime.logits(output))
    return torch.cat(logits)


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", KINDS)
def test_an_mtp_layer_computes_the_published_formula_along_a_chain(tmp_path, kind):
    one = made(kind)
    head = head_of(stored(tmp_path, one), one)
    assert head.config.taps == (one.fit.layers,) and head.draft_ids is None
    tokens, states = torch.tensor(IDS[1:]), one.states(IDS)[:-1]
    ours = chained(head, tokens, states, 3)
    for step in range(4):
        logits, outputs = one.foretold(tokens, states)
        assert float((ours[step] - logits[-1]).abs().max()) < 1e-4, step
        tokens, states = torch.cat((tokens, logits[-1:].argmax(-1))), torch.cat((states, outputs[-1:]))


@pytest.mark.spread(1)
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_own_mtp_model_reads_the_same_from_the_same_file(tmp_path, kind):
    """A referee nobody here wrote: its reader, its layer, its head, over the checkpoint that ours was read from."""
    one = made(kind)
    folder = stored(tmp_path, one, num_mtp_layers=1, mtp_layer_types=["full_attention"])
    main = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation=None if kind == "qwen3_5" else "eager"
    )
    if kind == "glm4_moe":  # there by the layer numbers of the two published sizes
        main._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{one.fit.layers}.*"]
    referee = MtpModel.from_pretrained(main)
    tokens, states = torch.tensor(IDS[1:]), one.states(IDS)[:-1]
    cache = MtpCache(config=main.config.get_mtp_config())
    output = referee.forward_layer(0, states[None], torch.arange(len(tokens))[None], cache, input_ids=tokens[None])
    logits = referee._project_to_logits(output)[0]
    assert float((chained(head_of(folder, one), tokens, states, 0)[0] - logits[-1]).abs().max()) < 1e-4


def test_an_mtp_layer_may_draft_over_a_narrow_vocabulary(tmp_path):
    one, ids = made("qwen3_5"), torch.tensor([1, 4, 5, 9, 30])
    mask = torch.zeros(len(one.fit.head), dtype=torch.bool).index_fill(0, ids, True)
    narrow = {"mtp.d2t": ids - torch.arange(len(ids)), "mtp.t2d": mask}
    head = head_of(stored(tmp_path, one, one.tensors | narrow), one)
    assert head.draft_ids.tolist() == ids.tolist()
    assert torch.equal(head.head, one.fit.head[ids])


def test_experts_stored_in_one_tensor_are_the_same(tmp_path):
    one = made("qwen3_5_moe")
    layer = {f"mtp.layers.0.{name}": value for name, value in one.layer.state_dict().items()}
    whole = {name: value for name, value in one.tensors.items() if ".experts." not in name} | layer
    heads = [head_of(stored(tmp_path / str(at), one, tensors), one) for at, tensors in enumerate((one.tensors, whole))]
    tokens, states = torch.tensor(IDS[1:]), one.states(IDS)[:-1]
    assert torch.equal(*(chained(head, tokens, states, 1) for head in heads))


def test_what_chooses_experts_is_not_rounded_to_halves(tmp_path):
    one = made("glm4_moe")
    router = f"model.layers.{one.fit.layers}.mlp.gate."
    bias = 20 + 0.001 * torch.arange(6, dtype=torch.float64)  # 20.0 to the last one in bfloat16
    one.tensors[router + "e_score_correction_bias"], one.tensors[router + "weight"] = bias, torch.zeros(6, 32)
    half = replace(one.fit, embedding=one.fit.embedding.bfloat16(), head=one.fit.head.bfloat16())
    head = read("eagle", open_repository(str(stored(tmp_path, one))), half)
    assert head.tensors["fc.weight"].dtype == torch.bfloat16 and head.config.experts is not None
    part = {name.removeprefix("layers.0."): value for name, value in head.tensors.items() if name.startswith("layers.0.")}
    weights, chosen = ExpertLayer(head.config.experts, part, plain).routed(torch.ones(1, 32, dtype=torch.bfloat16))
    assert set(chosen[0].tolist()) == {4, 5}, "the two best of the better group"
    assert weights.dtype == torch.bfloat16 and torch.allclose(weights.sum(-1), torch.tensor(1.5, dtype=torch.bfloat16))


def test_settings_of_a_model_that_also_sees_are_those_of_its_text(tmp_path):
    one = made("qwen3_5")
    folder = stored(tmp_path, one)
    repository = open_repository(str(folder))
    config = {"model_type": "qwen3_5", "text_config": {**repository.config, "mtp_num_hidden_layers": 1}}
    seeing = type(repository)("seeing", config, repository.files)
    assert read("eagle", seeing, one.fit).config == head_of(folder, one).config
    assert head_of(folder, one).config.how.sections == (2, 1, 1)


def test_the_drafting_tensors_are_told_from_the_model_s(tmp_path):
    for kind, count in (("qwen3_5", 15), ("glm4_moe", 38)):
        one = made(kind)
        repository = open_repository(str(stored(tmp_path / kind, one)))
        assert layout_of(repository) is LAYOUTS["mtp"]
        assert set(drafting(repository).files) == set(one.tensors) and len(one.tensors) == count


def test_a_checkpoint_that_promises_layers_it_has_not_says_so(tmp_path):
    one = made("qwen3_5")
    folder = stored(tmp_path, one, {}, mtp_num_hidden_layers=1)
    assert layout_of(open_repository(str(folder))) is LAYOUTS["empty-mtp"]
    with pytest.raises(ModelUnavailable, match="an engine would draft with random ones"):
        head_of(folder, one)


def test_more_layers_missing_ones_and_strange_ones_are_told(tmp_path):
    one = made("qwen3_5")
    second = {name.replace("layers.0", "layers.1"): value.clone() for name, value in one.tensors.items() if "layers.0" in name}
    with pytest.raises(ModelUnavailable, match="2 MTP layers, one per depth"):
        head_of(stored(tmp_path / "two", one, one.tensors | second), one)
    without = {name: value for name, value in one.tensors.items() if "pre_fc_norm_hidden" not in name}
    with pytest.raises(ModelUnavailable, match="lacks the tensor state_norm.weight"):
        head_of(stored(tmp_path / "less", one, without), one)
    with pytest.raises(ModelUnavailable, match=r"holds mtp\.extra\.weight"):
        head_of(stored(tmp_path / "more", one, {**one.tensors, "mtp.extra.weight": torch.ones(3)}), one)
    sparse = made("qwen3_next")
    torn = {name: value for name, value in sparse.tensors.items() if "experts.2.up_proj" not in name}
    with pytest.raises(ModelUnavailable, match=r"lacks the tensor layers\.0\.mlp\.experts\.2\.up_proj\.weight"):
        head_of(stored(tmp_path / "torn", sparse, torn), sparse)
