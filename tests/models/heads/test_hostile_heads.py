"""Heads whose settings or tensors lie are read or refused in a sentence, whatever the lie: seeded mutations of three layouts."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specviz.drafting.networks.decoder_layer import plain
from specviz.drafting.networks.eagle_head import EagleRuntime, PublishedEagleHead
from specviz.errors import SpecvizError
from specviz.models.heads.published import read
from specviz.models.hub.published import layout_of, open_repository
from tests.support.tiny import published_heads
from tests.support.tiny.damage import damage, lie_in_header

LAYOUTS = {
    "eagle3": (published_heads.feature_tensors(), published_heads.CONFIG),
    "eagle": (published_heads.narrow_tensors(), published_heads.NARROW),
    "medusa": (published_heads.parallel_tensors(), {"medusa_num_heads": 3, "medusa_num_layers": 1}),
}
VALUES = (
    None, 0, -1, 1.5, "x", True, [], {}, 10**6, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), [1] * 1000, ["x"],
    {"rope_type": "yarn", "factor": 1e308}, {"rope_type": "dynamic", "factor": 0}, {"type": "linear", "factor": -1},
    {"rope_type": "longrope", "long_factor": [1] * 3, "short_factor": [0]}, {"rope_type": "llama3", "factor": 8},
    {"rope_type": "llama3", "factor": 8, "low_freq_factor": 0, "high_freq_factor": 0, "original_max_position_embeddings": 0},
    {"mrope_section": "x"}, {"sliding_attention": 5},
)  # fmt: skip
SETTINGS = (
    "architectures rope_scaling rope_parameters rope_theta partial_rotary_factor num_hidden_layers max_position_embeddings "
    "draft_vocab_size head_dim hidden_act rms_norm_eps num_attention_heads num_key_value_heads medusa_num_heads "
    "medusa_num_layers norm_before_residual quantization_config eagle_config transformer_layer_config speculators_model_type "
    "target_hidden_size model_type eagle_aux_hidden_state_layer_ids qkv_bias sliding_window "
    "layer_types intermediate_size hidden_size model"
).split()


def _settings(layout):
    """Every value of every setting: the whole kind, of which the fast lane draws some."""
    fields = sorted({*LAYOUTS[layout][1], *SETTINGS})
    return [(field, value) for field in fields for value in VALUES]


def _read(stored, layout):
    """Read a folder as ``inspect`` and a run do."""
    layout_of(stored)
    net = read(layout, stored, published_heads.target())
    if isinstance(net, PublishedEagleHead):
        EagleRuntime(net, plain)


def _refused_in_a_sentence(stored, layout):
    try:
        _read(open_repository(str(stored)) if isinstance(stored, Path) else stored, layout)
    except SpecvizError as refusal:
        assert "\n" not in str(refusal) and len(str(refusal)) < 900
        return str(refusal)
    return ""


@pytest.mark.spread(1)
@pytest.mark.parametrize("share", [0.03, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_value_of_every_setting_is_read_or_refused(layout, share, tmp_path):
    tensors, config = LAYOUTS[layout]
    stored = open_repository(str(published_heads.saved(tmp_path / "heads", dict(tensors), None)))
    cases = _settings(layout)
    for field, value in random.Random(1).sample(cases, int(share * len(cases))):
        _refused_in_a_sentence(replace(stored, config=json.loads(json.dumps({**config, field: value}))), layout)


@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
@pytest.mark.parametrize("layers", [10**6, 2**63])
def test_more_layers_than_tensors_are_refused_before_they_are_built(layout, layers, tmp_path):
    tensors, config = LAYOUTS[layout]
    published_heads.saved(tmp_path / "heads", dict(tensors), None)
    (tmp_path / "heads" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}), encoding="utf-8")
    assert "num_hidden_layers" in _refused_in_a_sentence(tmp_path / "heads", layout)


def _tensor(random_number, tensor):
    no_number = float("nan") if tensor.is_floating_point() else -5
    makers = (
        lambda: tensor[:1], lambda: torch.zeros(0), lambda: torch.zeros(1, 1, 1), lambda: tensor.double(), lambda: tensor.bool(),
        lambda: tensor.to(torch.int8), lambda: tensor.reshape(-1), lambda: torch.full_like(tensor, no_number),
    )  # fmt: skip
    return random_number.choice(makers)().clone()


@pytest.mark.parametrize("rounds", [25, pytest.param(500, marks=pytest.mark.slow)])
def test_damaged_tensors_and_headers_are_read_or_refused(rounds, tmp_path):
    drawn = random.Random(2)
    for number in range(rounds):
        layout = drawn.choice(list(LAYOUTS))
        tensors, config = LAYOUTS[layout]
        folder, changed = tmp_path / f"heads-{number}", dict(tensors)
        kind = drawn.choice(("tensor", "extra", "header", "bytes"))
        if kind == "tensor":
            name = drawn.choice(list(changed))
            changed[name] = _tensor(drawn, changed[name])
        if kind == "extra":
            changed[drawn.choice(("x", "../../y", "layers.999999999.x", "d2t", "t2d", "0.0.linear.weight"))] = torch.zeros(4)
        published_heads.saved(folder, changed, None)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        file = folder / "model.safetensors"
        if kind == "header":
            value = drawn.choice(([10**9, 10**9], [0, 10**15], [-1], [2**63, 2]))
            lie_in_header(file, drawn.choice(("shape", "data_offsets")), value, drawn.randrange(100))
        if kind == "bytes":
            damage(file, drawn.choice((1, 10, 100)), drawn)
        _refused_in_a_sentence(folder, layout)
