"""A Janus model in a folder, as the hub would bring it: loaded by its standard class, drawn with, and refused when it is none."""

import json

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Emu3Config, PreTrainedTokenizerFast

from specviz.errors import ModelUnavailable
from specviz.models.image.load import load_image_model
from specviz.pipeline.runner import run
from tests.support.tiny.images import tiny_image


def folder(path, opening="<begin_of_image>"):
    """A tiny random Janus with a tokenizer of letters."""
    letters = {letter: place + 4 for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE({"<pad>": 0, "<begin>": 1, opening: 2, "<unk>": 3, **letters}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<begin>", pad_token="<pad>", unk_token="<unk>",
        additional_special_tokens=[opening],
    )  # fmt: skip
    wrapped.save_pretrained(path)
    loaded = tiny_image(0, 6, 24, torch.float32)
    loaded.model.resize_token_embeddings(len(letters) + 4)
    loaded.model.config.text_config.vocab_size = len(letters) + 4
    loaded.model.save_pretrained(path)
    return path


def test_a_folder_with_a_janus_model_draws_like_one_that_ships(tmp_path):
    where = folder(tmp_path)
    trace = run(method="speculative_jacobi", prompt="red", target=str(where), dtype="float32", parameters={"window": 4})
    assert trace.end.reason == "budget", trace.end
    assert trace.run.grid == (6, 6) and trace.run.guidance == 5.0 and trace.run.modality == "image"
    plain = run(method="autoregressive", prompt="red", target=str(where), dtype="float32")
    assert len(plain.end.output_ids) == 36 and plain.end.picture


def test_the_empty_row_keeps_begin_and_opening_and_pads_the_rest(tmp_path):
    loaded = load_image_model(str(folder(tmp_path)), "float32", "cpu")
    rows = loaded.prompts.rows("red")
    assert len(rows.conditional) == len(rows.unconditional)
    assert (rows.conditional[0], rows.conditional[-1]) == (1, 2) == (rows.unconditional[0], rows.unconditional[-1])
    assert set(rows.unconditional[1:-1]) == {0} and 0 not in rows.conditional


def test_a_tokenizer_that_cannot_open_a_picture_is_refused(tmp_path):
    with pytest.raises(ModelUnavailable, match="begin_of_image"):
        load_image_model(str(folder(tmp_path, "<other>")), "float32", "cpu")


def test_emu3_is_refused_with_the_reason(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(Emu3Config().to_dict()), encoding="utf-8")
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelUnavailable, match="Emu3 model, which ends each row"):
        run(method="autoregressive", prompt="red", target=str(tmp_path))
