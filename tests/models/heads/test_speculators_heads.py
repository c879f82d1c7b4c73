"""Heads that the library ``speculators`` wrote give here what its own draft model gives, for every combination of flags.

The referee was run once, in an environment of its own: see ``tests/support/referee/speculators_heads.py``.
"""

import shutil

import pytest
import torch

from specviz.models.hub.published import LAYOUTS, layout_of, open_repository
from tests.support.referee.speculators_heads import DEPTH, HIDDEN, WHOLE
from tests.support.referee.stored_heads import FOLDER, HEADS, furthest, head_of, stored


@pytest.mark.spread(12)
@pytest.mark.parametrize("name", HEADS)
def test_logits_are_those_of_the_library_at_every_depth(tmp_path, name):
    # Its trainer does not move a window on as it drafts, where engines do: only the first depth can be compared there.
    depths = 1 if "window" in name else DEPTH
    assert furthest(head_of(stored(tmp_path, name)), name, depths) < 1e-4


def test_a_head_as_the_library_saved_it_is_read(tmp_path):
    repository = open_repository(str(shutil.copytree(FOLDER / "whole", tmp_path / "whole")))
    assert layout_of(repository) is LAYOUTS["speculators"]
    head = head_of(repository)
    assert furthest(head, WHOLE, DEPTH) < 1e-4
    assert head.config.taps == (2, 4, 5)
    assert len(head.draft_ids) == len(head.head)


def test_a_window_without_its_layers_is_unused_as_in_the_library(tmp_path):
    layer = {**HEADS["llama"]["config"]["transformer_layer_config"], "sliding_window": 3}
    assert "layer_types" not in layer
    head = head_of(stored(tmp_path, "llama", {"transformer_layer_config": layer}))
    assert head.config.how.windows == () and furthest(head, "llama", DEPTH) < 1e-4


def test_what_the_trainer_kept_of_the_target_is_told_and_left_alone(tmp_path):
    kept = {"verifier_norm.weight": torch.ones(HIDDEN)}
    head = head_of(stored(tmp_path, "llama", tensors=kept))
    assert furthest(head, "llama", DEPTH) < 1e-4
    assert any("verifier_norm.weight is the target's" in note for note in head.notes)
