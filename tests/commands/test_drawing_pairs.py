"""LlamaGen as a user has it: torch zips converted, a folder put together of them, and whole runs from the command line."""

import argparse
import json

import pytest
import torch
from safetensors.torch import load_file

from specviz.__main__ import main
from tests.support.fakes.commands import printed
from tests.support.tiny import llamagen as tiny


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))


def run(capsys, *words):
    return printed(capsys, "run", *words, "--dtype", "float64")


def test_a_class_is_drawn_from_its_authors_torch_zips(tmp_path, capsys):
    options = argparse.Namespace(gpt_model="GPT-B", lr=1e-4)
    wide = {name: value.float() for name, value in tiny.decoder_tensors(False).items()}
    torch.save({"model": wide, "steps": 3, "args": options}, tmp_path / "c2i_B_256.pt")
    torch.save({"model": tiny.vq_tensors(), "args": options}, tmp_path / "vq_ds16_c2i.pt")
    folder = tmp_path / "LlamaGen-B"
    assert main(["convert", str(tmp_path / "c2i_B_256.pt"), "--out", str(folder)]) == 2
    assert "add --image-size 256, 384 or 512" in capsys.readouterr().err and not folder.exists()
    assert main(["convert", str(tmp_path / "c2i_B_256.pt"), "--image-size", "96", "--out", str(folder)]) == 0
    assert main(["convert", str(tmp_path / "vq_ds16_c2i.pt"), "--out", str(folder / "vq")]) == 0
    assert "inspect" not in capsys.readouterr().err
    said = json.loads((folder / "config.json").read_text())
    assert said == {"model_type": "llamagen", "block_size": 36}
    (folder / "config.json").write_text(
        json.dumps({**said, "num_attention_heads": tiny.HEADS})
    )  # which no tiny model's width tells
    asked = ["--target", str(folder), "--prompt", "7", "--temperature", "0"]
    plain = run(capsys, *asked, "--method", "autoregressive")
    jacobi = run(capsys, *asked, "--method", "speculative_jacobi", "--param", "window=4")
    assert len(plain["output_ids"]) == 36 and jacobi["output_ids"] == plain["output_ids"]


@pytest.mark.slow
def test_a_caption_is_drawn_with_lanterns_conversion_and_drafter(tmp_path, capsys):
    folder = tiny.folder(tmp_path / "LlamaGen-T2I", 16, captions=True, lantern=True)
    stored = tiny.drafter(tmp_path / "llamagen_drafter", "t2i")
    torch.save(load_file(stored / "model.safetensors"), stored / "pytorch_model.bin")
    assert main(["convert", str(stored / "pytorch_model.bin")]) == 0
    assert "inspect" in capsys.readouterr().err
    asked = ["--target", str(folder), "--prompt", "fox", "--temperature", "0", "--max-new-tokens", "64"]
    drafted = run(capsys, *asked, "--method", "eagle2", "--draft", str(tmp_path / "llamagen_drafter-safetensors"))
    assert drafted["metrics"]["verified"] > drafted["metrics"]["passes"] and len(drafted["output_ids"]) >= 64
    assert drafted["output_ids"] == run(capsys, *asked, "--method", "autoregressive")["output_ids"]
