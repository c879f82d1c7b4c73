"""Loader of draft networks and draft models for a target: shipped, published or named by a user.

Each is checked against the target and cached with the target's model.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from specviz.drafting.memory import ngram_model
from specviz.drafting.networks.block_fill import BlockFill
from specviz.drafting.networks.block_net import BlockNet
from specviz.drafting.networks.cross_net import CrossNet
from specviz.drafting.networks.eagle_head import EagleHead, PublishedEagleHead
from specviz.drafting.networks.lora import merge_lora
from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.drafting.networks.network import Network
from specviz.drafting.networks.parallel_net import ParallelNet
from specviz.drafting.networks.recurrent_net import RecurrentNet
from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.networks.weights import read_weights
from specviz.drafting.runtimes.language_model import DraftModel, SessionModel, SmallModel
from specviz.engine.cached import cached
from specviz.errors import ModelUnavailable
from specviz.models.heads.published import read
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.packed_model import card_in, refuse_outdated, shipped_file, tokenizer_hash_in
from specviz.models.hub.published import METHODS, Fit, open_repository
from specviz.models.packing import layout_for
from specviz.models.text.load import LoadedText, load_causal_lm, same_tokenizer
from specviz.paths import WEIGHTS
from specviz.targets.hybrid import CausalTarget, causal_target
from specviz.targets.vision_language import VisionLanguageTarget

Net = TypeVar("Net", bound=nn.Module)
KINDS = ("eagle", "eagle3", "medusa", "falcon", "dspark", "dflash", "masked_lm", "owl", "gto", "deer", "arms", "ngrams")
"""Kinds of shipped networks for text; each is also the name of a file, except DFlash's network, a part of DSpark's."""
VISION = {"eagle": "vlm_eagle", "hivis": "vlm_hivis", "dream": "vlm_dream"}
"""Files of the shipped networks for vision-language models, by kind."""
SMALL, TEXT_ONLY = "small_draft", "vlm_text_only"
"""Shipped draft models: one for text, and one that reads only the text of questions about images."""
SCENES = "scenes_vlm"
BASES = {"gto": "eagle3", "deer": "masked_lm", "arms": SMALL, **dict.fromkeys((*VISION.values(), TEXT_ONLY), SCENES)}
"""Maps a file to the file that it modifies (LoRA) or to the target that it was trained on. Metadata names the version."""

_NETWORKS: dict[str, type[Network]] = {
    "eagle": EagleHead,
    "eagle3": EagleHead,
    "medusa": ParallelNet,
    "falcon": BlockNet,
    "dspark": BlockFill,
    "masked_lm": MaskedLM,
    "owl": RecurrentNet,
    "vlm_eagle": EagleHead,
    "vlm_hivis": EagleHead,
    "vlm_dream": CrossNet,
    SMALL: SmallLM,
    TEXT_ONLY: SmallLM,
}
"""Shipped network by file."""
_SHARED: dict[type[Network], tuple[int, ...]] = {ParallelNet: (1,), MaskedLM: (0,), SmallLM: (0,)}
"""Parts of the target that a network shares, by default both: 0 the embedding, 1 the head."""
STATE = "hybrid-small-draft"


def load_heads(kind: str, draft: str | None, loaded: LoadedText, target: CausalTarget, progress: Progress = no_progress) -> Any:
    """Return the draft network of this ``kind`` for the target; for "arms", the draft models by domain.

    ``draft``: None, "" or the name of a kind for the shipped network; a folder or hub id for published heads. Raises
    ModelUnavailable if the network is missing or was trained for another target.
    """
    if draft and not is_shipped(draft):
        if kind not in METHODS:
            known = " and ".join((", ".join(METHODS[:-1]), METHODS[-1]))
            raise ModelUnavailable(
                f"{draft} cannot be used as {kind}: published heads are read for {known}. Leave the draft empty for the "
                "included network."
            )
        return cached(
            target.model,
            ("published", kind, draft),
            lambda: read(kind, open_repository(draft, progress), fit_of(loaded.name, target)),
        )
    if kind in METHODS and kind not in KINDS:
        raise ModelUnavailable(f"No {kind} network is included. Name heads published for this target as the draft.")
    path = shipped_file(WEIGHTS / f"{'dspark' if kind == 'dflash' else kind}.safetensors")
    if card_in(path).get("tokenizer_hash", "") != loaded.tokenizer_hash:
        owner, way = "SmolLM2-135M-Instruct", "a method that needs no trained network"
        if BASES.get(kind) == SCENES:
            owner, way = "scenes-vlm", f"{way}; language_only also takes a draft model with the target's own vocabulary"
        elif kind == SMALL:
            way = "name a draft model with the target's tokenizer"
        raise ModelUnavailable(
            f"The included {kind} network reads the hidden states and tokens of {owner}; {loaded.name} has different ones. "
            f"Choose that target, or {way}."
        )
    facts = path.stat()
    key = ("network", kind, facts.st_mtime_ns, facts.st_size)
    return cached(target.model, key, lambda: _shipped(kind, path, loaded, target))


def drafting_heads(
    kind: str, draft: str | None, loaded: LoadedText, target: CausalTarget, progress: Progress = no_progress
) -> Any:
    """Return the inference runtime of the network of :func:`load_heads`, packed for this machine and shared by runs."""
    network = load_heads(kind, draft, loaded, target, progress)
    if not isinstance(network, Network | PublishedEagleHead):
        return network
    return cached(target.model, ("runtime", id(network)), lambda: network.runtime(layout_for(network)))


def vision_heads(kind: str, loaded: LoadedText, target: CausalTarget) -> Any:
    """Return the runtime of the shipped network of this kind for a vision-language target, with its step embeddings, if any.

    Raises ModelUnavailable if there is none.
    """
    if kind not in VISION:
        raise ModelUnavailable(
            f"No {kind} network is included for {loaded.name}. Name heads published for it as the draft, or choose a method that "
            "needs none."
        )
    network, runtime = (load(VISION[kind], None, loaded, target) for load in (load_heads, drafting_heads))
    return (runtime, network.steps) if getattr(network.config, "steps", 0) else runtime


def is_shipped(draft: str | None) -> bool:
    """Whether a run with this ``draft`` uses the shipped networks, not published heads."""
    return not draft or draft in KINDS


def fit_of(name: str, target: CausalTarget) -> Fit:
    """Return the embedding, head and number of layers that heads for this target must fit."""
    layers = int(target.model.config.get_text_config().num_hidden_layers)
    return Fit(name, layers, *(part.to(target.device) for part in _ends(target)))


def _ends(target: CausalTarget) -> tuple[Tensor, Tensor]:
    return target.model.get_input_embeddings().weight, target.model.get_output_embeddings().weight


def _shipped(kind: str, path: Path, loaded: LoadedText, target: CausalTarget) -> Any:
    if kind == "ngrams":
        return ngram_model.load(path)
    if kind == "dflash":
        return load_heads("dspark", None, loaded, target).read_as({"markov": "", "confidence": False})
    base = BASES.get(kind)
    if base:
        refuse_outdated(path, WEIGHTS / f"{base}.safetensors")
    if base and kind not in _NETWORKS:
        factors, card = read_weights(path)
        changed = load_heads(base, None, loaded, target)
        if "arms" not in card:
            return with_lora(changed, factors, path.name)
        arms = {}
        for domain in json.loads(card["arms"]):
            own = {name.removeprefix(f"{domain}/"): value for name, value in factors.items() if name.startswith(f"{domain}/")}
            arms[domain] = with_lora(changed, own, f"{path.name}, {domain},")
        return arms
    network_type = _NETWORKS[kind]
    ends = [_ends(target)[part] for part in _SHARED.get(network_type, (0, 1))]
    network = network_type.load(path, ends, target.dtype, target.device)
    hidden = int(target.model.config.get_text_config().hidden_size)
    if network.config.hidden != hidden:
        raise ModelUnavailable(
            f"The included {kind} network needs hidden states of width {network.config.hidden}, and {loaded.name} has "
            f"{hidden}: choose SmolLM2-135M-Instruct as the target."
        )
    return network


def independent_copy(net: Net) -> Net:
    """Return a copy with its own weights; the target's embedding and head stay shared."""
    shared = [value for name, value in net.named_buffers(recurse=False) if name in ("embedding", "head")]
    return copy.deepcopy(net, {id(tensor): tensor for tensor in shared})


