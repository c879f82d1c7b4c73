"""Loader of drafter networks trained for one target: shipped or published, checked against the target and cached with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.memory import ngram_model
from specviz.drafting.networks.attention import Layout, Product, plain
from specviz.drafting.networks.block_net import BlockNet
from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.feature_net import FeatureNet
from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.drafting.networks.network import Network
from specviz.drafting.networks.parallel_net import ParallelNet
from specviz.drafting.networks.recurrent_net import RecurrentNet
from specviz.drafting.networks.weights import read_weights
from specviz.engine.cached import cached
from specviz.errors import ModelUnavailable
from specviz.models.heads.arms import load_arms
from specviz.models.heads.layouts import METHODS
from specviz.models.heads.lora_heads import load_changed
from specviz.models.heads.published import read
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.published import Fit, open_repository
from specviz.models.packing import AGREE, PackedLinear, packs
from specviz.paths import WEIGHTS
from specviz.targets.causal import CausalTarget

CHANGED = {"gto": "eagle3", "deer": "masked_lm"}
"""Base kind of every kind that ships as a LoRA delta to another."""

_NETWORKS: dict[str, tuple[type[Network], tuple[int, ...]]] = {
    "eagle": (FeatureNet, (0, 1)),
    "eagle3": (FeatureNet, (0, 1)),
    "medusa": (ParallelNet, (1,)),
    "falcon": (BlockNet, (0, 1)),
    "masked_lm": (MaskedLM, (0,)),
    "owl": (RecurrentNet, (0, 1)),
}
"""Shipped network by kind, with the parts of the target that it shares: 0 the embedding, 1 the head."""


class Loaded(Protocol):
    """A loaded target of any modality."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer_hash(self) -> str: ...


def load_heads(kind: str, draft: str | None, loaded: Loaded, target: CausalTarget, progress: Progress = no_progress) -> Any:
    """Return the drafting network of this ``kind`` for the target; for "arms", the draft models by domain.

    ``draft`` None, "" or the name of a kind selects the shipped network; a folder or hub id selects published heads of a known
    layout. Raises ModelUnavailable if the network is missing or was trained for another target.
    """
    if draft and not ours(draft):
        return cached(target.model, ("published", kind, draft), lambda: published(kind, draft, loaded, target, progress))
    path = shipped(kind, loaded)
    return cached(target.model, ("network", kind, version(path)), lambda: _read(kind, path, loaded, target))


def drafting_heads(kind: str, draft: str | None, loaded: Loaded, target: CausalTarget, progress: Progress = no_progress) -> Any:
    """Return the network of :func:`load_heads` ready to draft: in a layout that suits this machine, shared by all runs."""
    network = load_heads(kind, draft, loaded, target, progress)
    if not isinstance(network, Network | FeatureHead):
        return network
    return cached(target.model, ("runtime", id(network)), lambda: network.runtime(layout_for(network)))


def ours(draft: str | None) -> bool:
    """Whether a run with this ``draft`` uses the shipped networks, and not published heads."""
    return not draft or draft in {*_NETWORKS, *CHANGED, "arms", "ngrams"}


def shipped(kind: str, loaded: Loaded) -> Path:
    """The shipped file of ``kind``. Raises ModelUnavailable if it is missing or was made for another tokenizer."""
    path = WEIGHTS / f"{kind}.safetensors"
    if not path.is_file():
        raise ModelUnavailable(
            f"The weights {path.name} are missing from {path.parent}: get them with the project, or make them with "
            f"`python -m specviz train {kind}`."
        )
    made_for = read_weights(path)[1].get("tokenizer_hash", "")
    if loaded.tokenizer_hash != made_for:
        raise ModelUnavailable(
            f"The {kind} network that ships reads SmolLM2-135M-Instruct's hidden states and tokens, and {loaded.name} has "
            "others: choose that target, or a method that needs no trained network."
        )
    return path


def published(kind: str, name: str, loaded: Loaded, target: CausalTarget, progress: Progress = no_progress) -> Any:
    """Read the published heads called ``name`` for this target. Raises ModelUnavailable if they do not serve ``kind``."""
    if kind not in METHODS:
        known = " and ".join((", ".join(METHODS[:-1]), METHODS[-1]))
        raise ModelUnavailable(
            f"{name} cannot be used as {kind}: published heads are read for {known}. Leave the draft empty for the network "
            "that ships with this project."
        )
    fits, stored = fit_of(loaded.name, target), open_repository(name, progress)
    return read(kind, stored, fits)


def fit_of(name: str, target: CausalTarget) -> Fit:
    """Embedding, head and number of layers that heads for this target must fit."""
    model = target.model
    layers = int(model.config.get_text_config().num_hidden_layers)
    shared = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    return Fit(name, layers, *(part.to(target.device) for part in shared))


def layout_for(network: Network | FeatureHead) -> Layout:
    """Return oneDNN's layout where it pays off, as it does for a target: a few rows then cost little more than one."""
    weights = network.tensors.values() if isinstance(network, FeatureHead) else network.parameters()
    return packed if packs(next(iter(weights))) else plain


def packed(weight: Tensor) -> Product:
    """Product with a matrix [out, in] in the layout of the processor's kernels; the plain product if the two results disagree."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    module = PackedLinear(linear, keep_weight=False)
    probe = torch.linspace(-1, 1, 3 * weight.shape[1], dtype=weight.dtype).view(3, -1)
    apart = AGREE[weight.dtype]
    agrees = torch.allclose(module(probe), F.linear(probe, weight), atol=apart, rtol=apart)
    return module if agrees else plain(weight)


def _read(kind: str, path: Path, loaded: Loaded, target: CausalTarget) -> Any:
    if kind in CHANGED:
        base = CHANGED[kind]
        return load_changed(path, load_heads(base, None, loaded, target), WEIGHTS / f"{base}.safetensors")
    if kind == "ngrams":
        return ngram_model.load(path)
    model = target.model
    if kind == "arms":
        return load_arms(path, WEIGHTS / "small_draft.safetensors", model.get_input_embeddings().weight, target)
    hidden = int(model.config.get_text_config().hidden_size)
    shared = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    network_type, parts = _NETWORKS[kind]
    network = network_type.load(path, [shared[part] for part in parts], target.dtype, target.device)
    if network.config.hidden != hidden:
        raise ModelUnavailable(
            f"The {kind} network that ships was trained for hidden states of {network.config.hidden}, and {loaded.name} has "
            f"{hidden}: choose SmolLM2-135M-Instruct as the target."
        )
    return network


def version(path: Path) -> tuple[int, int]:
    """Version of a file: its modification time in ns and its size."""
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_size
