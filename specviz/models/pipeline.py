"""Pipeline placement of a causal language model: its layers in order over several devices, by accelerate's device maps.

Embedding, last norm and head lie on the last device: token ids, logits and hidden states stay there, and so does the drafter,
which reads the target's embedding and head. Between two devices goes one hidden state a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import init_empty_weights
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import nn
from transformers import AutoModelForCausalLM

from specviz.errors import ModelUnavailable


def device_map(config: Any, devices: Sequence[torch.device]) -> dict[str, str]:
    """The device of every part of a model with this ``config``: as many layers on each, the rest on the last.

    Raises ModelUnavailable for a model with fewer layers than there are devices.
    """
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config)
    count = int(config.get_text_config().num_hidden_layers)
    if count < len(devices):
        raise ModelUnavailable(f"Its {count} layers cannot be spread over {len(devices)} devices; name fewer.")
    name = _layers(model, count)
    placement = {f"{name}.{layer}": str(devices[layer * len(devices) // count]) for layer in range(count)}
    return {**{part: str(devices[-1]) for part in _beside(model, "", name)}, **placement}


def _layers(model: nn.Module, count: int) -> str:
    """The name of the list of decoder layers."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name
    raise ModelUnavailable(f"{type(model).__name__} has no list of {count} layers to spread; choose one device.")


def _beside(module: nn.Module, prefix: str, layers: str) -> list[str]:
    """Names of the parts outside the list ``layers``, each as a whole."""
    parts = []
    for name, child in module.named_children():
        path = prefix + name
        if layers.startswith(f"{path}."):
            parts += _beside(child, f"{path}.", layers)
        elif path != layers:
            parts.append(path)
    return parts


def enter_at(model: Any, device: torch.device) -> None:
    """Have what goes into the dispatched ``model`` go to ``device``, and what it gives come back from there.

    Left to itself, accelerate takes any one of the devices.
    """
    hook = AlignDevicesHook(execution_device=device, io_same_device=True, skip_keys=list(model._skip_keys_device_placement))
    add_hook_to_module(model, hook)
