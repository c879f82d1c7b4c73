"""Anole in a folder, with LANTERN's published drafter: drawn rows against unpadded forward passes, and whole runs."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ChameleonConfig, ChameleonForConditionalGeneration, PreTrainedTokenizerFast
from transformers.models.chameleon.configuration_chameleon import ChameleonVQVAEConfig
from transformers.models.chameleon.modeling_chameleon import ChameleonDecoderLayer, ChameleonRotaryEmbedding

from specviz.drafting.networks.eagle_head import EagleRuntime
from specviz.drafting.runtimes.guided_drafter import GuidedDrafter
from specviz.errors import BadInput, ModelUnavailable
from specviz.models.image.image import LoadedAnole
from specviz.models.image.load import load_image_model, published_head
from specviz.pipeline.image import image_target
from specviz.pipeline.runner import run
from tests.support.worlds.witness import drafted_roots

CODES, HIDDEN, HEADS, INNER, GRID = 24, 32, 4, 48, 4


def code_name(code):
    return "IMGIMG" + "".join(chr(ord("A") + int(digit)) for digit in str(code)) + "Z"


def vocabulary():
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    # Codes stand in the vocabulary in another order than in the codebook.
    images = [code_name(code) for code in sorted(range(CODES), key=lambda code: (code * 7) % CODES)]
    marks = ["<eoss>", "<racm3:break>", "<reserved08706>", "<image>"]
    return {token: place for place, token in enumerate([*special, *images, *marks, *sorted(pre_tokenizers.ByteLevel.alphabet())])}


def folder(path, opening="<racm3:break>"):
    """A tiny random Chameleon with a tokenizer of letters."""
    words = {opening if token == "<racm3:break>" else token: place for token, place in vocabulary().items()}
    tokenizer = Tokenizer(models.BPE(words, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", pad_token="<pad>", unk_token="<unk>", eos_token="</s>",
        additional_special_tokens=["<eoss>", opening, "<reserved08706>", "<image>"],
    ).save_pretrained(path)  # fmt: skip
    vq = ChameleonVQVAEConfig(
        embed_dim=8, num_embeddings=CODES, latent_channels=8, resolution=2 * GRID, base_channels=32, channel_multiplier=[1, 1],
        num_res_blocks=1,
    )  # fmt: skip
    config = ChameleonConfig(
        vocab_size=len(words), hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=3, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, max_position_embeddings=128, vq_config=vq, vocabulary_map=vocabulary(), initializer_range=0.3,
        rope_theta=5000.0,
    )  # fmt: skip
    torch.manual_seed(1)
    ChameleonForConditionalGeneration(config).save_pretrained(path)
    return path


HEAD = json.loads(Path(__file__).with_name("configs.json").read_text("utf-8"))["anole drafter"]


def drafter(path, **settings):
    """A random drafter as LANTERN stores it: one layer of Chameleon's and the projection before it."""
    generator = torch.Generator().manual_seed(2)

    def drawn(*shape):
        return 0.3 * torch.randn(shape, generator=generator)

    own = {"fc.weight": drawn(HIDDEN, 2 * HIDDEN), "fc.bias": drawn(HIDDEN)}
    for name, value in layer_of(HEAD).state_dict().items():
        own[f"layers.0.{name}"] = drawn(*value.shape) + (1 if "norm.weight" in name else 0)
    path.mkdir()
    save_file({name: value.float() for name, value in own.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**HEAD, "vocab_size": len(vocabulary()), **settings}))
    return path


def layer_of(settings):
    known = {name: value for name, value in settings.items() if name not in ("architectures", "model_type", "vq_config")}
    config = ChameleonConfig(**known, vocabulary_map=vocabulary())
    config._attn_implementation = "eager"
    return ChameleonDecoderLayer(config, 0).double()


@pytest.fixture
def loaded(tmp_path):
    found = load_image_model(str(folder(tmp_path / "anole")), "float64")
    assert isinstance(found, LoadedAnole)
    return found


