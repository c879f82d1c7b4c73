"""Loader of drafter networks trained for one target: the shipped ones, checked against the target and kept with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.memory import ngram_model
from specviz.drafting.networks import block_net, feature_file, masked_lm, parallel_net
from specviz.drafting.networks.cross_net import CrossNet
from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.feature_net import FeatureNet
from specviz.drafting.networks.recurrent_net import RecurrentNet, RecurrentStepper
from specviz.drafting.networks.recurrent_net import load as load_recurrent
from specviz.drafting.networks.weights import read_weights
from specviz.drafting.runtimes.cross_stepper import CrossStepper
from specviz.drafting.runtimes.feature_stepper import FeatureStepper, Product, plain
from specviz.drafting.runtimes.head_stepper import HeadStepper
from specviz.engine.cached import cached
from specviz.errors import ModelUnavailable
from specviz.models.heads import dialects
from specviz.models.heads.arms import load_arms
from specviz.models.heads.lora_heads import load_changed
from specviz.models.hub.cache_dir import Progress, silent
from specviz.models.hub.published import Fit, open_repository
from specviz.models.packing import AGREE, PackedLinear, can_pack, packs
from specviz.paths import WEIGHTS
from specviz.targets.causal import CausalTarget

CHANGED = {"gto": "eagle3", "deer": "masked_lm"}
"""Kinds that ship as a small change to another kind."""

Shared = tuple[Tensor, Tensor]
"""The target's embedding and head, each [vocab, hidden]."""
_READERS: dict[str, Callable[[Path, Shared, CausalTarget], Any]] = {
    "eagle": lambda path, shared, target: feature_file.load(path, *shared, target.dtype, target.device),
    "eagle3": lambda path, shared, target: feature_file.load(path, *shared, target.dtype, target.device),
    "medusa": lambda path, shared, target: parallel_net.load(path, shared[1], target.dtype, target.device),
    "falcon": lambda path, shared, target: block_net.load(path, *shared, target.dtype, target.device),
    "masked_lm": lambda path, shared, target: masked_lm.load(path, shared[0], target.dtype, target.device),
    "ngrams": lambda path, shared, target: ngram_model.load(path),
    "owl": lambda path, shared, target: load_recurrent(path, *shared, target.dtype, target.device),
}


class Loaded(Protocol):
    """A loaded target, whatever it works on."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer_hash(self) -> str: ...


def load_heads(kind: str, draft: str | None, loaded: Loaded, target: CausalTarget, progress: Progress = silent) -> Any:
    """The drafting network of this ``kind`` for the target: a name in the readers above or in CHANGED, or "arms"
    for a draft model by domain.

    ``draft`` None, "" or the name of a kind means the one that ships; a folder or hub id stands for heads that others
    published, of a kind whose layout is known. Raises ModelUnavailable when there is none, or when it was trained for
    another target.
    """
    if draft and not ours(draft):
        return cached(target.model, ("published", kind, draft), lambda: published(kind, draft, loaded, target, progress))
    path = shipped(kind, loaded)
    return cached(target.model, ("network", kind, version(path)), lambda: _read(kind, path, loaded, target))


def drafting_heads(kind: str, draft: str | None, loaded: Loaded, target: CausalTarget, progress: Progress = silent) -> Any:
    """The same network made ready to draft: laid out for this machine where that pays, shared by all runs."""
    network = load_heads(kind, draft, loaded, target, progress)
    if isinstance(network, parallel_net.ParallelNet):
        return cached(target.model, ("laid out", id(network)), lambda: _laid_out(network))
    if isinstance(network, block_net.BlockNet):
        return cached(target.model, ("laid out", id(network)), lambda: network.laid_out(layout_for(network)))
    if isinstance(network, RecurrentNet):
        return cached(target.model, ("stepper", id(network)), lambda: RecurrentStepper(network, layout_for(network)))
    if isinstance(network, CrossNet):
        return cached(target.model, ("stepper", id(network)), lambda: CrossStepper(network, layout_for(network)))
    if isinstance(network, FeatureHead):
        return cached(
            target.model, ("stepper", id(network)), lambda: HeadStepper(network, packed if packs(network.head) else plain)
        )
    if not isinstance(network, FeatureNet):
        return network
    return cached(target.model, ("stepper", id(network)), lambda: FeatureStepper(network, layout_for(network)))


def ours(draft: str | None) -> bool:
    """Whether a run with this ``draft`` drafts with the networks that ship, and not with heads that others published."""
    return not draft or draft in {*_READERS, *CHANGED, "arms"}


def shipped(kind: str, loaded: Loaded) -> Path:
    """The file of ``kind`` that ships, made for this target's tokenizer."""
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


def published(kind: str, name: str, loaded: Loaded, target: CausalTarget, progress: Progress = silent) -> Any:
    """The heads that others published as ``name``, on this target."""
    if kind not in dialects.KINDS:
        known = " and ".join((", ".join(dialects.KINDS[:-1]), dialects.KINDS[-1]))
        raise ModelUnavailable(
            f"{name} cannot be used as {kind}: published heads are read for {known}. Leave the draft empty for the network "
            "that ships with this project."
        )
    fits, stored = fit_of(loaded.name, target), open_repository(name, progress)
    return dialects.read(kind, stored, fits)


def fit_of(name: str, target: CausalTarget) -> Fit:
    """What heads for this target have to fit."""
    model = target.model
    layers = int(model.config.get_text_config().num_hidden_layers)
    shared = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    return Fit(name, layers, *(part.to(target.device) for part in shared))


def _laid_out(network: parallel_net.ParallelNet) -> parallel_net.ParallelNet:
    network.lay_out(layout_for(network))
    return network


def layout_for(network: nn.Module) -> Callable[[Tensor], Product]:
    """oneDNN's own layout where the target's layers have it too: a few rows then cost little more than one."""
    return packed if can_pack(network) else plain


def packed(weight: Tensor) -> Product:
    """A matrix [out, in] laid out for the processor's kernels."""
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
    model = target.model
    if kind == "arms":
        return load_arms(path, WEIGHTS / "small_draft.safetensors", model.get_input_embeddings().weight, target)
    hidden = int(model.config.get_text_config().hidden_size)
    shared = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    network = _READERS[kind](path, shared, target)
    if kind != "ngrams" and network.config.hidden != hidden:
        raise ModelUnavailable(
            f"The {kind} network that ships was trained for hidden states of {network.config.hidden}, and {loaded.name} has "
            f"{hidden}: choose SmolLM2-135M-Instruct as the target."
        )
    return network


def version(path: Path) -> tuple[int, int]:
    """Changes when the file is written anew."""
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_size
