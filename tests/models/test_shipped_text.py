"""The text models that come with the project, really: fetched, unpacked, loaded, and asked a question."""

import pytest
import torch

import specviz
from specviz.engine.attention import GROUPED
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET
from specviz.models.hub.packed_model import tokenizer_hash_in
from specviz.models.text.load import load_causal_lm
from specviz.training.registry import WEIGHTS

pytestmark = pytest.mark.model
PROMPT = "What should I think about before I adopt a dog?"


def test_the_hybrids_files_speak_in_the_same_tokens_and_stay_small():
    files = [WEIGHTS / name for name in ("hybrid.safetensors", "hybrid_draft.safetensors")]
    assert tokenizer_hash_in(files[0]) == tokenizer_hash_in(files[1])
    assert sum(one.stat().st_size for one in files) <= 4_500_000
    assert sum(weight.numel() for weight in load_causal_lm("hybrid-small", "float64").model.parameters()) == 2_849_306


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("tree", ["beam", "drawn"])
def test_trees_on_the_hybrid_write_what_it_writes_alone(tree, temperature):
    asked = {"prompt": PROMPT, "target": "hybrid-small", "max_new_tokens": 96, "temperature": temperature, "baseline": True}
    trace = specviz.run(method="stree", parameters={"tree": tree}, **asked)
    assert trace.end.baseline.equal
    assert sum(step.accepted for step in trace.steps) > 0.3 * len(trace.steps), "the drafter is of some use"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_trees_of_heads_on_smollm2_s_hybrid_write_what_it_writes_alone(temperature):
    asked = {"prompt": "What is the capital of Japan? Answer in a sentence.", "max_new_tokens": 40, "temperature": temperature}
    trace = specviz.run(method="stree", target="smollm2-hybrid", dtype="float32", baseline=True, **asked)
    assert trace.end.baseline.equal
    assert sum(step.accepted for step in trace.steps) > 0.5 * len(trace.steps), "heads of SmolLM2 fit"
    assert temperature or "Tokyo" in trace.end.text


def test_the_hybrid_writes_words():
    trace = specviz.run(method="autoregressive", prompt=PROMPT, target="hybrid-small", max_new_tokens=60)
    words = [word.strip(".,:;!?'\"()") for word in trace.end.text.lower().split()]
    known = {"the", "a", "to", "of", "and", "you", "your", "is", "are", "it", "can", "that", "in", "i", "for", "be", "with"}
    assert len(words) > 15 and sum(word in known for word in words) > 0.2 * len(words)


def test_smollm2_is_what_its_card_says():
    loaded = load_causal_lm(DEFAULT_TEXT_TARGET)
    assert (loaded.text.rows, loaded.text.context_length) == (49152, 8192)
    unpacked = load_causal_lm(DEFAULT_TEXT_TARGET, "float64").model
    assert sum(weight.numel() for weight in unpacked.parameters()) == 134_515_008
    assert loaded.device.type != "cpu" or loaded.model.config._attn_implementation == GROUPED
    assert {loaded.text.of(end) for end in loaded.eos_ids} == {"<|im_end|>"}
    assert loaded.warnings == ()


def test_smollm2_gets_its_own_system_prompt():
    text = load_causal_lm(DEFAULT_TEXT_TARGET).text
    wrapped = text.decode(text.encode("Hello"))
    assert wrapped.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert wrapped.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert text.decode(text.encode("Hello", raw=True)) == "Hello"


def test_smollm2_answers_and_its_pieces_join_to_the_answer():
    loaded = load_causal_lm(DEFAULT_TEXT_TARGET, "float32")
    ids = loaded.text.encode("What is the capital of France?")
    prompt = torch.tensor([ids], device=loaded.device)
    with torch.inference_mode():
        answer = loaded.model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False)[
            0, len(ids) :
        ].tolist()
    pieces = loaded.text.pieces(ids, answer)
    assert "".join(pieces) == loaded.text.decode(answer)
    assert "Paris" in "".join(pieces)
    assert answer[-1] in loaded.eos_ids
