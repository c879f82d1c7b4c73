"""DREAM's published drafters: the authors' forward pass worked out row by row, and whole runs on LLaVA-NeXT."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specviz.errors import ModelUnavailable
from specviz.models.heads.heads import drafting_heads, fit_of
from specviz.models.heads.published import read
from specviz.models.hub.published import open_repository
from tests.support.referee.decoder_layer import below, decoder_layer, fed, norm
from tests.support.tiny.published_heads import saved
from tests.support.tiny.text import composed, parts_for
from tests.support.worlds.vision import GREEDY, world
from tests.support.worlds.witness import drafted_roots

HIDDEN, HEADS, INNER, THETA, EPS = 48, 4, 40, 10000.0, 1e-6
SIZE = HIDDEN // HEADS
CONFIG = json.loads(Path(__file__).with_name("configs.json").read_text("utf-8"))["dream"]


def tensors():
    generator = torch.Generator().manual_seed(5)

    def drawn(*shape):
        return 0.3 * torch.randn(shape, generator=generator)

    found = {"norm.weight": 1 + drawn(HIDDEN)}
    for number, part in ((0, "self_attn"), (1, "cross_attn"), (2, "self_attn")):
        layer = f"layers.{number}."
        found |= {f"{layer}{part}.{one}_proj.weight": drawn(HIDDEN, HIDDEN) for one in "qkvo"}
        found |= {f"{layer}mlp.{one}_proj.weight": drawn(INNER, HIDDEN) for one in ("gate", "up")}
        found |= {
            f"{layer}mlp.down_proj.weight": drawn(HIDDEN, INNER),
            f"{layer}post_attention_layernorm.weight": 1 + drawn(HIDDEN),
        }
        if number:
            found[f"{layer}input_layernorm.weight"] = 1 + drawn(HIDDEN)
    found |= {f"layers.1.cross_attn.{one}_norm.weight": 1 + drawn(SIZE) for one in "qk"}
    return found | {"layers.1.cross_attn_attn_gate": torch.tensor([0.7]), "layers.1.cross_attn_mlp_gate": torch.tensor([-0.5])}


def across(part, x, thoughts, known):
    """Row i reads thoughts up to i - 1; row 0, for which all is masked, the mean of those ``known`` when it was computed."""
    inputs = norm(x, part["input_layernorm.weight"], EPS)
    queries, keys, values = (
        (rows @ part[f"cross_attn.{one}_proj.weight"].T).view(-1, HEADS, SIZE)
        for one, rows in zip("qkv", (inputs, thoughts, thoughts), strict=True)
    )
    queries, keys = (norm(rows, part[f"cross_attn.{one}_norm.weight"], EPS) for one, rows in (("q", queries), ("k", keys)))
    rows = [values[:known].mean(0).flatten()]
    for row in range(1, len(x)):
        scores = torch.einsum("hs,khs->hk", queries[row], keys[:row]) / math.sqrt(SIZE)
        rows.append(torch.einsum("hk,khs->hs", scores.softmax(-1), values[:row]).flatten())
    first, second = (part[f"cross_attn_{one}_gate"].tanh() for one in ("attn", "mlp"))
    return fed(part, x + first * (torch.stack(rows) @ part["cross_attn.o_proj.weight"].T), EPS, second)


def expected(here, ids):
    first, crossing, last = (below(tensors(), f"layers.{number}.") for number in range(3))
    session = here.target.open(len(ids), (0, 3))
    hidden = session.prefill(ids).hidden
    words = here.tiny.model.get_input_embeddings().weight[ids]
    words[list(here.layout.visual)] = hidden[0][list(here.layout.visual)]
    x = decoder_layer(first, words, torch.arange(len(ids)), HEADS, THETA, EPS)
    x = across(crossing, x, hidden[3][:-1], here.layout.length - 1)
    x = decoder_layer(last, x, torch.arange(len(ids)), HEADS, THETA, EPS)
    output = norm(x, tensors()["norm.weight"].double(), EPS)[-1]
    return here.tiny.model.get_output_embeddings().weight @ output


def published(tmp_path, here, warp, keep):
    folder = saved(tmp_path / "dream", tensors(), CONFIG)
    loaded = SimpleNamespace(name="tiny", tokenizer_hash="none of ours")
    parts = parts_for(here.target, warp).using(
        drafter_weights=lambda kind: drafting_heads(kind, str(folder), loaded, here.target),
        uses_shipped_weights=False, draft_name=str(folder), picture=here.layout,
    )  # fmt: skip
    return composed("dream", {"depth": 3, "width": 4, "nodes": 12, "keep": keep}, parts)


def test_the_first_drafted_token_is_what_the_authors_forward_pass_gives(tmp_path):
    here = world("llava_next")
    composition = published(tmp_path, here, GREEDY, 1.0)
    drafter = composition.controller.drafter
    roots, _ = drafted_roots(drafter, here.target, here.prompt, composition.hidden_state_layers, 5)
    for ids, row in roots:
        wanted = expected(here, ids)
        assert float((row - wanted).abs().max() / wanted.abs().max()) < 1e-9


def test_a_drafter_for_another_size_or_with_a_part_missing_is_refused(tmp_path):
    fit = fit_of("tiny", world("llava_next").target)
    with pytest.raises(ModelUnavailable, match="hidden states of width 64"):
        read("dream", open_repository(str(saved(tmp_path / "a", tensors(), {**CONFIG, "hidden_size": 64}))), fit)
    without = {name: value for name, value in tensors().items() if name != "layers.2.mlp.up_proj.weight"}
    with pytest.raises(ModelUnavailable, match="lacks the tensor last.mlp.up_proj.weight"):
        read("dream", open_repository(str(saved(tmp_path / "b", without, CONFIG))), fit)
