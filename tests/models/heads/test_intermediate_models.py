"""Cheaper copies of a model and intermediate models named by a user: what they give, and what is refused in words."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import specviz
from specviz.drafting.networks.fused_decoder import FusedSession
from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable, TokenizerMismatch
from specviz.methods.polybasic.intermediate import IntermediateModel
from specviz.models.heads.intermediate_models import (
    check_copy,
    eight_bits,
    four_bits,
    integer_product,
    intermediate_model,
    layouts_of,
    lean_copy,
)
from specviz.models.text.load import load_causal_lm
from specviz.targets.text import TextTarget

CONFIGS = json.loads(Path(__file__).with_name("configs.json").read_text("utf-8"))
SHAPE = CONFIGS["shape"]
BUILDS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "llama with scaled positions": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=CONFIGS["scaled positions"])),
    "qwen2, with biases": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3, with norms of queries and keys": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
}
TREE = DraftTree.of((7, 30, 110, 52, 200, 13), (-1, 0, 1, 1, 2, 0))


def built(name):
    torch.manual_seed(1)
    model = BUILDS[name]().eval().double().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.normal_(1.0, 0.3)
    return TextTarget(model, name, ())


@pytest.mark.parametrize("build", BUILDS)
def test_a_plain_copy_gives_the_models_logits_and_states_through_trees_and_paths(build):
    target = built(build)
    check_copy(target)
    taps = (0, 2, 4)
    ours, own = FusedSession(lean_copy(target), 40, taps), target.open(40, taps)
    text = list(range(3, 40))
    for session in (ours, own):
        session.prefill(text)
    for path in ((0, 1, 3), (0, 5), (0, 1, 2, 4)):
        found, wanted = ours.score(TREE), own.score(TREE)
        assert torch.allclose(found.logits, wanted.logits, atol=1e-3)
        for tap in taps:
            assert torch.allclose(found.hidden[tap], wanted.hidden[tap], atol=1e-3)
        ours.keep(path)
        own.keep(path)
    assert ours.length == own.length == len(text) + 9
    ours.rewind(20)
    own.rewind(20)
    assert torch.allclose(ours.score(TREE).logits, own.score(TREE).logits, atol=1e-3)


def test_another_build_is_refused_rather_than_copied_wrong():
    torch.manual_seed(0)
    config = Gemma2Config(**SHAPE, head_dim=16, layer_types=["full_attention"] * 4)
    strange = TextTarget(Gemma2ForCausalLM(config).eval().double().requires_grad_(False), "gemma", ())
    with pytest.raises(ModelUnavailable, match="cannot be copied in a cheaper form"):
        check_copy(strange)


@pytest.mark.parametrize(("kind", "off"), [("int8", 0.03), ("int4", 0.15)])
def test_a_copy_in_few_bits_is_near(kind, off):
    target = built("llama")
    copies = (lean_copy(target, layouts_of(kind, target.device)), lean_copy(target))
    found, wanted = (FusedSession(copied, 20).score(TREE).logits for copied in copies)
    assert float((found - wanted).norm() / wanted.norm()) < off * 4


@pytest.mark.parametrize(
    ("layout", "off", "shape"),
    [
        (eight_bits, 0.03, (64, 96)),
        (four_bits, 0.15, (64, 96)),
        (integer_product, 0.03, (61, 100)),
        (integer_product, 0.03, (8, 8)),
    ],
)
def test_few_bits_treat_every_row_by_itself(layout, off, shape):
    """A distribution that moved with the rows beside it would not be the distribution that a token was drawn from."""
    weight, x = torch.randn(shape), torch.randn(37, shape[1])
    x[3] *= 1e4
    product = layout(weight)
    whole, exact = product(x), x @ weight.T
    assert whole.shape == exact.shape and torch.all((whole - exact).norm(dim=1) < off * exact.norm(dim=1))
    for row in (0, 3, 36):
        assert torch.allclose(product(x[row : row + 1])[0], whole[row], rtol=2e-2 if layout is four_bits else 1e-5, atol=2e-2)
    assert product(x.bfloat16()).dtype == torch.bfloat16


def test_no_sum_of_bytes_is_cut_off():
    """Neighbours that are both at their most: where a processor adds them in 16 bits, weights take fewer steps."""
    ones = torch.ones(32, 64)
    assert torch.allclose(eight_bits(ones)(ones[:3]), torch.full((3, 32), 64.0), rtol=1e-3)
    mixed = torch.where(torch.arange(64) % 4 < 2, 1.0, -1.0).expand(32, 64)
    assert torch.allclose(eight_bits(mixed)(mixed[:3]), torch.full((3, 32), 64.0), rtol=1e-3)


def test_there_is_no_few_bit_product_off_the_cpu():
    with pytest.raises(ModelUnavailable, match="choose another intermediate model"):
        layouts_of("int8", torch.device("meta"))


@pytest.fixture
def pair(tmp_path, byte_level):
    """Two Qwen2 of different size with one tokenizer, as folders; the smaller has fewer rows of padding."""
    names = []
    for name, layers, rows in (("large", 3, 360), ("small", 2, 352)):
        torch.manual_seed(4)
        config = Qwen2Config(**{**SHAPE, "num_hidden_layers": layers, "vocab_size": rows})
        folder = tmp_path / name
        Qwen2ForCausalLM(config).save_pretrained(folder)
        byte_level.save_pretrained(folder)
        names.append(str(folder))
    return names[0], names[1]


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [{}, {"middle": "draft", "gathered": 4}, {"middle": "plain_copy", "drafter": "copy"}])
def test_a_real_pair_runs_with_the_smaller_one_in_the_middle(pair, parameters):
    large, small = pair
    asked = {"target": large, "prompt": "The quick brown fox", "max_new_tokens": 30, "dtype": "float64"}
    alone = specviz.run(method="autoregressive", **asked)
    chain = specviz.run(method="polybasic", draft=small, parameters=parameters, **asked)
    assert (chain.end.reason, chain.end.output_ids) == (alone.end.reason, alone.end.output_ids)
    copied = parameters.get("middle") == "plain_copy"
    above = "the target in its own number format, run with fewer operations" if copied else small
    assert chain.run.draft == f"{above}, copy below it"
    warning = next(warning for warning in chain.run.warnings if "never calibrated" in warning)
    recipe = f"calibrate polybasic --target {large} --draft {small}"
    assert (recipe in warning) != copied, "the command is for a named intermediate model"
    warm = specviz.run(method="polybasic", draft=small, parameters=parameters, temperature=0.9, **asked)
    assert warm.end.reason in ("eos", "budget")


def test_a_draft_in_the_middle_has_to_be_named_and_to_share_the_tokenizer(pair, tmp_path, sentencepiece):
    loaded = load_causal_lm(pair[0], "float64")
    target = TextTarget(loaded.model, loaded.name, ())
    heard = lambda message, fraction=None: None  # noqa: E731
    with pytest.raises(ModelUnavailable, match="Name one with the target's tokenizer"):
        intermediate_model(IntermediateModel, "draft", None, loaded, target, heard)
    with pytest.raises(ModelUnavailable, match="included small_draft network reads .* of SmolLM2"):
        intermediate_model(IntermediateModel, "small_draft", None, loaded, target, heard)
    folder = tmp_path / "other"
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
    sentencepiece.save_pretrained(folder)
    with pytest.raises(TokenizerMismatch):
        intermediate_model(IntermediateModel, "draft", str(folder), loaded, target, heard)
    with pytest.raises(ModelUnavailable, match="has only 3 layers"):
        intermediate_model(IntermediateModel, "fewer_layers", None, loaded, target, heard)
