"""Domain draft models: copies of the shipped small model, each with its own LoRA delta."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from specviz.drafting.networks.lora import merge_lora
from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.networks.weights import read_weights
from specviz.errors import ModelUnavailable
from specviz.models.heads.lora_heads import CHANGES, digest
from specviz.targets.causal import CausalTarget


def load_arms(path: Path, base: Path, embedding: Tensor, target: CausalTarget) -> dict[str, SmallLM]:
    """Load the draft models by domain: the model in ``base`` with each LoRA delta in ``path``, on the target's ``embedding``.

    Raises ModelUnavailable if the deltas were trained for another version of ``base``.
    """
    factors, card = read_weights(path)
    if not base.is_file() or card.get(CHANGES) != f"{base.name} {digest(base)}":
        raise ModelUnavailable(
            f"{path.name} was trained for another version of {base.name}: make it again with "
            f"`python -m specviz train {path.stem}`."
        )
    arms: dict[str, SmallLM] = {}
    for domain in json.loads(card["arms"]):
        arms[domain] = SmallLM.load(base, (embedding,), target.dtype, target.device)
        merge_lora(arms[domain], _of(factors, domain), f"{path.name}, {domain},")
        arms[domain].eval()  # this drops anything folded from the old weights
    return arms


def _of(factors: Mapping[str, Tensor], domain: str) -> dict[str, Tensor]:
    """LoRA factors of one domain, by matrix name."""
    return {name.removeprefix(f"{domain}/"): value for name, value in factors.items() if name.startswith(f"{domain}/")}
