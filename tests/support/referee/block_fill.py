"""Block drafters as their own packages write and compute them: the referee of our reader.

Run it where ``dflash`` 0.1.0, ``speculators`` 0.9 and the repository deepseek-ai/DeepSpec are at hand, which this project does
not need: ``python -m tests.support.referee.block_fill FOLDER`` writes ``heads.json.gz`` (a config.json and the tensors' names and
shapes by case) and ``logits.safetensors`` (float64, by case and round: the marginals', and those given the tokens above). All
packages normalise and turn in float32 whatever the weights are; here they do so in float64, as the rest.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tests.support.referee.filled import uniform, vocabulary, weight

VOCAB, DRAFTED, HIDDEN, LAYERS, BLOCK, MASK = 40, 24, 16, 10, 5, 7
ROUNDS = (9, 12)
"""Positions of the anchor in two rounds: after a prompt of nine tokens, and after three more."""
_DECODER = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 6, "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}  # fmt: skip
_SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
    "use_sliding_window": True,
}
_SECOND = {"conv_kernel_size": 3, "conv_group_size": 4, "selector_rank": 5, "selector_top_k": 6}


def cases() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Name, package and class, the decoder's settings, and the drafter's."""
    for second in ("", "2"):
        more = _SECOND if second else {}
        for name, decoder in (("", {}), (" sliding", _SLIDING), (" biases", {"attention_bias": True})):
            yield f"dflash{second}{name}", f"dflash{second}", decoder, more
        yield f"dflash{second} causal", f"dflash{second}", {"is_causal": True}, more
        yield f"dflash{second} causal sliding", f"dflash{second}", {**_SLIDING, "is_causal": True}, more
        yield f"dflash{second} bidirectional sliding", f"dflash{second}", {**_SLIDING, "is_causal": False}, more
    scales = {"input_embedding_scale": 3.0, "output_multiplier": 0.5, "final_logit_softcapping": 2.0}
    yield "dflash scales", "dflash", {}, scales
    yield "dflash one layer", "dflash", {"num_hidden_layers": 1}, {"target_layer_ids": None}
    yield "dflash own taps", "dflash", {}, {"target_layer_ids": None}
    yield "deepspec dflash", "deepspec", {}, {"markov_rank": 0, "enable_confidence_head": False}
    for kind in ("vanilla", "gated", "rnn"):
        yield f"deepspec dspark {kind}", "deepspec", {}, {"markov_rank": 4, "markov_head_type": kind}
        yield f"speculators dspark {kind}", "speculators dspark", {}, {"markov_rank": 4, "markov_head_type": kind}
    alone = {"markov_rank": 4, "confidence_head_with_markov": False, "draft_vocab_size": DRAFTED}
    yield "speculators dspark narrow", "speculators dspark", {}, alone
    yield "speculators dspark fill-in", "speculators dspark", {}, {"markov_rank": 4, "sample_from_anchor": False}
    yield "speculators dflash", "speculators dflash", {}, {}
    yield "speculators dflash from the anchor", "speculators dflash", {}, {"sample_from_anchor": True}
    yield "speculators dflash narrow", "speculators dflash", {}, {"draft_vocab_size": DRAFTED}
    yield "speculators dflash2", "speculators dflash2", {}, _SECOND


def text() -> Tensor:
    """Tokens [token] of both rounds and what follows."""
    return ((uniform("text", (ROUNDS[1] + BLOCK + 2,)) + 1) / 2 * VOCAB).long()


def states(taps: tuple[int, ...]) -> Tensor:
    """The target's hidden states [token, tap * hidden], float64, by transformers' numbering."""
    return torch.cat([2 * uniform(f"state {tap}", (len(text()), HIDDEN)).double() for tap in taps], dim=-1)


def ends() -> tuple[Tensor, Tensor]:
    """The target's embedding and head [vocab, hidden], float64."""
    return uniform("embedding", (VOCAB, HIDDEN)).double(), uniform("head", (VOCAB, HIDDEN)).double()


def filled(name: str, shape: list[int]) -> Tensor:
    """The tensor called so in a drafter, float64 unless it is a vocabulary."""
    if name in ("d2t", "t2d"):
        return dict(zip(("d2t", "t2d"), vocabulary(DRAFTED, VOCAB), strict=True))[name]
    if name.startswith(("embed_tokens", "lm_head")):
        return ends()[name.startswith("lm_head")][: shape[0]]
    return weight(name, shape).double()


