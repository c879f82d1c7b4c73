"""Attention worked out from hidden states is what the model itself computes."""

import pytest
import torch

from specviz.errors import ModelUnavailable
from specviz.targets.attention_maps import attention_weights, entropies, importance, text_part
from tests.support.tiny.vision import tiny_vision


@pytest.mark.parametrize("name", ["smolvlm", "llava"])
def test_weights_are_those_the_eager_kernel_reports(name):
    tiny = tiny_vision(name, "eager", torch.float64)
    ids = torch.tensor([tiny.prompt.ids])
    with torch.no_grad():
        passed = tiny.model(
            input_ids=ids, output_attentions=True, output_hidden_states=True, use_cache=False, **tiny.prompt.inputs
        )
    places = torch.arange(ids.shape[1])
    for layer, meant in enumerate(passed.attentions):
        found = attention_weights(text_part(tiny.model), layer, passed.hidden_states[layer][0], places)
        assert torch.allclose(found.double(), meant[0], atol=1e-5)
    hidden = {layer: states[0] for layer, states in enumerate(passed.hidden_states)}
    looked = importance(text_part(tiny.model), hidden, places, tiny.prompt.visual)
    assert torch.allclose(looked.double(), passed.attentions[-1][0].mean((0, 1))[list(tiny.prompt.visual)], atol=1e-5)


def test_the_first_row_has_nowhere_else_to_look_and_later_ones_scatter():
    tiny = tiny_vision("smolvlm", dtype=torch.float64)
    with torch.no_grad():
        passed = tiny.model(input_ids=torch.tensor([tiny.prompt.ids]), output_hidden_states=True, **tiny.prompt.inputs)
    hidden = {layer: states[0] for layer, states in enumerate(passed.hidden_states)}
    found = entropies(text_part(tiny.model), (1, 2), hidden, torch.arange(len(tiny.prompt.ids)))
    assert found.shape == (2, len(tiny.prompt.ids))
    assert torch.allclose(found[:, 0], torch.zeros(2, dtype=found.dtype)) and (found[:, 1:] > 0).all()


def test_layers_of_another_kind_are_refused():
    tiny = tiny_vision("gemma3")
    with pytest.raises(ModelUnavailable, match="cannot be recomputed"):
        attention_weights(text_part(tiny.model), 0, torch.zeros(3, 48), torch.arange(3))
