"""A GGUF file runs as the model that was written, rotary positions included, or is refused before a copy is kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import Keys
from transformers import AutoConfig, AutoModelForCausalLM

from specviz.errors import ModelUnavailable
from specviz.models.hub import gguf_config
from specviz.models.hub import prepare as copies
from specviz.models.hub.prepare import prepare
from specviz.models.text.load import load_causal_lm
from tests.support.tiny.gguf import llama3_divisors, write_gguf

SIZES: dict[str, Any] = {
    "vocab_size": 352, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": None,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_theta": 500000.0,
}  # fmt: skip
OWN3 = {**LLAMA3, "factor": 4.0, "original_max_position_embeddings": 48, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0 + place / 8 for place in range(8)],
    "partial_rotary_factor": 1.0, "long_factor": [2.0 + place for place in range(8)],
    "original_max_position_embeddings": 32, "attention_factor": 1.19,
}  # fmt: skip
SCALED = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}


def _model(kind: str, **more: Any) -> Any:
    """A tiny random model in which positions matter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **more})).eval()
    for name, value in model.named_parameters():
        value.data = value.data + 0.3 * torch.randn_like(value) if value.ndim > 1 or "bias" in name else value.data
    return model


def _divisors(settings: dict[str, Any]) -> dict[str, Any]:
    return {"tensors": {"rope_freqs.weight": llama3_divisors(settings, 16)}}


def _base(theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope.freq_base": theta, **more}


CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama-plain": ("llama", "llama", {"rope_theta": 50000.0}, {"fields": _base(50000.0)}),
    "llama-3.1": ("llama", "llama", {"rope_parameters": LLAMA3}, {"fields": _base(500000.0), **_divisors(LLAMA3)}),
    "llama-divided": ("llama", "llama", {"rope_parameters": OWN3}, {"fields": _base(), **_divisors(OWN3)}),
    "llama-yarn": ("llama", "llama", {"rope_parameters": YARN}, {"fields": _base(**SCALED)}),
    "llama-linear": (
        "llama", "llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
        {"fields": _base(**LINEAR)},
    ),
    "llama-factor-without-type": (
        "llama", "llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
        {"fields": _base(**{"rope.scaling.factor": 4.0})},
    ),
    "llama-type-none": (
        "llama", "llama", {}, {"fields": _base(**{"rope.scaling.type": "none", "rope.scaling.factor": 4.0})},
    ),
    "qwen2-yarn": ("qwen2", "qwen2", {"rope_parameters": YARN}, {"fields": _base(**SCALED)}),
    "qwen3-yarn": ("qwen3", "qwen3", {"rope_parameters": YARN, "head_dim": 128}, {"fields": _base(**SCALED)}),
    "phi3-long": (
        "phi3", "phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 32},
        {
            "fields": _base(**{"rope.scaling.attn_factor": 1.19, "rope.scaling.original_context_length": 32}),
            "tensors": {f"rope_factors_{end}.weight": torch.tensor(LONG[f"{end}_factor"]) for end in ("short", "long")},
        },
    ),
    "phi3-partial": (
        "phi3", "phi3", {"partial_rotary_factor": 0.75}, {"fields": _base(**{"rope.dimension_count": 12})},
    ),
    "stablelm": (
        "stablelm", "stablelm", {"partial_rotary_factor": 0.5, "rope_theta": 20000.0},
        {"fields": _base(20000.0, **{"rope.dimension_count": 8})},
    ),
    "starcoder2": ("starcoder2", "starcoder2", {"rope_theta": 70000.0, "use_bias": True}, {"fields": _base(70000.0)}),
    "nemotron": (
        "nemotron", "nemotron", {"partial_rotary_factor": 0.25}, {"fields": _base(**{"rope.dimension_count": 4})},
    ),
    "gemma2": (
        "gemma2", "gemma2", {"head_dim": 16, "tie_word_embeddings": True, "query_pre_attn_scalar": 16}, {"fields": _base()},
    ),
    "gemma2-settings": (
        "gemma2", "gemma2",
        {
            "head_dim": 16, "tie_word_embeddings": True, "query_pre_attn_scalar": 64, "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0, "sliding_window": 12, "layer_types": ["full_attention", "sliding_attention"],
        },
        {
            "fields": _base(
                **{
                    "attention.scale": 0.125, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0,
                    "attention.sliding_window": 12, "attention.sliding_window_pattern": [False, True],
                }
            )
        },
    ),
    "phi3-window": ("phi3", "phi3", {"sliding_window": 20}, {"fields": _base(**{"attention.sliding_window": 20})}),
    "nemotron-epsilon": (
        "nemotron", "nemotron", {"partial_rotary_factor": 0.25, "norm_eps": 0.25},
        {"fields": _base(**{"rope.dimension_count": 4, "attention.layer_norm_epsilon": 0.25})},
    ),
    "llama-idle-settings": (
        "llama", "llama", {},
        {
            "fields": _base(
                **{
                    "attention.sliding_window": 4096, "logit_scale": 1.0, "attention.scale": 0.25, "expert_used_count": 0,
                    "attention.causal": True, "final_logit_softcapping": 0.0,
                }
            )
        },
    ),
    "gemma3-linear": (
        "gemma3_text", "gemma3",
        {
            "head_dim": 16, "tie_word_embeddings": True, "num_hidden_layers": 6, "query_pre_attn_scalar": 16,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            },
        },
        {"fields": _base(1e6, **{**LINEAR, "rope.scaling.factor": 8.0, "attention.sliding_window": 4096})},
    ),
}  # fmt: skip
OTHERS = """decoder features_length expert_chunk swin_norm time_ token_shift {dense} attention.decay_lora attention.gate_lora
    attention.group_norm attention.iclr_lora attention.value_residual attention.relative attention.indexer""".split()