def rows(loaded, prompt, codes):
    """Token ids of both rows without any padding."""
    asked = loaded.prompts.rows(prompt)
    drawn = [int(loaded.code_ids[code]) for code in codes]
    return [[token for token in row if token >= 0] + drawn for row in (asked.conditional, asked.unconditional)]


@torch.inference_mode()
def features(loaded, ids):
    return loaded.model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]


def guided(logits, scale):
    return logits[1] + scale * (logits[0] - logits[1])


ASKED = {"prompt": "a red fox", "dtype": "float64", "temperature": 0.0}


def test_a_picture_is_the_models_own_greedy_one_under_guidance(loaded, tmp_path):
    trace = run(method="autoregressive", target=str(tmp_path / "anole"), **ASKED)
    assert trace.end.reason == "budget", trace.end
    codes = []
    for _ in range(GRID * GRID):
        states = [features(loaded, ids)[-1] for ids in rows(loaded, "a red fox", codes)]
        codes.append(int(guided([state @ loaded.model.lm_head.weight[loaded.code_ids].T for state in states], 3.0).argmax()))
    assert list(trace.end.output_ids) == codes
    assert trace.run.grid == (GRID, GRID) and trace.run.guidance == 3.0 and trace.end.picture
    assert any("No pixel decoder" in word for word in trace.run.warnings)


def test_the_drafter_is_chameleons_layer_on_both_rows(loaded, tmp_path):
    head = published_head("eagle", str(drafter(tmp_path / "drafter")), loaded)
    target, prompt, _ = image_target(loaded, "a red fox", 3.0, "eager")
    drafter_on_both = GuidedDrafter(EagleRuntime(head), 3.0, target.unconditional)
    roots, _ = drafted_roots(drafter_on_both, target, prompt, head.config.taps, 6)
    layer = layer_of({**HEAD, "vocab_size": len(vocabulary())})
    layer.load_state_dict({name.removeprefix("layers.0."): value for name, value in head.tensors.items() if "layers" in name})
    turning = ChameleonRotaryEmbedding(layer.self_attn.config).double()
    for ids, row in roots:
        answers = []
        for own in rows(loaded, "a red fox", ids[len(prompt) :]):
            words = loaded.model.get_input_embeddings().weight[own][1:]
            x = torch.cat((words, features(loaded, own)[:-1]), dim=-1) @ head.tensors["fc.weight"].T + head.tensors["fc.bias"]
            mask = torch.full((len(x), len(x)), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)[None, None]
            places = torch.arange(len(x))[None]
            with torch.inference_mode():
                out = layer(x[None], attention_mask=mask, position_ids=places, position_embeddings=turning(x[None], places))
            out = out[0] if isinstance(out, tuple) else out
            answers.append(out.reshape(-1, HIDDEN)[-1] @ loaded.model.lm_head.weight[loaded.code_ids].T)
        wanted = guided(answers, 3.0)
        assert float((row - wanted).abs().max() / wanted.abs().max()) < 1e-6  # transformers turns positions in float32


def test_what_does_not_fit_is_refused_with_the_reason(tmp_path):
    target = str(folder(tmp_path / "anole"))
    with pytest.raises(ModelUnavailable, match="has swin_norm True"):
        run(method="eagle2", target=target, draft=str(drafter(tmp_path / "a", swin_norm=True)), **ASKED)
    with pytest.raises(ModelUnavailable, match="No drafter|drafter"):
        run(method="eagle2", target=target, parameters={"nodes": 8}, **ASKED)
    with pytest.raises(BadInput, match="takes no draft, because only the included"):
        run(method="eagle2", prompt="a red fox", target="emoji-64", draft=str(tmp_path / "a"))
    with pytest.raises(ModelUnavailable, match="has no <racm3:break>"):
        load_image_model(str(folder(tmp_path / "other", "<other>")), "float32", "cpu")
