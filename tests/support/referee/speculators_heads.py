"""Heads as the library ``speculators`` writes them, and the logits it computes with them: the referee of our reader.

Run it where that library is installed, which this project does not need: ``python -m tests.support.referee.speculators_heads
FOLDER`` writes ``heads.json.gz`` (a config.json and the tensors' names and shapes by case), ``logits.safetensors`` (what the
library's own draft model gives along a text, by case and depth) and one head whole, as the library saves it.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tests.support.referee.filled import uniform, vocabulary, weight

VOCAB, DRAFTED, HIDDEN, ROWS, DEPTH = 40, 24, 16, 6, 3
WHOLE = "llama-normed_residual-each"
"""The case that is kept as the library saves it."""
_DECODER = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 6, "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 128,
}  # fmt: skip
_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64, "rope_theta": 5000.0}  # fmt: skip
_MORE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "two layers": ("llama", {"num_hidden_layers": 2}, {"norm_output": True}),
    "three layers": ("qwen3", {"num_hidden_layers": 3}, {"norm_before_residual": True}),
    "five taps": ("llama", {}, {"eagle_aux_hidden_state_layer_ids": [1, 3, 5, 7, 8], "fc_norm": True}),
    "one tap": ("qwen3", {}, {"eagle_aux_hidden_state_layer_ids": [4], "norm_before_fc": True}),
    "whole vocabulary": ("llama", {}, {"draft_vocab_size": VOCAB}),
    "rotary base": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, {}),
    "llama3 rotary": ("llama", {"rope_parameters": _ROPE}, {"norm_output": True}),
    "yarn": ("qwen3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0,
                                           "original_max_position_embeddings": 32}}, {}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "qwen3 biases": ("qwen3", {"attention_bias": True}, {"norm_before_residual": True}),
    "window": ("llama", {"layer_types": ["sliding_attention"], "sliding_window": 3}, {}),
    "window of one layer": ("qwen3", {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"],
                                      "sliding_window": 2, "use_sliding_window": True}, {"norm_before_residual": True}),
}  # fmt: skip


def cases() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Name, kind of layer, the decoder's settings and the flags: every combination of flags, and more."""
    entries = {"": {}, "together": {"norm_before_fc": True}, "each": {"fc_norm": True}}
    for kind, residual, (entry, entering), output in product(("llama", "qwen3"), (False, True), entries.items(), (False, True)):
        said = [kind, "normed_residual" * residual, entry, "normed_output" * output]
        flags = {"norm_before_residual": residual, "norm_output": output, **entering}
        yield "-".join(filter(None, said)), kind, {}, flags
    for name, (kind, decoder, flags) in _MORE.items():
        yield name, kind, decoder, flags


def text() -> Tensor:
    """Tokens [row], each one behind the row whose hidden states it is paired with."""
    return ((uniform("text", (ROWS,)) + 1) / 2 * VOCAB).long()


def states(taps: int) -> Tensor:
    """The target's hidden states [row, tap * hidden]."""
    return 2 * uniform(f"states of {taps}", (ROWS, taps * HIDDEN))


def filled(name: str, shape: list[int]) -> Tensor:
    """The tensor called so in a head."""
    if name in ("d2t", "t2d"):
        return dict(zip(("d2t", "t2d"), vocabulary(DRAFTED, VOCAB), strict=True))[name]
    return weight(name, shape)


def _model(kind: str, decoder: dict[str, Any], flags: dict[str, Any]) -> Any:
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config

    inner = {"llama": LlamaConfig, "qwen3": Qwen3Config}[kind](**{**_DECODER, **decoder})
    inner._attn_implementation = "eager"
    proposal = GreedyTokenProposalConfig(speculative_tokens=DEPTH)
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=inner,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **{"draft_vocab_size": DRAFTED, "eagle_aux_hidden_state_layer_ids": [2, 4, 5], **flags},
    )
    model = Eagle3DraftModel(config=config)
    model.load_state_dict({name: filled(name, list(value.shape)) for name, value in model.state_dict().items()})
    return model.eval()


def _logits(model: Any) -> list[Tensor]:
    """What the library's model gives at each depth, [row, support]; rows whose text has ended are left out."""
    heard: list[Tensor] = []
    watching = model.lm_head.register_forward_hook(lambda module, given, output: heard.append(output[0].detach()))
    taps = model.fc.in_features // HIDDEN
    with torch.no_grad():
        model(states(taps)[None], text()[None], torch.zeros(1, ROWS, dtype=torch.long), ttt_steps=DEPTH)
    watching.remove()
    return [logits[: ROWS - depth].contiguous() for depth, logits in enumerate(heard)]


def main(folder: Path) -> None:
    """Write all cases."""
    heads: dict[str, Any] = {}
    logits: dict[str, Tensor] = {}
    for name, kind, decoder, flags in cases():
        model = _model(kind, decoder, flags)
        with tempfile.TemporaryDirectory() as place:
            model.save_pretrained(place)
            with safe_open(Path(place) / "model.safetensors", framework="pt") as file:
                tensors = {part: list(file.get_slice(part).get_shape()) for part in file.keys()}
                whole = {part: file.get_tensor(part) for part in tensors} if name == WHOLE else {}
            heads[name] = {"config": json.loads((Path(place) / "config.json").read_text()), "tensors": tensors}
        if whole:
            (folder / "whole").mkdir(parents=True, exist_ok=True)
            save_file(whole, folder / "whole" / "model.safetensors", metadata={"format": "pt"})
            (folder / "whole" / "config.json").write_text(json.dumps(heads[name]["config"], indent=1))
        logits |= {f"{name}/{depth}": value for depth, value in enumerate(_logits(model))}
    (folder / "heads.json.gz").write_bytes(gzip.compress(json.dumps(heads).encode(), mtime=0))
    save_file(logits, folder / "logits.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
