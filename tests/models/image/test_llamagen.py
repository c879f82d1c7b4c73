"""LlamaGen in a folder, asked by class or by caption, with LANTERN's published drafter: passes against the paper's formulas, and
whole runs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoTokenizer, T5EncoderModel

from specviz.drafting.networks.eagle_head import EagleRuntime
from specviz.drafting.runtimes.guided_drafter import GuidedDrafter
from specviz.engine.tree import DraftTree, TreeShape
from specviz.errors import BadInput, ModelUnavailable
from specviz.models.image import image
from specviz.models.image.llamagen import LoadedLlamaGen
from specviz.models.image.load import load_image_model, published_head
from specviz.models.image.prompts import ClassPrompts
from specviz.pipeline.image import image_target
from specviz.pipeline.runner import run
from tests.support.fakes.graphs import Graphs
from tests.support.tiny import llamagen as tiny
from tests.support.worlds.witness import drafted_roots

GRID = 5
CLASS, CAPTION = "7", "Fox "
SCALE = {False: 4.0, True: 7.5}


def loaded_from(path):
    loaded = load_image_model(str(path), "float64")
    assert isinstance(loaded, LoadedLlamaGen)
    return loaded


def prompt_rows(path, captions):
    """Embeddings [place, hidden] of both rows, worked out from the files, and how many places are padding."""
    tensors = {name: value.double() for name, value in tiny.decoder_tensors(captions).items()}
    if not captions:
        labels = tensors["cls_embedding.embedding_table.weight"]
        return [labels[[7]], labels[[tiny.CLASSES]]], 0
    ids = AutoTokenizer.from_pretrained(path / "t5")("fox")["input_ids"]
    assert len(ids) == 4
    with torch.inference_mode():
        read = T5EncoderModel.from_pretrained(path / "t5", dtype=torch.float64)(torch.tensor([ids])).last_hidden_state[0]
    unseen = tiny.PLACES - len(ids)
    padded = torch.cat((torch.zeros(unseen, tiny.FEATURES, dtype=torch.float64), read))
    first, second = (tensors[f"cls_embedding.cap_proj.fc{number}.weight"] for number in (1, 2))
    rows = [padded, tensors["cls_embedding.uncond_embedding"]]
    return [F.gelu(row @ first.T, approximate="tanh") @ second.T for row in rows], unseen


@pytest.mark.spread(1)
@pytest.mark.parametrize("lantern", [False, True])
@pytest.mark.parametrize("captions", [False, True])
def test_a_picture_is_the_published_formulas_greedy_one(tmp_path, captions, lantern):
    path = tiny.folder(tmp_path / "target", GRID, captions, lantern)
    asked = {"prompt": CAPTION if captions else CLASS, "dtype": "float64", "temperature": 0.0, "target": str(path)}
    trace = run(method="autoregressive", **asked)
    assert trace.end.reason == "budget", trace.end
    tensors = tiny.decoder_tensors(captions)
    rows, unseen = prompt_rows(path, captions)
    codes = []
    for _ in range(GRID * GRID):
        both = tiny.picture_states(tensors, rows, codes, GRID, unseen)
        logits = tiny.guided([row[-1] @ tensors["output.weight"].double().T for row in both], SCALE[captions])
        codes.append(int(logits.argmax()))
    assert list(trace.end.output_ids) == codes and len(set(codes)) > 4
    assert trace.run.grid == (GRID, GRID) and trace.run.guidance == SCALE[captions] and not trace.run.warnings


@pytest.mark.parametrize("captions", [False, True])
def test_a_tree_is_scored_as_its_paths_are_one_by_one(tmp_path, captions):
    path = tiny.folder(tmp_path / "target", GRID, captions)
    target, prompt, _ = image_target(loaded_from(path), CAPTION if captions else CLASS, SCALE[captions], "eager")
    session = target.open(target.context_length)
    session.prefill([*prompt, 3, 9, 4])
    parents, tokens = (-1, 0, 0, 1, 1, 2, 3), (8, 1, 2, 3, 4, 5, 6)
    logits = session.score(DraftTree(TreeShape(parents), torch.tensor(tokens))).logits
    tensors = tiny.decoder_tensors(captions)
    rows, unseen = prompt_rows(path, captions)
    for node, row in enumerate(logits):
        at, line = node, []
        while at >= 0:
            line, at = [tokens[at], *line], parents[at]
        both = tiny.picture_states(tensors, rows, [3, 9, 4, *line], GRID, unseen)
        wanted = tiny.guided([one[-1] @ tensors["output.weight"].double().T for one in both], SCALE[captions])
        torch.testing.assert_close(row, wanted, rtol=1e-4, atol=1e-4)  # transformers' norms pass through float32


EXACT = [
    ("eagle2", {"depth": 3, "width": 4, "nodes": 12, "rule": "match"}, 1.0),
    ("speculative_jacobi", {"window": 4}, 1.0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "values", "temperature"), EXACT)
def test_every_exact_method_draws_the_same_256_codes(tmp_path, method, values, temperature):
    target = str(tiny.folder(tmp_path / "target", 16, captions=True, lantern=True))
    asked = {"prompt": CAPTION, "dtype": "float64", "target": target, "temperature": temperature, "seed": 5}
    plain = run(method="autoregressive", **asked)
    draft = {} if method == "speculative_jacobi" else {"draft": str(tiny.drafter(tmp_path / "drafter", "t2i"))}
    drafted = run(method=method, parameters=values, **draft, **asked)
    assert drafted.end.output_ids == plain.end.output_ids or method == "speculative_jacobi" and temperature
    assert len(plain.end.output_ids) == 256 and any(step.path for step in drafted.steps)
    captured = run(method=method, parameters=values, **draft, **asked, tier="graph")
    assert captured.run.tier == "graph" and captured.end.output_ids == drafted.end.output_ids


@pytest.mark.parametrize("captions", [False, True])
def test_prompts_of_any_length_replay_the_same_graphs(tmp_path, monkeypatch, captions):
    """What is hidden of a caption is read anew by every pass."""
    graphs, captures = Graphs(monkeypatch), []
    loaded = loaded_from(tiny.folder(tmp_path / "target", GRID, captions))
    for prompt in ("fox", "a fox", "fo") if captions else ("7", "3", "0"):
        rows = []
        for tier in ("eager", "graph"):
            target, ids, _ = image_target(loaded, prompt, 3.0, tier)
            session = target.open(target.context_length)
            session.prefill(ids[:-1]) if ids[:-1] else None
            first = session.score(DraftTree.of([ids[-1], 3, 5, 7], [-1, 0, 0, 1])).logits.clone()
            session.keep([0, 2])
            second = session.score(DraftTree.of([7, 2], [-1, 0])).logits.clone()
            rows.append(torch.cat((first, second, session.rewrite(torch.tensor([7, 4]), [0, 1]).logits)))
            session.close()
        torch.testing.assert_close(*rows, rtol=1e-5, atol=1e-5)  # rotations are of float32
        captures.append(graphs.captures)
    assert captures[0] > 0 and captures == captures[:1] * 3


@pytest.mark.spread(1)
@pytest.mark.parametrize("captions", [False, True])
def test_the_drafter_is_lanterns_on_both_rows(tmp_path, captions):
    path, scale = tiny.folder(tmp_path / "target", GRID, captions), SCALE[captions]
    draft = tiny.drafter(tmp_path / "drafter", "t2i" if captions else "c2i", block_size=GRID**2)
    loaded = loaded_from(path)
    head = published_head("eagle", str(draft), loaded)
    target, prompt, _ = image_target(loaded, CAPTION if captions else CLASS, scale, "eager")
    drafter = GuidedDrafter(EagleRuntime(head), scale, target.unconditional)
    roots, _ = drafted_roots(drafter, target, prompt, head.config.taps, 12)
    roots = [(ids, row) for ids, row in roots if len(ids) > len(prompt)]
    assert len(roots) >= 4
    tensors, own = tiny.decoder_tensors(captions), load_file(draft / "model.safetensors")
    rows, unseen = prompt_rows(path, captions)
    for ids, row in roots:
        codes = list(ids[len(prompt) :])
        both = tiny.picture_states(tensors, rows, codes[:-1], GRID, unseen)
        outputs = [tiny.drafted(own, codes, states, GRID, len(prompt))[-1] for states in both]
        wanted = tiny.guided([output @ tensors["output.weight"].double().T for output in outputs], scale)
        torch.testing.assert_close(row, wanted, rtol=1e-4, atol=1e-4)


def drawn_pixels(part, codes):
    """Pixels [row, column, rgb] of codes [row, column], as the pixel decoder's paper draws it, from its authors' names."""

    def conv(x, name, padding=0):
        return F.conv2d(x, part[f"{name}.weight"], part[f"{name}.bias"], padding=padding)

    def norm(x, name):
        return F.group_norm(x, 32, part[f"{name}.weight"], part[f"{name}.bias"], 1e-6)

    def residual(x, name):
        h = conv(F.silu(norm(x, f"{name}.norm1")), f"{name}.conv1", 1)
        h = conv(F.silu(norm(h, f"{name}.norm2")), f"{name}.conv2", 1)
        return h + (conv(x, f"{name}.nin_shortcut") if f"{name}.nin_shortcut.weight" in part else x)

    def cells(x, name):
        h = norm(x, f"{name}.norm")
        q, k, v = (conv(h, f"{name}.{one}")[0].flatten(1) for one in "qkv")
        mixed = v @ (q.T @ k / len(q) ** 0.5).softmax(-1).T
        return x + conv(mixed.view(x.shape), f"{name}.proj_out")

    vectors = F.normalize(part["quantize.embedding.weight"][codes], dim=-1)
    x = conv(conv(vectors.permute(2, 0, 1)[None], "post_quant_conv"), "decoder.conv_in", 1)
    x = residual(cells(residual(x, "decoder.mid.0"), "decoder.mid.1"), "decoder.mid.2")
    for number in range(2):
        x = cells(residual(x, f"decoder.conv_blocks.0.res.{number}"), f"decoder.conv_blocks.0.attn.{number}")
    x = conv(x.repeat_interleave(2, 2).repeat_interleave(2, 3), "decoder.conv_blocks.0.upsample.conv", 1)
    for number in range(2):
        x = residual(x, f"decoder.conv_blocks.1.res.{number}")
    return conv(F.silu(norm(x, "decoder.norm_out")), "decoder.conv_out", 1)[0].permute(1, 2, 0)


def test_codes_become_the_pixels_of_the_vq_decoder(tmp_path):
    loaded = loaded_from(tiny.folder(tmp_path / "target", GRID))
    codes = torch.arange(GRID * GRID) % tiny.CODES
    wanted = drawn_pixels(tiny.vq_tensors(), codes.view(GRID, GRID))
    assert loaded.side == 2 * GRID and wanted.std() > 0.05
    torch.testing.assert_close(loaded.pixels(codes), wanted, rtol=1e-4, atol=1e-4)
    picture = loaded.picture(codes.tolist())
    assert picture.shape == (2 * GRID, 2 * GRID, 3) and np.abs(picture - ((wanted.clamp(-1, 1) + 1) * 127.5).numpy()).max() < 1


def test_a_caption_longer_than_its_places_is_told(tmp_path):
    path = tiny.folder(tmp_path / "target", GRID, captions=True)
    trace = run(method="autoregressive", target=str(path), prompt="a Red  fox", dtype="float64", temperature=0.0)
    assert [word for word in trace.run.warnings if "this part was not read: ox" in word], trace.run.warnings
    loaded = loaded_from(path)
    short, spaced = loaded.prompts.rows("A fox"), loaded.prompts.rows(" a  FOX ")
    assert short.conditional == spaced.conditional and short.unseen == 2 and len(short.conditional) == tiny.PLACES
    assert [loaded.prompts.of(token) for token in short.conditional[:3]] == ["<pad>", "<pad>", "a"]


def test_a_class_is_named_or_numbered():
    prompts = ClassPrompts(1000)
    for said, number in {"207": 207, "Golden  retriever": 207, "tinca tinca": 0, "toilet tissue": 999, "tiger cat": 282}.items():
        assert prompts.rows(said).conditional == (number,) and prompts.rows(said).unconditional == (1000,), said
    assert prompts.of(207) == "golden retriever" and prompts.of(1000) == "<no class>"
    for said, words in {
        "1000": "draws classes 0 to 999", "crane": r"134 \(crane\) or 517 \(crane\)", "golden retreiver": "golden retriever",
        "a red fox in snow": "not a class of ImageNet",
    }.items():  # fmt: skip
        with pytest.raises(BadInput, match=words):
            prompts.rows(said)
    with pytest.raises(BadInput, match="give a number from 0 to 9"):
        ClassPrompts(10).rows("fox")


def test_what_is_missing_or_does_not_fit_is_told(tmp_path):
    def refused(path, words):
        with pytest.raises(ModelUnavailable, match=words):
            loaded_from(path)

    bare = tiny.folder(tmp_path / "bare", GRID)
    (bare / "vq" / "model.safetensors").rename(tmp_path / "away.safetensors")
    refused(bare, "has no VQ tokenizer: convert .*vq_ds16_c2i.pt")
    (bare / "vq" / "model.safetensors").write_bytes((bare / "model.safetensors").read_bytes())
    refused(bare, "is not LlamaGen's VQ tokenizer")
    silent = tiny.folder(tmp_path / "silent", GRID, captions=True)
    (silent / "t5" / "config.json").unlink()
    refused(silent, "put google/flan-t5-xl into")
    refused(tiny.folder(tmp_path / "odd", GRID, block_size=24), "block_size 24, which must be the number of codes")
    refused(tiny.folder(tmp_path / "heads", GRID, num_attention_heads=7), "no num_attention_heads that fits")
    refused(tiny.folder(tmp_path / "places", GRID, cls_token_num=3), "cls_token_num to 3, but its weights have 1")
    target = tiny.folder(tmp_path / "target", GRID)
    for kind, settings, words in (
        ("t2i", {}, "256 codes from captions, but .* draws 25 from classes"),
        ("c2i", {}, "576 codes from classes, but .* draws 25 from classes"),
        ("none", {}, "not hold LANTERN's heads for LlamaGen, whose input_type is c2i"),
        ("c2i", {"block_size": 25, "rope_theta": 5000.0}, "has rope_theta 5000.0"),
    ):
        draft = tiny.drafter(tmp_path / f"{kind}{len(settings)}{len(words)}", kind, **settings)
        with pytest.raises(ModelUnavailable, match=words):
            run(method="eagle2", target=str(target), draft=str(draft), prompt=CLASS, dtype="float64")


def test_a_large_codebook_on_a_cpu_is_mapped_by_its_directions(tmp_path, monkeypatch):
    monkeypatch.setattr(image, "_FEW", tiny.CODES - 1)
    trace = run(method="autoregressive", target=str(tiny.folder(tmp_path / "target", GRID)), prompt=CLASS, temperature=0.0)
    assert any("The finished picture is decoded" in word for word in trace.run.warnings)
    colours = image.direction_colours(loaded_from(tmp_path / "target").codebook)
    assert sorted(colours[:, 0].tolist()) == pytest.approx(np.linspace(-1, 1, tiny.CODES).tolist())
    assert trace.run.codebook is not None and trace.end.picture
