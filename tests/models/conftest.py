"""Small stand-ins made on the spot: tokenizers of the two common spellings, a tiny Llama, wheels, a package index."""

import base64
import hashlib
import os
import zipfile

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specviz.models import cache
from specviz.models.cache import ModelCache
from specviz.models.hub.catalog import Entry, WheelFile
from specviz.models.hub.packed_model import TEMPLATE
from tests.support.tiny.tokenizers import byte_level_tokenizer

CONTENT = bytes(range(256)) * 2048


@pytest.fixture(autouse=True)
def own_cache(request, tmp_path, monkeypatch):
    """Nothing a test does touches the user's cache, except where the test asks for the real model."""
    if request.node.get_closest_marker("model") is None:
        monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(cache, "MODELS", ModelCache())
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def byte_level():
    """An instruct model's byte-level tokenizer, as GPT-2, SmolLM2, Qwen and Llama 3 have it."""
    made = byte_level_tokenizer(eos_token="<|im_end|>", bos_token="<|im_start|>")
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="session")
def base_model():
    """The same without a chat template, as a base model has it."""
    return byte_level_tokenizer(eos_token="<|endoftext|>")


@pytest.fixture(scope="session")
def sentencepiece():
    """A tokenizer with marked blanks and byte tokens, as Llama 2, Mistral and Gemma have it."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [*"▁abcdefghijklmnopqrstuvwxyz.", "▁t", "he", "▁the", "ü"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    backend = Tokenizer(
        models.BPE({word: place for place, word in enumerate(words)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="session")
def tiny_model():
    """Two random layers over the byte-level tokenizer's vocabulary."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=352,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def tiny_folder(tmp_path, tiny_model, byte_level):
    """A model folder as a user would have it: safetensors, config, tokenizer."""
    folder = tmp_path / "tiny-llama"
    tiny_model.save_pretrained(folder)
    byte_level.save_pretrained(folder)
    return folder


def _record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


@pytest.fixture
def make_wheel(tmp_path):
    """A real wheel, named tiny_weights 1.0, holding the given files."""

    def make(members):
        about = "tiny_weights-1.0.dist-info"
        files = dict(members)
        files[f"{about}/METADATA"] = b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        files[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        record = "".join(_record_line(name, content) for name, content in files.items())
        files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
        folder = tmp_path / "index" / "tiny-weights"
        folder.mkdir(parents=True, exist_ok=True)
        wheel = folder / "tiny_weights-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as opened:
            for name, content in files.items():
                opened.writestr(name, content)
        (folder / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>', encoding="utf-8")
        return wheel

    return make


@pytest.fixture
def index(tmp_path, monkeypatch):
    """pip sees one package index, the folder that ``make_wheel`` fills, and nothing of this machine's settings."""
    url = (tmp_path / "index").as_uri()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", url)
    return url


@pytest.fixture
def entry():
    """What a catalogue would say of the wheel that holds CONTENT."""
    source = WheelFile(
        package="tiny-weights",
        version="1.0",
        member="tiny_weights/tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        wheel_size=10_000,
    )
    return Entry(
        name="tiny", title="Tiny", modality="text", roles=("target",), source=source, family="tiny", parameters=1, licence="MIT"
    )


@pytest.fixture
def heard():
    """A progress callback that remembers what it was told, in ``heard.told``."""

    class Heard:
        def __init__(self):
            self.told = []

        def __call__(self, message, fraction):
            self.told.append((message, fraction))

    return Heard()
