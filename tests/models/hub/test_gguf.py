"""A GGUF file runs as the model that was written, rotary positions included, or is refused before a copy is kept."""

import hashlib
import json
import math
import os
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gguf import GGMLQuantizationType, Keys
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from specviz.errors import ModelUnavailable
from specviz.models.hub import catalog, convert, hub
from specviz.models.hub import prepare as copies
from specviz.models.hub.prepare import prepare
from specviz.models.text.load import load_causal_lm
from tests.support.tiny.gguf import llama3_divisors, write_gguf

SIZES = json.loads(Path(__file__).with_name("configs.json").read_text("utf-8"))["gguf"]
_TABLES = tomllib.loads(Path(__file__).with_name("gguf_cases.toml").read_text("utf-8"))
CASES, REFUSED = _TABLES["written"], _TABLES["refused"]


def _model(kind, **more):
    """A tiny random model in which positions matter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **more})).eval()
    for name, value in model.named_parameters():
        value.data = value.data + 0.3 * torch.randn_like(value) if value.ndim > 1 or "bias" in name else value.data
    return model


def _divisors(kind, rope):
    if kind == "llama3":
        return {"rope_freqs.weight": llama3_divisors(rope, 16)}
    return {f"rope_factors_{end}.weight": torch.tensor(rope[f"{end}_factor"]) for end in ("short", "long")}


OTHERS = """decoder features_length expert_chunk swin_norm time_ token_shift {dense} attention.decay_lora attention.gate_lora
    attention.group_norm attention.iclr_lora attention.value_residual attention.relative attention.indexer""".split()
"""Settings of architectures that transformers opens from no GGUF."""
QUICK = ("llama-3.1", "llama-divided", "llama-yarn", "phi3-long")


@pytest.mark.spread(2)
@pytest.mark.parametrize("case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES])
def test_a_gguf_computes_what_the_model_that_was_written_does(case, tmp_path, byte_level):
    said = CASES[case]
    kind, config = said["kind"], said.get("config", {})
    model = _model(kind, **config)
    tensors = _divisors(said["divisors"], config["rope_parameters"]) if "divisors" in said else {}
    file = write_gguf(
        tmp_path / "a.gguf", model, byte_level, said.get("arch", kind), fields=said.get("fields", {}), tensors=tensors
    )
    loaded = load_causal_lm(str(file), "float32")
    for length in (24, 100):  # below the original context, and beyond it
        ids = torch.arange(length).reshape(1, -1) % 300
        with torch.no_grad():
            own, wanted = loaded.model(ids).logits, model(ids).logits
        torch.testing.assert_close(own, wanted, atol=2e-3, rtol=1e-3)


def test_yarn_turns_pairs_as_llama_cpp_does():
    """Pairs that turn often in the original context stay, those that turn seldom are divided, and those between are mixed."""
    size, base, factor, original = 16, 10000.0, 4.0, 32
    low, high = (size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32.0, 1.0))
    low, high = max(math.floor(low), 0), min(math.ceil(high), size - 1)
    wanted = []
    for pair in range(size // 2):
        plain, share = base ** (-2 * pair / size), min(1.0, max(0.0, (pair - low) / max(0.001, high - low)))
        wanted.append(plain / factor * share + plain * (1 - share))
    yarn = CASES["llama-yarn"]["config"]["rope_parameters"]
    rates, scale = convert._rates({**yarn, "attention_factor": 1.25}, size)
    assert rates.tolist() == pytest.approx(wanted, rel=1e-5) and scale == 1.25 and wanted[0] == 1.0 > 4 * wanted[-1]


def _gguf(tmp_path, tokenizer, kind="llama", **written):
    return write_gguf(tmp_path / "a.gguf", _model(kind), tokenizer, kind, **written)


def test_every_setting_that_gguf_defines_is_read_or_refused_or_of_no_weight():
    """A new release of gguf names its new settings here."""
    families = (Keys.LLM, Keys.Attention, Keys.Rope, Keys.SSM, Keys.ShortConv)
    defined = {name for family in families for name in vars(family).values() if isinstance(name, str) and "{arch}." in name}
    known = {*convert.IDLE, *convert.SIZES, *convert.PLACES, *convert.APART}
    assert {
        key for name in defined if (key := name.removeprefix("{arch}.")) not in known and not key.startswith(("rope.", *OTHERS))
    } == set()


def test_a_setting_that_nobody_knows_is_a_warning(tmp_path, byte_level):
    file = _gguf(tmp_path, byte_level, fields={"new_thing": 3})
    assert "GGUF file were ignored: llama.new_thing" in " ".join(load_causal_lm(str(file), "float32").warnings)


@pytest.mark.spread(9)
@pytest.mark.parametrize("case", REFUSED)
def test_what_a_gguf_lacks_or_says_otherwise_is_refused_before_a_copy_is_kept(case, tmp_path, byte_level, own_cache):
    written = dict(REFUSED[case])
    said = written.pop("said")
    tensors = {name: torch.full((size,), value) for name, (size, value) in written.pop("tensors", {}).items()}
    file = _gguf(tmp_path, byte_level, tensors=tensors, **written)
    with pytest.raises(ModelUnavailable, match=said) as caught:
        prepare(str(file))
    assert "\n" not in str(caught.value) and list((own_cache / "models").iterdir()) == []


def test_a_header_that_counts_no_tensors_is_refused(tmp_path, byte_level, own_cache):
    file = _gguf(tmp_path, byte_level)
    written = bytearray(file.read_bytes())
    written[8:16] = bytes(8)
    file.write_bytes(bytes(written))
    with pytest.raises(ModelUnavailable, match="holds no weights"):
        prepare(str(file))
    assert list((own_cache / "models").iterdir()) == []


@pytest.fixture
def tiny_gguf(tmp_path, byte_level, tiny_model):
    kind = GGMLQuantizationType.Q8_0
    return write_gguf(tmp_path / "tiny.gguf", tiny_model, byte_level, "llama", kind=kind, splitter="smollm")


def test_a_gguf_loads_as_the_model_it_holds(tiny_gguf, tiny_model, heard):
    loaded = load_causal_lm(str(tiny_gguf), "float32", progress=heard)
    embedding = loaded.model.get_input_embeddings().weight
    torch.testing.assert_close(embedding, tiny_model.get_input_embeddings().weight, atol=2e-3, rtol=0)
    assert loaded.model.config.num_hidden_layers == 2 and loaded.eos_ids == {2} and loaded.text.uses_template(raw=False)
    assert [message.split()[0] for message, _ in heard.told] == ["Unpacking", "Loading"]
    assert loaded.warnings == ()


@pytest.mark.slow
def test_a_gguf_file_of_a_hub_repository_is_checked_and_loads_by_its_entry(tiny_gguf, monkeypatch, heard):
    content, asked = tiny_gguf.read_bytes(), []

    def named(name, sha256):
        source = catalog.HubRepository("tiny/model", len(content), tiny_gguf.name, sha256)
        entry = catalog.Entry(
            name=name, title="Tiny", modality="text", roles=("target",), source=source, family="tiny", parameters=1, licence="MIT"
        )
        monkeypatch.setitem(catalog._BY_NAME, name, entry)
        return name

    def fetched(repository, progress, wanted):
        asked.append((repository, wanted))
        return tiny_gguf.parent

    monkeypatch.setattr(hub, "fetch_repository", fetched)
    right = named("right-q4", hashlib.sha256(content).hexdigest())
    assert load_causal_lm(right, "float32").model.config.num_hidden_layers == 2
    table = load_causal_lm(right, "int8").model.get_input_embeddings()
    assert table.integers.dtype == torch.int8 and "weight" not in vars(table), "as numbers the table takes four times the memory"
    assert prepare(right, heard) == prepare(right) and asked == [("tiny/model", [tiny_gguf.name])], "unpacked only once"
    with pytest.raises(ModelUnavailable, match="is not the catalogue's, whose sha256 starts with 0000"):
        prepare(named("wrong-q4", "0" * 64))


def test_the_copy_is_made_once_and_again_when_file_or_converter_changes(tiny_gguf, own_cache, heard, monkeypatch):
    def load_fresh():
        heard.told.clear()
        prepare(str(tiny_gguf), heard)
        return [message.split()[0] for message, _ in heard.told]

    assert load_fresh() == ["Unpacking"]
    assert load_fresh() == []
    os.utime(tiny_gguf, (1, 1))
    assert load_fresh() == ["Unpacking"]
    monkeypatch.setattr(copies, "_FORMAT", copies._FORMAT + 1)
    assert load_fresh() == ["Unpacking"], "a copy by an older converter"
    assert len(list((own_cache / "models").iterdir())) == 1


@pytest.mark.spread(1)
@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "specviz.json"])
def test_a_damaged_copy_is_made_again(file, tiny_gguf, own_cache):
    folder = prepare(str(tiny_gguf))
    whole = (folder / file).stat().st_size
    (folder / file).write_bytes((folder / file).read_bytes()[: whole // 2])
    prepare(str(tiny_gguf))
    assert (folder / file).stat().st_size == whole


def test_an_interrupted_copy_is_no_copy(tiny_gguf, own_cache, monkeypatch):
    def interrupt(*_, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(copies, "json", SimpleNamespace(dumps=interrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare(str(tiny_gguf))
    assert list((own_cache / "models").iterdir()) == []
    assert (prepare(str(tiny_gguf)) / "model.safetensors").exists()


def test_smollm_text_is_cut_as_smollm_cuts_it(tiny_gguf):
    """Blanks in front of a number stay together; GPT-2's rule alone would give the last one to the number."""
    loaded = load_causal_lm(str(tiny_gguf), "float32")
    splitter = loaded.tokenizer.backend_tokenizer.pre_tokenizer
    assert [piece for piece, _ in splitter.pre_tokenize_str("x  12\n\n1. a")] == [
        "x", "ĠĠ", "1", "2", "ĊĊ", "1", ".", "Ġa"
    ]  # fmt: skip


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("kind", "stored"),
    [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16), ("Q4_1", torch.bfloat16)],
)
def test_floats_keep_their_precision_in_the_copy(kind, stored, tmp_path, byte_level, tiny_model):
    file = write_gguf(tmp_path / "a.gguf", tiny_model, byte_level, "llama", kind=GGMLQuantizationType[kind])
    folder = prepare(str(file))
    with safe_open(folder / "model.safetensors", "pt") as opened:
        assert opened.get_tensor("model.embed_tokens.weight").dtype == stored


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100])
def test_what_is_no_gguf_is_refused_by_name(content, tmp_path):
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(ModelUnavailable, match=r"bad\.gguf is damaged or not a GGUF"):
        load_causal_lm(str(tmp_path / "bad.gguf"), "float32")


def test_a_truncated_gguf_is_refused_by_name(tiny_gguf):
    tiny_gguf.write_bytes(tiny_gguf.read_bytes()[:-5000])
    with pytest.raises(ModelUnavailable, match=r"tiny\.gguf"):
        load_causal_lm(str(tiny_gguf), "float32")
