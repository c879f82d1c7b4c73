"""Weights at rest: how exact a row of int8 is, and what is left exact."""

from pathlib import Path

import pytest
import torch

from specviz.drafting.networks import weights
from specviz.drafting.networks.weights import read_weights, write_weights


def test_each_row_keeps_its_own_precision(tmp_path):
    size = torch.tensor([[1e-3], [1.0], [50.0], [0.0]])
    matrix = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)) * size
    write_weights(tmp_path / "w.safetensors", {"m": matrix}, {})
    found = read_weights(tmp_path / "w.safetensors")[0]["m"]
    step = matrix.abs().amax(dim=1, keepdim=True) / 127
    assert ((found - matrix).abs() <= 0.6 * step + 1e-9).all()


def test_vectors_ids_and_the_card_come_back(tmp_path):
    tensors = {"bias": torch.tensor([0.5, -2.0]), "ids": torch.tensor([3, 49151])}
    write_weights(tmp_path / "w.safetensors", tensors, {"licence": "Apache-2.0"})
    found, card = read_weights(tmp_path / "w.safetensors")
    assert set(found) == {"bias", "ids"}
    assert found["bias"].tolist() == [0.5, -2.0] and found["ids"].tolist() == [3, 49151]
    assert card == {"licence": "Apache-2.0"}


def test_a_write_that_breaks_off_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    file = tmp_path / "w.safetensors"
    write_weights(file, {"bias": torch.tensor([1.0])}, {"tokenizer_hash": "abc"})

    def half(tensors, path, metadata):
        Path(path).write_bytes(b"half a file")
        raise OSError("disk full")

    monkeypatch.setattr(weights, "save_file", half)
    with pytest.raises(OSError, match="disk full"):
        write_weights(file, {"bias": torch.tensor([2.0])}, {})
    assert read_weights(file)[1] == {"tokenizer_hash": "abc"} and list(tmp_path.iterdir()) == [file]
