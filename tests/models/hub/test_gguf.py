"""A GGUF file runs as the model that was written, rotary positions included, or is refused before a copy is kept."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import Keys
from transformers import AutoConfig, AutoModelForCausalLM

from specviz.errors import ModelUnavailable
from specviz.models.hub import convert
from specviz.models.hub import prepare as copies
from specviz.models.hub.prepare import prepare
from specviz.models.text.load import load_causal_lm
from tests.support.tiny.gguf import llama3_divisors, write_gguf

SIZES: dict[str, Any] = {
    "vocab_size": 352, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": None,
    "tie_word_embeddings": False,
}  # fmt: skip
_TABLES = tomllib.loads(Path(__file__).with_name("gguf_cases.toml").read_text("utf-8"))
CASES, REFUSED = _TABLES["written"], _TABLES["refused"]


def _model(kind: str, **more: Any) -> Any:
    """A tiny random model in which positions matter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **more})).eval()
    for name, value in model.named_parameters():
        value.data = value.data + 0.3 * torch.randn_like(value) if value.ndim > 1 or "bias" in name else value.data
    return model


def _divisors(kind: str, rope: dict[str, Any]) -> dict[str, Any]:
    if kind == "llama3":
        return {"rope_freqs.weight": llama3_divisors(rope, 16)}
    return {f"rope_factors_{end}.weight": torch.tensor(rope[f"{end}_factor"]) for end in ("short", "long")}


OTHERS = """decoder features_length expert_chunk swin_norm time_ token_shift {dense} attention.decay_lora attention.gate_lora
    attention.group_norm attention.iclr_lora attention.value_residual attention.relative attention.indexer""".split()
"""Settings of architectures that transformers opens from no GGUF."""
QUICK = ("llama-3.1", "llama-divided", "llama-yarn", "phi3-long")


@pytest.mark.spread(2)
@pytest.mark.parametrize("case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES])
def test_a_gguf_computes_what_the_model_that_was_written_does(case: str, tmp_path: Path, byte_level: Any) -> None:
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


def test_yarn_turns_pairs_as_llama_cpp_does() -> None:
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


def _gguf(tmp_path: Path, tokenizer: Any, kind: str = "llama", **written: Any) -> Path:
    return write_gguf(tmp_path / "a.gguf", _model(kind), tokenizer, kind, **written)


def test_every_setting_that_gguf_defines_is_read_or_refused_or_of_no_weight() -> None:
    """A new release of gguf names its new settings here."""
    families = (Keys.LLM, Keys.Attention, Keys.Rope, Keys.SSM, Keys.ShortConv)
    defined = {name for family in families for name in vars(family).values() if isinstance(name, str) and "{arch}." in name}
    known = {*convert.IDLE, *convert.SIZES, *convert.PLACES, *convert.APART}
    assert {
        key for name in defined if (key := name.removeprefix("{arch}.")) not in known and not key.startswith(("rope.", *OTHERS))
    } == set()


def test_a_setting_that_nobody_knows_is_a_warning(tmp_path: Path, byte_level: Any) -> None:
    file = _gguf(tmp_path, byte_level, fields={"new_thing": 3})
    assert "that nothing here reads: llama.new_thing" in " ".join(load_causal_lm(str(file), "float32").warnings)


@pytest.mark.spread(9)
@pytest.mark.parametrize("case", REFUSED)
def test_what_a_gguf_lacks_or_says_otherwise_is_refused_before_a_copy_is_kept(
    case: str, tmp_path: Path, byte_level: Any, own_cache: Path
) -> None:
    written = dict(REFUSED[case])
    said = written.pop("said")
    tensors = {name: torch.full((size,), value) for name, (size, value) in written.pop("tensors", {}).items()}
    file = _gguf(tmp_path, byte_level, tensors=tensors, **written)
    with pytest.raises(ModelUnavailable, match=said) as caught:
        prepare(str(file))
    assert "\n" not in str(caught.value) and list((own_cache / "models").iterdir()) == []


def test_a_header_that_counts_no_tensors_is_refused(tmp_path: Path, byte_level: Any, own_cache: Path) -> None:
    file = _gguf(tmp_path, byte_level)
    written = bytearray(file.read_bytes())
    written[8:16] = bytes(8)
    file.write_bytes(bytes(written))
    with pytest.raises(ModelUnavailable, match="holds no weights"):
        prepare(str(file))
    assert list((own_cache / "models").iterdir()) == []


@pytest.mark.slow
def test_a_copy_by_an_older_converter_is_made_again(
    tmp_path: Path, byte_level: Any, own_cache: Path, monkeypatch: pytest.MonkeyPatch, heard: Any
) -> None:
    file = _gguf(tmp_path, byte_level)
    with monkeypatch.context() as older:
        older.setattr(copies, "_FORMAT", copies._FORMAT - 1)
        prepare(str(file))
    prepare(str(file), heard)
    assert [message.split()[0] for message, _ in heard.told] == ["Unpacking"]
