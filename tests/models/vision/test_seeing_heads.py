"""MSD's and ViSpec's heads: what stands in a picture's place, worked out from the authors' formulas, and whole runs."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from specviz.drafting.networks.eagle_head import EagleRuntime, PublishedEagleHead
from specviz.drafting.runtimes.visual_context import with_picture
from specviz.errors import ModelUnavailable
from specviz.models.heads.heads import fit_of
from specviz.models.heads.published import read
from specviz.models.hub.published import open_repository
from tests.support.referee.decoder_layer import below, decoder_layer
from tests.support.tiny.published_heads import saved
from tests.support.worlds.vision import world
from tests.support.worlds.witness import drafted_roots

HIDDEN, VOCAB, HEADS, INNER, QUERIES = 48, 97, 4, 40, 3
SIZE = HIDDEN // HEADS
CONFIGS = json.loads(Path(__file__).with_name("configs.json").read_text("utf-8"))["seeing"]


def tensors_of(name):
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape):
        return 0.3 * torch.randn(shape, generator=generator)

    square, layer = (HIDDEN, HIDDEN), "layers.0."
    tensors = {"fc.weight": drawn(HIDDEN, 2 * HIDDEN), "fc.bias": drawn(HIDDEN)}
    tensors |= {f"{layer}self_attn.{part}_proj.weight": drawn(*square) for part in "qkvo"}
    tensors |= {f"{layer}mlp.{part}_proj.weight": drawn(INNER, HIDDEN) for part in ("gate", "up")}
    tensors |= {
        f"{layer}mlp.down_proj.weight": drawn(HIDDEN, INNER),
        f"{layer}post_attention_layernorm.weight": 1 + drawn(HIDDEN),
    }
    if "qwen" in name:
        tensors |= {f"{layer}self_attn.{part}_proj.bias": drawn(HIDDEN) for part in "qkv"}
    if name == "msd qwen2vl":
        tensors[f"{layer}input_layernorm.weight"] = 1 + drawn(HIDDEN)
    if name.startswith("vispec"):
        tensors |= {"imadpt.q": drawn(QUERIES, HEADS, SIZE), "imadpt.o_proj.weight": drawn(*square)}
        tensors |= {f"imadpt.{part}_proj.weight": drawn(*square) for part in "kv"}
        tensors |= {"img_fc.weight": drawn(HIDDEN, 2 * HIDDEN), "img_fc.bias": drawn(HIDDEN)}
        if "qwen" in name:
            tensors |= {f"imadpt.{part}_proj.bias": drawn(HIDDEN) for part in "kv"}
    return tensors


def expected(name, here, ids):
    """Logits after ``ids``: every row of the authors' forward pass, then one decoder layer over all of them."""
    part = {key: value.double() for key, value in tensors_of(name).items()}
    session = here.target.open(len(ids), (0, 3))
    hidden = session.prefill(ids).hidden
    table = here.tiny.model.get_input_embeddings().weight
    visual, words, states = list(here.layout.visual), table[ids], hidden[3]
    words[visual] = hidden[0][visual]
    inputs, places, whole = [], [], torch.zeros(HIDDEN).double()
    answers = compressed(part, hidden[0][visual]) if name.startswith("vispec") else words[visual]
    stands = visual[-(QUERIES - 1) :] if name.startswith("vispec") else visual
    for row in range(len(ids) - 1):
        if row + 1 in visual:
            if row + 1 == visual[-1] and name.startswith("vispec"):
                whole = answers[-1]
            if row + 1 not in stands:
                continue
            entering = answers[stands.index(row + 1)]
        else:
            state = states[row]
            if name.startswith("vispec"):
                state = F.linear(torch.cat((state, whole)), part["img_fc.weight"], part["img_fc.bias"])
            entering = F.linear(torch.cat((words[row + 1], state)), part["fc.weight"], part["fc.bias"])
        inputs.append(entering)
        places.append(row)
    output = decoder_layer(below(part, "layers.0."), torch.stack(inputs), torch.tensor(places), HEADS, theta=5000.0, eps=1e-5)[-1]
    return here.tiny.model.get_output_embeddings().weight @ output


def compressed(part, picture):
    keys, values = (
        F.linear(picture, part[f"imadpt.{one}_proj.weight"], part.get(f"imadpt.{one}_proj.bias")).view(-1, HEADS, SIZE)
        for one in "kv"
    )
    scores = torch.einsum("qhs,khs->hqk", part["imadpt.q"], keys) / math.sqrt(SIZE)
    seen = torch.einsum("hqk,khs->qhs", scores.softmax(-1), values).reshape(QUERIES, HIDDEN)
    return seen @ part["imadpt.o_proj.weight"].T


def head_in(tmp_path, name, here):
    stored = open_repository(str(saved(tmp_path / "head", tensors_of(name), CONFIGS[name])))
    head = read("eagle", stored, fit_of("tiny", here.target))
    assert isinstance(head, PublishedEagleHead)
    return head


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_first_drafted_token_is_what_the_formulas_say(tmp_path, name):
    here = world(name.split()[1])
    head = head_in(tmp_path, name, here)
    drafter = with_picture(EagleRuntime(head), here.layout)
    roots, steps = drafted_roots(drafter, here.target, here.prompt, drafter.reads, 6)
    for ids, row in roots:
        wanted = expected(name, here, ids)
        assert float((row - wanted).abs().max() / wanted.abs().max()) < 1e-9
    seen = {note.type: note.data for note in steps[0].notes}["visual_tokens"]
    kept = QUERIES - 1 if name.startswith("vispec") else len(here.layout.visual)
    assert sum(count for _, count in seen["kept"]) == kept
    assert seen["drafter"] == here.layout.length - len(here.layout.visual) + kept


def test_drafted_rows_stand_behind_the_picture_too(tmp_path):
    """A drafted token's row is the committed row of the same token fed with the drafter's own output."""
    here = world("llava_next")
    runtime = EagleRuntime(head_in(tmp_path, "vispec llava_next", here))
    behind, calls, call = [], [], EagleRuntime.__call__

    def noted(self, *words, **named):
        calls.append(named)
        return call(self, *words, **named)

    drafter = with_picture(runtime, here.layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EagleRuntime, "__call__", noted)
        drafted_roots(drafter, here.target, here.prompt, drafter.reads, 6)
    for named in calls[1:]:
        behind.append(named["behind"].reshape(-1, HIDDEN)[-1])
    assert len(behind) > 4 and all(torch.equal(one, behind[0]) and bool(one.any()) for one in behind)


def test_an_embedding_shorter_than_the_targets_is_the_targets_behind_its_end(tmp_path):
    here = world("llava")
    table = here.tiny.model.get_input_embeddings().weight.detach()
    tensors = {**tensors_of("msd llava"), "embed_tokens.weight": 2 * table[:90].float()}
    stored = open_repository(str(saved(tmp_path / "head", tensors, CONFIGS["msd llava"])))
    head = read("eagle", stored, fit_of("tiny", here.target))
    assert torch.allclose(head.embedding[:90], 2 * table[:90]) and torch.equal(head.embedding[90:], table[90:])


def test_a_missing_part_of_the_compression_is_named(tmp_path):
    tensors = tensors_of("vispec llava_next")
    del tensors["img_fc.weight"]
    stored = open_repository(str(saved(tmp_path / "head", tensors, CONFIGS["vispec llava_next"])))
    with pytest.raises(ModelUnavailable, match=r"lacks the tensor img_fc.weight"):
        read("eagle", stored, fit_of("tiny", world("llava_next").target))
