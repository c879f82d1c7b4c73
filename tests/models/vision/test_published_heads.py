"""Published EAGLE-3 heads on a target that reads pictures: whole runs, positions, and what stands at the picture's places."""

import json
from pathlib import Path

import pytest
import torch

from specviz.drafting.networks.eagle_head import EagleRuntime, PublishedEagleHead
from specviz.drafting.runtimes.visual_context import AllRows
from specviz.models.heads.heads import fit_of
from specviz.models.heads.published import read
from specviz.models.hub.published import open_repository
from tests.support.tiny.published_heads import expected_logits, feature_tensors, saved
from tests.support.worlds.vision import world
from tests.support.worlds.witness import drafted_roots

KIND, HIDDEN, VOCAB = "qwen2_5vl", 48, 97
DIALECTS = json.loads(Path(__file__).with_name("configs.json").read_text("utf-8"))["dialects"]


def tensors_for(dialect):
    """Random tensors by the dialect's names."""
    tensors = feature_tensors(1, HIDDEN, VOCAB)
    if dialect == "speculators":
        tensors = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    return tensors


def folder_of(tmp_path, dialect, **settings):
    return saved(tmp_path / dialect, tensors_for(dialect), {**DIALECTS[dialect], **settings})


def head_in(folder, here):
    head = read("eagle3", open_repository(str(folder)), fit_of("tiny", here.target))
    assert isinstance(head, PublishedEagleHead)
    return head


def three_positions(here, ids):
    """[3, token] of a whole text, from the model's own bookkeeping."""
    prompt = here.tiny.prompt
    kinds = [int(place in prompt.visual) for place in range(len(ids))]
    positions, _ = here.tiny.model.model.get_rope_index(
        torch.tensor([ids]), mm_token_type_ids=torch.tensor([kinds], dtype=torch.int),
        image_grid_thw=prompt.inputs["image_grid_thw"],
    )  # fmt: skip
    return positions[:, 0]


def test_every_row_stands_at_the_targets_three_positions(tmp_path, monkeypatch):
    here, rows, call = world(KIND), [], EagleRuntime.__call__

    def noted(self, tokens, features, positions, *more, **named):
        rows.append(positions)
        return call(self, tokens, features, positions, *more, **named)

    monkeypatch.setattr(EagleRuntime, "__call__", noted)
    drafter = AllRows(EagleRuntime(head_in(folder_of(tmp_path, "specforge"), here)), here.layout)
    roots, steps = drafted_roots(drafter, here.target, here.prompt, drafter.reads, 12)
    text = [*here.prompt, *(token for step in steps for token in step.emitted)]
    wanted = three_positions(here, text + text[len(here.prompt) :])
    assert (wanted[0] != wanted[1]).any() and (wanted[1] != wanted[2]).any(), "the picture has rows and columns"
    for positions in rows:
        assert positions.shape[0] == 4
        assert torch.equal(positions[1:], wanted[:, positions[0]])
    assert {int(place) for positions in rows for place in positions[0]} >= set(range(len(here.prompt) + 10))


@pytest.mark.spread(2)
@pytest.mark.parametrize("pictured", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_head_says_what_its_papers_formulas_say(tmp_path, dialect, pictured):
    here = world(KIND)
    head = head_in(folder_of(tmp_path, dialect), here).read_as(pictured=pictured)
    assert head.config.how.sections == (1, 1, 1)
    drafter = AllRows(EagleRuntime(head), here.layout)
    roots, _ = drafted_roots(drafter, here.target, here.prompt, drafter.reads, 6)
    table = here.tiny.model.get_input_embeddings().weight
    tensors = {name.replace("layers.0.", "midlayer."): value for name, value in tensors_for(dialect).items()}
    for ids, row in roots:
        session = here.target.open(len(ids), (0, 1, 2, 3))
        hidden = session.prefill(ids).hidden
        words = (
            torch.where(torch.arange(len(ids))[:, None] >= len(here.prompt), table[ids], hidden[0]) if pictured else table[ids]
        )
        features = torch.cat([hidden[tap] for tap in (1, 2, 3)], dim=-1)[:-1]
        positions = three_positions(here, ids)[:, :-1].T
        wanted = expected_logits(tensors, words, torch.arange(1, len(ids)), features, positions=positions)[-1]
        assert float((row - wanted).abs().max() / wanted.abs().max()) < 1e-9