def _in_float64() -> None:
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    def norm(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)

    def turn(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        size = 2 * len(self.inv_freq)
        rates = 5000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angle = (position_ids[..., None].double() * rates).repeat(1, 1, 2)
        return angle.cos(), angle.sin()

    qwen3.Qwen3RMSNorm.forward = norm
    qwen3.Qwen3RotaryEmbedding.forward = turn


def _z_lab(kind: str, decoder: dict[str, Any], more: dict[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """Return a model of the package ``dflash`` and its logits by round."""
    from dflash.model import DFlash2DraftModel, DFlashDraftModel, _crop_to, _make_cache
    from transformers import Qwen3Config

    config = Qwen3Config(**{**_DECODER, **{name: value for name, value in decoder.items() if name != "is_causal"}})
    settings = {"target_layer_ids": [1, 4, 7], "mask_token_id": MASK, **more}
    config.dflash_config = {name: value for name, value in settings.items() if value is not None}
    config.num_target_layers, config.block_size = LAYERS, BLOCK
    if "is_causal" in decoder:
        config.is_causal = decoder["is_causal"]
    model = (DFlash2DraftModel if kind == "dflash2" else DFlashDraftModel)(config).double().eval()
    model.load_state_dict({name: filled(_named(name), list(value.shape)) for name, value in model.state_dict().items()})
    (embedding, head), tokens, cache, logits, done = ends(), text(), _make_cache(config), {}, 0
    context = states(tuple(layer + 1 for layer in model.target_layer_ids))
    scale = more.get("input_embedding_scale", 1.0)
    for number, anchor in enumerate(ROUNDS):
        block = torch.tensor([int(tokens[anchor]), *[MASK] * (BLOCK - 1)])
        hidden = model(
            target_hidden=context[None, done:anchor], noise_embedding=F.embedding(block, embedding)[None] * scale,
            position_ids=torch.arange(done, anchor + BLOCK)[None], past_key_values=cache, use_cache=True,
        )[:, 1:]  # fmt: skip
        _crop_to(cache, anchor)
        done = anchor
        logits[f"marginal {number}"] = model.compute_logits(hidden, lambda x: F.linear(x, head))[0]
        if kind == "dflash2":
            path = model.candidate_selector.select(hidden, logits[f"marginal {number}"][None], block[:1], 0.0)[0]
            logits[f"path {number}"] = path[0]
    return model, logits


def _library(kind: str, decoder: dict[str, Any], more: dict[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """Return a model of the library ``speculators`` and its logits by round, and given the true tokens if it corrects."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.models.dflash2 import DFlash2DraftModel, DFlash2SpeculatorConfig
    from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import Qwen3Config

    name = kind.split()[1]
    types = {"dflash": (DFlashDraftModel, DFlashSpeculatorConfig), "dflash2": (DFlash2DraftModel, DFlash2SpeculatorConfig)}
    network, settings = types.get(name, (DSparkDraftModel, DSparkSpeculatorConfig))
    inner = Qwen3Config(**{**_DECODER, **decoder})
    inner._attn_implementation = "eager"
    config = settings(
        transformer_layer_config=inner,
        speculators_config=SpeculatorsConfig(
            algorithm=name,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=BLOCK - 1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **{
            "draft_vocab_size": VOCAB,
            "block_size": BLOCK,
            "aux_hidden_state_layer_ids": [2, 5, 8],
            "mask_token_id": MASK,
            **more,
        },
    )
    model = network(config=config).double().eval()
    model.load_state_dict({part: filled(part, list(value.shape)) for part, value in model.state_dict().items()})
    tokens, taps = text(), (2, 5, 8)
    anchors = torch.zeros(1, len(tokens))
    anchors[0, list(ROUNDS)] = 1
    hidden, marginals, *_ = model._backbone_forward(
        states(taps)[None], tokens[None], anchors, states((0,))[None], torch.zeros(1, len(tokens), dtype=torch.long),
        max_anchors=len(ROUNDS),
    )  # fmt: skip
    hidden, marginals = (part.view(len(ROUNDS), BLOCK, -1) for part in (hidden, marginals))
    first = 0 if config.sample_from_anchor else 1
    before = torch.stack([tokens[anchor : anchor + BLOCK] for anchor in ROUNDS])
    before = before if first == 0 else torch.cat((before[:, :1], before[:, :-1]), dim=1)
    logits = {f"marginal {number}": one[first:] for number, one in enumerate(marginals)}
    if getattr(model, "markov_head", None) is not None:
        given = marginals + model.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)
        logits |= {f"given {number}": one[first:] for number, one in enumerate(given)}
        words = [model.markov_head.prev_embeddings(before)] if config.confidence_head_with_markov else []
        sure = model.confidence_head(torch.cat((hidden, *words), dim=-1)).sigmoid()
        logits |= {f"confidence {number}": one[first:] for number, one in enumerate(sure)}
    if name == "dflash2":
        for number in range(len(ROUNDS)):
            ids, scores = model.candidate_selector.select(marginals[number], hidden[number], before[number])
            given = torch.full_like(marginals[number], -torch.inf).scatter(-1, ids, scores)
            logits[f"given {number}"] = given[first:]
    return model, logits


def _deepspec(kind: str, decoder: dict[str, Any], more: dict[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """Return a model of DeepSpec, its logits by round, and those given the true tokens."""
    from deepspec.eval.dspark.draft_ops import forward_dspark_draft_block
    from deepspec.modeling.dspark.qwen3 import Qwen3DSparkModel
    from transformers import DynamicCache, Qwen3Config

    class Cropped(DynamicCache):
        def crop(self, length: int) -> None:  # transformers takes the number to remove since 5.24
            super().crop(length - self.get_seq_length())

    config = Qwen3Config(**{**_DECODER, **decoder})
    settings = {
        "num_target_layers": LAYERS, "block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": [-1, 4, 7], "num_anchors": 8,
        "enable_confidence_head": True, "confidence_head_with_markov": True, **more,
    }  # fmt: skip
    for name, value in settings.items():
        setattr(config, name, value)
    config._attn_implementation = "sdpa"
    model = Qwen3DSparkModel(config).double().eval()
    model.load_state_dict({part: filled(part, list(value.shape)) for part, value in model.state_dict().items()})
    tokens, cache, logits, done = text(), Cropped(), {}, 0
    context = states((0, 5, 8))
    for number, anchor in enumerate(ROUNDS):
        hidden = forward_dspark_draft_block(
            model, draft_input_ids=torch.tensor([[int(tokens[anchor]), *[MASK] * (BLOCK - 1)]]),
            position_ids=torch.arange(len(tokens))[None], past_key_values_draft=cache,
            target_hidden_states=context[None, done:anchor], start=anchor, block_size=BLOCK,
        )  # fmt: skip
        done, before = anchor, tokens[None, anchor : anchor + BLOCK]
        logits[f"marginal {number}"] = model.compute_logits(hidden)[0]
        if model.markov_head is not None:
            base = model.compute_logits(hidden)[:, None]
            given = model.markov_head.apply_block_logits(base, token_ids=before[:, None], hidden_states=hidden[:, None])
            logits[f"given {number}"] = given[0, 0]
            logits[f"confidence {number}"] = model.predict_confidence_step(hidden, before)[0].double().sigmoid()
    return model, logits


def _named(name: str) -> str:
    """A tensor's name in z-lab's files, which store codebooks without a suffix."""
    return name.replace("_codebook.weight", "_codebook")


@torch.no_grad()
def main(folder: Path) -> None:
    """Write all cases."""
    _in_float64()
    heads: dict[str, Any] = {}
    logits: dict[str, Tensor] = {}
    for name, kind, decoder, more in cases():
        computed = {"speculators": _library, "deepspec": _deepspec}.get(kind.split()[0], _z_lab)
        model, found = computed(kind, decoder, more)
        with tempfile.TemporaryDirectory() as place:
            model.save_pretrained(place)
            with safe_open(Path(place) / "model.safetensors", framework="pt") as file:
                tensors = {_named(part): list(file.get_slice(part).get_shape()) for part in file.keys()}
            heads[name] = {"config": json.loads((Path(place) / "config.json").read_text()), "tensors": tensors}
        logits |= {f"{name}/{part}": value.contiguous() for part, value in found.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "heads.json.gz").write_bytes(gzip.compress(json.dumps(heads).encode(), mtime=0))
    save_file(logits, folder / "logits.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
