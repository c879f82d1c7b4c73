"""A torch zip with heads becomes a folder that can be read; whatever else it holds is refused and never run."""

import json

import pytest
import torch

from specviz.__main__ import main
from specviz.commands.convert import read_zip
from specviz.errors import ModelUnavailable
from specviz.models.heads.published import read
from specviz.models.hub.published import open_repository
from tests.support.tiny.published_heads import CONFIG, feature_tensors, target

RAN = []


class Bomb:
    """What a pickle would run when it is opened."""

    def __reduce__(self):
        return (RAN.append, ("ran",))


def written(folder, content, config=True):
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(content, folder / "pytorch_model.bin")
    if config:
        (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder / "pytorch_model.bin"


def test_heads_in_a_torch_zip_are_read_once_they_are_converted(tmp_path, capsys):
    file = written(tmp_path / "head", feature_tensors())
    with pytest.raises(ModelUnavailable, match="python -m specviz convert FILE"):
        open_repository(str(tmp_path / "head"))
    assert main(["convert", str(file)]) == 0
    folder = tmp_path / "head-safetensors"
    assert "Wrote 15 tensors" in capsys.readouterr().err
    head = read("eagle3", open_repository(str(folder)), target())
    assert torch.equal(head.tensors["fc.weight"], feature_tensors()["fc.weight"].double())
    assert main(["convert", str(file)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_views_and_shared_memory_are_written_whole(tmp_path):
    both = torch.arange(12.0).reshape(3, 4)
    file = written(tmp_path / "head", {"state_dict": {"a": both, "b": both.T, "c": both[1]}}, config=False)
    assert main(["convert", str(file), "--out", str(tmp_path / "out")]) == 0
    stored = open_repository(str(tmp_path / "out"))
    assert torch.equal(stored.tensor("b"), both.T) and torch.equal(stored.tensor("c"), both[1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"fc.weight": Bomb()}, "cannot be read as weights alone"),
        ({"fc.weight": torch.zeros(2), "epoch": 3}, "the entry epoch is not a tensor"),
        ([torch.zeros(2)], "holds no named tensors"),
    ],
)
def test_other_things_than_weights_are_refused(tmp_path, content, words):
    with pytest.raises(ModelUnavailable, match=words):
        read_zip(written(tmp_path, content))
    assert not RAN


def test_what_is_no_torch_zip_is_told_so(tmp_path, capsys):
    (tmp_path / "old.pt").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert main(["convert", str(tmp_path / "old.pt")]) == 2
    assert "is not a checkpoint of torch 1.6" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "nothing.bin")]) == 2
    assert "There is no file" in capsys.readouterr().err
