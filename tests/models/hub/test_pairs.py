"""Published pairs: sizes that follow from shapes, commands that exist, and each class run whole on tiny random checkpoints."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specviz.__main__ import main
from specviz.commands.console import parser
from specviz.drafting.networks.block_fill import FillConfig
from specviz.drafting.networks.cross_net import CrossConfig, CrossNet
from specviz.drafting.networks.eagle_head import PublishedEagleHead
from specviz.drafting.networks.head_config import HeadConfig, HeadConventions
from specviz.models.heads.head_writer import write_head
from specviz.models.hub.pairs import MTP, PAIRS
from tests.support.referee.filled import weight

HIDDEN, VOCAB = 32, 352
FACTS = json.loads(Path(__file__).with_name("configs.json").read_text("utf-8"))
SMALL = FACTS["pair"]
CLASSES = {"llama-3": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
BLOCKS = ("DFlash", "DSpark")
NAMES = [f"{pair.heads} {pair.target}" for pair in PAIRS]
TEXT = {
    (pair.layout, pair.entry.family, "vocab" in pair.shape, "RedHatAI" in pair.heads): pair
    for pair in PAIRS
    if pair.entry.modality == "text" and pair.layout != MTP
}
"""A pair of each class; those that read pictures are run in tests/commands/test_picture_pairs.py."""


def config_of(pair):
    """The pair's head in full size, as our reader would describe it."""
    shape, wide = pair.shape, pair.layout in ("flat", "speculators")
    sizes = (shape["hidden"], *(shape[name] for name in ("hidden", "heads", "kv_heads", "head_size", "inner")))
    words = shape.get("vocab", 0)
    if pair.layout == MTP:
        return HeadConfig(words, *sizes, 1, False, HeadConventions((24,)), head_norms=True, paired=True, gated=True)
    if pair.layout in BLOCKS:
        rank = shape.get("rank", 0)
        own = {"markov": "vanilla", "rank": rank, "confidence": True, "confidence_reads_token": True} if rank else {}
        return FillConfig(151_936, *sizes, 5, False, HeadConventions((2, 10, 18, 26, 34)), **own)
    how = HeadConventions(tuple(range(shape.get("taps", 3))) if wide else (32,))
    more = {
        "head_norms": bool(shape.get("normed")),
        "attention_bias": shape.get("biased", False),
        "queries": 2 if pair.layout == "ViSpec" else 0,
    }
    more |= {"first_norm": pair.layout == "LANTERN", "layer_norms": pair.layout == "LANTERN"}
    return HeadConfig(words, *sizes, 1, wide, how, bias=not wide, **more)


def crossing(pair):
    """Numbers that DREAM's network learns at full size."""
    sizes = tuple(pair.shape[name] for name in ("hidden", "heads", "kv_heads", "head_size", "inner"))
    with torch.device("meta"):
        config = CrossConfig(16, *sizes, (0, 32), False, entry_norm=False, inner_norms=True, sink=False)
        return sum(value.numel() for value in CrossNet(config, *[torch.empty(16, sizes[0])] * 2).parameters())


@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_sizes_are_those_of_the_tensors_a_head_has(pair):
    count = sum(torch.Size(shape).numel() for shape in config_of(pair).shapes().values())
    count = crossing(pair) if pair.layout == "DREAM" else count
    words = pair.shape.get("draft_vocab", 0) + pair.shape.get("vocab", 0)
    assert pair.parameters == count + words * pair.shape["hidden"]
    assert 2 * pair.entry.parameters < pair.memory < 2.8 * pair.entry.parameters
    assert pair.status == "This pair has not run here yet."


@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_every_command_can_be_typed(pair):
    for command in pair.commands:
        words = shlex.split(command)
        if words[0] == "python":
            assert words[1:3] == ["-m", "specviz"]
            parser().parse_args(words[3:])
    assert sum("convert" in command for command in pair.commands) == pair.pickled + sum("convert" in one for one in pair.gather)


def seeing_model(folder):
    """A tiny Qwen3.5 as its repository stores it: what sees, the text model, and the MTP layer beside them."""
    torch.manual_seed(0)
    whole = Qwen3_5Config(
        text_config={**SMALL, **FACTS["drafting itself"]}, vision_config=FACTS["seeing"], tie_word_embeddings=True
    )
    Qwen3_5ForConditionalGeneration(whole).eval().save_pretrained(folder)
    config = HeadConfig(
        VOCAB, HIDDEN, HIDDEN, 4, 2, 8, 48, 1, False, HeadConventions((8,)), head_norms=True, paired=True, gated=True
    )
    names = {"embedding_norm.weight": "pre_fc_norm_embedding.weight", "state_norm.weight": "pre_fc_norm_hidden.weight"}
    layer = {f"mtp.{names.get(name, name)}": weight(name, shape) for name, shape in config.shapes().items()}
    file = folder / "model.safetensors"
    save_file({**load_file(file), **layer}, file, {"format": "pt"})