def with_lora(net: Net, factors: Mapping[str, Tensor], name: str) -> Net:
    """Return a copy of ``net`` with the LoRA delta called ``name`` merged. Raises ModelUnavailable if it does not fit."""
    changed = independent_copy(net)
    merge_lora(changed, factors, name)
    return changed.eval()  # drops matrices folded from the old weights


def draft_model(name: str | None, loaded: LoadedText, target: CausalTarget, progress: Progress) -> DraftModel:
    """Return the draft model called ``name`` for this target, by default the shipped one.

    Draft models for vision-language targets read only the text. Raises TokenizerMismatch naming both models, and ModelUnavailable
    if none ships for the target or the shipped one was trained on another version of it.
    """
    state = WEIGHTS / "hybrid_draft.safetensors"
    if not name:
        small = TEXT_ONLY if isinstance(target, VisionLanguageTarget) else SMALL
        name = STATE if loaded.tokenizer_hash == tokenizer_hash_in(state) else small
    if name in (SMALL, TEXT_ONLY):
        network = load_heads(name, None, loaded, target)
        return DraftModel(name, target.context_length, lambda capacity: SmallModel(network, capacity))
    if name == STATE and loaded.name == "hybrid-small":
        refuse_outdated(state, WEIGHTS / "hybrid.safetensors")
    model, warnings = named_draft(name, loaded, target, progress)
    return DraftModel(
        model.name,
        model.context_length,
        lambda capacity: SessionModel(model.open(capacity), model, target.vocab_size),
        warnings,
        model,
    )


def several_models(names: str, loaded: LoadedText, target: CausalTarget, progress: Progress) -> dict[str, DraftModel]:
    """Return the draft models in the comma-separated ``names``, by the last part of each name.

    Raises ModelUnavailable as :func:`draft_model` does, and if two last parts are equal.
    """
    given = [name.strip() for name in names.split(",") if name.strip()]
    short = {name.rstrip("/").rsplit("/", 1)[-1]: name for name in given}
    if len(short) < len(given):
        raise ModelUnavailable(f"Two of the draft models in {names} share a name: give each once, or rename a folder.")
    return {label: draft_model(name, loaded, target, progress) for label, name in short.items()}


def named_draft(name: str, loaded: LoadedText, target: CausalTarget, progress: Progress) -> tuple[CausalTarget, tuple[str, ...]]:
    """Load the model called ``name``. Returns the model and its warnings.

    Raises TokenizerMismatch unless the model shares the target's tokenizer. A vision-language target may have further tokens for
    images.
    """
    draft = load_causal_lm(name, str(target.number_format).removeprefix("torch."), str(target.device), progress)
    same_tokenizer(loaded, draft, further=isinstance(target, VisionLanguageTarget))
    model = causal_target(draft.model, draft.name, draft.eos_ids, target.tier)
    return model, tuple(word for word in (*draft.warnings, model.warning) if word)