"""Settings of architectures that transformers opens from no GGUF."""
QUICK = ("llama-3.1", "llama-divided", "llama-yarn", "phi3-long")


@pytest.mark.spread(2)
@pytest.mark.parametrize("case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES])
def test_a_gguf_computes_what_the_model_that_was_written_does(case: str, tmp_path: Path, byte_level: Any) -> None:
    kind, arch, config, written = CASES[case]
    model = _model(kind, **config)
    loaded = load_causal_lm(str(write_gguf(tmp_path / "a.gguf", model, byte_level, arch, **written)), "float32")
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
    rates, scale = gguf_config._rates({**YARN, "attention_factor": 1.25}, size)
    assert rates.tolist() == pytest.approx(wanted, rel=1e-5) and scale == 1.25 and wanted[0] == 1.0 > 4 * wanted[-1]


def _gguf(tmp_path: Path, tokenizer: Any, kind: str = "llama", **written: Any) -> Path:
    return write_gguf(tmp_path / "a.gguf", _model(kind), tokenizer, kind, **written)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a-part": ({"fields": {"split.count": 2, "split.no": 0}}, "part 1 of 2"),
    "a-missing-tensor": ({"without": ["blk.1.ffn_up.weight"]}, "lacks 1 of the weights"),
    "a-tensor-too-many": ({"tensors": {"blk.0.attn_q.bias": torch.zeros(64)}}, "holds blk.0.attn_q.bias"),
    "the-name-qwen2": ({"named": "qwen2"}, "lacks 6 of the weights of a qwen2"),
    "the-name-qwen3": ({"named": "qwen3"}, "lacks|cannot be read"),
    "the-name-gemma2": ({"named": "gemma2"}, "lacks|cannot be read"),
    "the-name-nonsense": ({"named": "nonsense"}, "nonsense"),
    "the-name-llama-of-a-qwen2": ({"kind": "qwen2", "named": "llama"}, "holds blk.0.attn_k.bias"),
    "unknown-scaling": ({"fields": {"rope.scaling.yarn_log_multiplier": 0.1}}, "sets llama.rope.scaling.yarn_log_multiplier"),
    "divisors-under-yarn": ({"fields": SCALED, "tensors": {"rope_freqs.weight": torch.full((8,), 2.0)}}, "scales them by 'yarn'"),
    "divisors-of-another-head": ({"tensors": {"rope_freqs.weight": torch.ones(5)}}, "do not fit its 16 dimensions"),
    "a-window-of-unnamed-layers": (
        {"kind": "qwen2", "fields": {"attention.sliding_window": 12}},
        "which layers of a qwen2 model",
    ),
    **{
        f"{key}-of-a-llama": ({"fields": {key: value}}, f"sets llama.{key} to {value}")
        for key, value in {
            "attention.scale": 0.5,
            "attention.sliding_window": 12,
            "attention.clamp_kqv": 8.0,
            "attention.causal": False,
            "attention.max_alibi_bias": 8.0,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "logit_scale": 0.5,
            "residual_scale": 0.25,
            "embedding_scale": 12.0,
            "expert_used_count": 2,
            "expert_gating_func": 2,
            "expert_weights_scale": 2.5,
            "use_parallel_residual": True,
        }.items()
    },
    "angles-of-another-width": ({"kind": "qwen2", "fields": {"rope.dimension_count": 8}}, "cannot compute"),
}


def test_every_setting_that_gguf_defines_is_read_or_refused_or_of_no_weight() -> None:
    """A new release of gguf names its new settings here."""
    families = (Keys.LLM, Keys.Attention, Keys.Rope, Keys.SSM, Keys.ShortConv)
    defined = {name for family in families for name in vars(family).values() if isinstance(name, str) and "{arch}." in name}
    known = {*gguf_config.IDLE, *gguf_config.SIZES, *gguf_config.PLACES, *gguf_config.APART}
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
    written, said = REFUSED[case]
    file = _gguf(tmp_path, byte_level, **written)
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
