"""Every causal class that transformers registers writes what ``generate`` writes, by trees and chains too, or is refused.

A new release of transformers brings its classes here first. Contexts are filled to the end, and windows are shorter than prompts.
"""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertLMHeadModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import specviz
from specviz.drafting.trees.calibrated import CalibratedTree
from specviz.errors import SpecvizError
from specviz.models import cache
from tests.support.families import CONTEXT, VOCAB, WINDOW, tiny_model, words

PROMPT = "The quick fox jumps over the dog. The quick fox jumps over"
COMMON = ("mixtral",)
"""Settings that differ between layers, and experts: what broke once is met in the fast lane."""
RECURRENT = "cannot hold the branches of a draft tree"
PLACELESS = "takes no position ids"
REFUSED = {
    RECURRENT: """
        axk2 bailing_hybrid deepseek_v32 deepseek_v4 falcon_h1 falcon_mamba glm_moe_dsa hy_v4 inkling2_loop_text inkling2_text
        inkling_text jamba kimi_linear lara_mini lfm2_moe lfm3 llama4 llama4_text mamba minimax nemotron_h olmo_hybrid
        recurrent_gemma rwkv xlstm zamba2 zaya""",
    PLACELESS: """
        bart bigbird_pegasus blenderbot blenderbot-small bloom cpmant marian mbart moss_transcribe_diarize mpt mvp pegasus plbart
        roformer trocr whisper xlnet""",
    "counts cache slots, not positions": "gpt_neo",
    "runs its layers in loops": "dory",
    "has no key-value cache": "openai-gpt",
    "applies to the cache but not within a pass": "moshi",
    "from the states of another model": "gemma4_unified_assistant",
    "always use the model's chat template": "gemma3",
    "generates no text": "emu3 mllama",
}
UNBUILT = {
    "blt": "num_hidden_layers",
    "dbrx": "rope_theta",
    "dots3_note": "per_layer_config",
    "dots3_note_text": "parameters",
    "gemma3n": "timm",
    "gemma4_assistant": "hidden_size_per_layer_input",
    "musicgen": "dropout",
    "musicgen_melody": "dropout",
    "prophetnet": "num_hidden_layers",
    "qwen4_exp": "NoneType",
    "qwen4_exp_text": "QSA config",
    "reformer": "axial_pos_embds",
    "xlm": "parameters",
    "zamba": "tie_weights_keys",
}
"""What the rules of ``tests/support/families.py`` cannot shrink, and a word of what its class says to that."""
UNREFERENCED = {"bamba": "get_seq_length", "granitemoehybrid": "get_seq_length"}
"""Classes whose own ``generate`` fails in these shapes, and a word of why."""
FLOAT32 = {"xglm": "float32"}
"""A class that computes in no float64."""


def _reason(kind: str) -> str:
    return next((reason for reason, kinds in REFUSED.items() if kind in kinds.split()), "")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Fixed trees of fewer nodes than a context has places, as some classes hold something for each place: by themselves they
    have as many as pay. And models are forgotten."""
    whole = CalibratedTree.best
    monkeypatch.setattr(CalibratedTree, "best", lambda tree, nodes: whole(tree, min(nodes, 24)))
    yield
    cache.MODELS.release()


def _cases() -> list[Any]:
    """The whole lane, of which a few common classes are in the fast one too."""
    kinds = list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    return [pytest.param(kind, marks=() if kind in COMMON else pytest.mark.families) for kind in kinds]


class _Folder:
    """A model in a folder, as a user has it, and what may be run there."""

    def __init__(self, path, kind, dtype, context=CONTEXT, **settings):
        tokenizer = words()
        tiny_model(kind, **settings).save_pretrained(path)
        tokenizer.save_pretrained(path)
        self.path, self.dtype = path, dtype
        self.ids: list[int] = tokenizer(PROMPT)["input_ids"]
        self.budget = context - len(self.ids)
        assert len(self.ids) > WINDOW

    def run(self, method, draft=None):
        trace = specviz.run(
            prompt=PROMPT, raw=True, method=method, target=str(self.path), draft=None if draft is None else str(draft),
            max_new_tokens=self.budget, dtype=self.dtype, device="cpu", seed=3,
        )  # fmt: skip
        assert trace.end is not None and trace.end.reason in ("budget", "context"), trace.end
        return list(trace.end.output_ids)

    def generated(self):
        settings: dict[str, Any] = {"dtype": getattr(torch, self.dtype), "attn_implementation": "eager"}
        try:
            model = AutoModelForCausalLM.from_pretrained(self.path, experts_implementation="eager", **settings)
        except TypeError:  # of a class without experts
            model = AutoModelForCausalLM.from_pretrained(self.path, **settings)
        with torch.inference_mode():
            told = model.generate(torch.tensor([self.ids]), max_new_tokens=self.budget, do_sample=False)
        return told[0, len(self.ids) :].tolist()


@pytest.mark.parametrize("kind", _cases())
def test_a_class_writes_what_generate_writes_or_is_refused(kind, tmp_path):
    if kind in UNBUILT:
        with pytest.raises(Exception, match=UNBUILT[kind]):  # whatever its class raises
            tiny_model(kind)
        return
    folder = _Folder(tmp_path / kind, kind, FLOAT32.get(kind, "float64"))
    if reason := _reason(kind):
        with pytest.raises(SpecvizError, match=reason):
            folder.run("autoregressive")
        return
    greedy = folder.run("autoregressive")
    assert len(greedy) == folder.budget
    if kind in UNREFERENCED:
        with pytest.raises(Exception, match=UNREFERENCED[kind]):  # whatever its class raises
            folder.generated()
    else:
        assert greedy == folder.generated()
    # A fixed tree, and a chain drafted by another session.
    assert folder.run("token_recycling") == greedy
    assert folder.run("speculative_sampling", draft=folder.path) == greedy


@pytest.mark.families
@pytest.mark.parametrize("kind", ["afmoe", "aria_text", "falcon"])
def test_a_deep_class_writes_what_generate_writes_in_a_long_text(kind, tmp_path):
    folder = _Folder(tmp_path, kind, "float64", 72, max_position_embeddings=72, num_hidden_layers=4)
    greedy = folder.run("autoregressive")
    assert greedy == folder.generated() == folder.run("token_recycling") and len(greedy) == folder.budget


@pytest.mark.families
def test_a_window_as_long_as_the_context_needs_no_mask(tmp_path):
    folder = _Folder(tmp_path, "moshi", "float64", sliding_window=CONTEXT)
    greedy = folder.run("autoregressive")
    assert greedy == folder.generated() == folder.run("token_recycling")


def test_an_encoder_is_refused(tmp_path):
    folder = _Folder(tmp_path, "bert", "float64")
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    BertLMHeadModel(BertConfig(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(SpecvizError, match="is an encoder"):
        folder.run("autoregressive")


def test_the_lists_name_registered_classes():
    listed = {*UNBUILT, *UNREFERENCED, *FLOAT32, *COMMON, *" ".join(REFUSED.values()).split()}
    assert listed <= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