@pytest.mark.slow
def test_a_model_that_drafts_for_itself_is_fetched_once_and_runs_whole(tmp_path, base_model, capsys):
    folder = tmp_path / "target"
    seeing_model(folder)
    base_model.save_pretrained(folder)
    told = ["--target", str(folder), "--prompt", "the quick", "--raw", "--max-new-tokens", "40", "--json", "--dtype", "float64"]
    chain = ["--method", "eagle2", "--draft", str(folder), "--param", "width=1", "--param", "depth=3", "--param", "nodes=3"]
    outputs = []
    for more in (chain, ["--method", "autoregressive"]):
        assert main(["run", *more, *told]) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0]["output_ids"] == outputs[1]["output_ids"]
    assert outputs[0]["metrics"]["verified"] > outputs[0]["metrics"]["passes"]
    (tmp_path / "prompts.txt").write_text("the quick brown fox\njumps over\n")
    asked = ["--prompts", str(tmp_path / "prompts.txt"), "--tokens", "24"]
    main(["inspect", str(folder), "--target", str(folder), *asked])
    report = capsys.readouterr().out
    assert "own MTP layers" in report and "all norms' weights unchanged" in report
    pair = next(pair for pair in PAIRS if pair.layout == MTP)
    assert sum("fetch" in command for command in pair.commands) == 1 and f"--draft {pair.target}" in pair.commands[-1]


def stored_heads(pair, folder, target):
    """Tiny random heads in the pair's layout, as its repository stores them."""
    if pair.layout in BLOCKS:
        return stored_blocks(pair, folder, target)
    wide = pair.layout != "EAGLE-1/2"
    embedding = target.get_input_embeddings().weight.detach()
    how = HeadConventions((2, 4, 5) if wide else (8,), normed_residual="RedHatAI" in pair.heads, head_norm=wide)
    config = HeadConfig(VOCAB, HIDDEN, HIDDEN, 4, 2, 8, 40, 1, wide, how, bias=not wide)
    tensors = {name: weight(name, shape) for name, shape in config.shapes().items()}
    ids = torch.arange(0, 340, 2)
    head = PublishedEagleHead(config, tensors, embedding.flip(0) if "vocab" in pair.shape else embedding, embedding[ids], ids)
    if wide:
        write_head(head, folder, pair.layout, "someone/model", own_embedding="vocab" in pair.shape)
    else:
        folder.mkdir()
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
        narrow = {**SMALL, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "intermediate_size": 40}
        (folder / "config.json").write_text(json.dumps(narrow))
    return folder


def stored_blocks(pair, folder, target):
    """A tiny random block drafter as DeepSpec or z-lab stores it."""
    markov = {"markov": "vanilla", "rank": 4, "confidence": True, "confidence_reads_token": True}
    own = markov if pair.layout == "DSpark" else {}
    config = FillConfig(VOCAB, HIDDEN, HIDDEN, 4, 2, 8, 40, 2, False, HeadConventions((2, 5)), block=6, **own)
    tensors = {name: weight(name, shape) for name, shape in config.shapes().items()}
    if "vocab" in pair.shape:
        embedding = target.get_input_embeddings().weight.detach()
        tensors |= {"embed_tokens.weight": embedding.clone(), "lm_head.weight": target.lm_head.weight.detach().clone()}
    settings = {**SMALL, "num_hidden_layers": 2, "intermediate_size": 40, "block_size": 6, "num_target_layers": 8}
    named = {"mask_token_id": 5, "target_layer_ids": [1, 4]}
    settings |= named if "vocab" in pair.shape else {"dflash_config": named}
    folder.mkdir()
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**settings, "model_type": "qwen3"}))
    return folder


@pytest.mark.spread(1)
@pytest.mark.parametrize("pair", TEXT.values(), ids=lambda pair: f"{pair.heads} {pair.target}")
def test_each_class_of_pair_drafts_a_whole_run(pair, tmp_path, base_model, capsys):
    torch.manual_seed(0)
    settings, model = CLASSES[pair.entry.family]
    target = model(settings(**SMALL)).eval()
    target.save_pretrained(tmp_path / "target")
    base_model.save_pretrained(tmp_path / "target")
    heads = stored_heads(pair, tmp_path / "heads", target)
    told = ["--target", str(tmp_path / "target"), "--prompt", "the quick", "--raw", "--max-new-tokens", "40", "--json"]
    drafting = ["--method", pair.method, "--draft", str(heads), "--param", "nodes=8"]
    drafting += [] if pair.layout in BLOCKS else ["--param", "depth=3"]
    outputs = []
    for more in (drafting, ["--method", "autoregressive"]):
        assert main(["run", *more, *told, "--dtype", "float64"]) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0]["output_ids"] == outputs[1]["output_ids"]
    assert outputs[0]["metrics"]["verified"] > outputs[0]["metrics"]["passes"]
