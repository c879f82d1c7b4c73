"""Methods of this project as vLLM's ``speculative_config``, and reasons why vLLM cannot run the others.

vLLM 0.32 drafts and verifies one chain per request. The chain may come from n-gram lookup, suffix decoding, a draft model, an
EAGLE-3 head, or a custom class that receives only tokens (``custom_class``). A method that needs more is refused with the reason,
and so is a setting that vLLM lacks.

The settings of a running vLLM are compared with a method's. Two sources in ``/metrics`` report them: the plugin's line
(``specviz:speculative_config_info``), and vLLM's counters, which have one position per drafted token.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from specviz.errors import BadInput
from specviz.interop.chain import short_name
from specviz.interop.client import Client
from specviz.interop.server import Server
from specviz.interop.server_counters import prometheus, read_counters
from specviz.interop.vllm_plugin.labels import DRAFTER, INFO, SETTINGS, drafter_of
from specviz.methods.registry import get
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET, WheelFile, resolve
from specviz.paths import ASSETS
from specviz.pipeline.request import Request

CLASS = "specviz.interop.vllm_plugin.proposer.Drafter"
HEAD = "eagle3-head"
"""Folder of the exported head in printed commands."""
_HEADED = (DEFAULT_TEXT_TARGET, "smollm2-135m-hub")
SUFFIX_DEPTH = 64
"""Depth of our suffix trees. A copy of ``drafting.memory.suffix_tree.DEPTH``, whose import would load torch."""

_DRAWN = "Tokens are sampled: both engines sample the same distribution with different random numbers, so the texts differ."
REASONS: dict[str, str] = {
    name: entry["reason"]
    for entry in tomllib.loads((ASSETS / "vllm.toml").read_text("utf-8"))["reasons"]
    for name in entry["methods"]
}
"""Reason why vLLM 0.32 cannot run a method, by method; image methods have another."""
_TREE = REASONS["eagle2"]


@dataclass(frozen=True)
class Serving:
    """A method on vLLM.

    ``speculative``: the ``--speculative-config``, None for no speculation. ``environment``: further environment variables.
    ``before``: command that makes the drafter's files. ``differs``: remaining differences from a run in specviz.
    """

    target: str
    speculative: Mapping[str, Any] | None
    environment: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    differs: tuple[str, ...] = ()

    def command(self) -> str:
        """Return shell commands that start the server in vLLM's environment; REPO stands for a checkout of specviz."""
        own = "".join(f" {name}={shlex.quote(value)}" for name, value in self.environment.items())
        serve = f"vllm serve {shlex.quote(self.target)}"
        if self.speculative is not None:  # vLLM refuses the metrics option without speculation
            config = shlex.quote(json.dumps(self.speculative))
            serve += f" --per-request-spec-decode-metrics detailed --speculative-config {config}"
        return "\n".join(filter(None, ["pip install --no-deps REPO", self.before, f"SPECVIZ_VLLM_TRACES=FOLDER{own} {serve}"]))


def expressed(request: Request) -> Serving:
    """Express the request's method for vLLM. Raises BadInput, with the reason, if vLLM cannot run it with these parameters."""
    method = get(request.method)
    if method.name not in _WAYS:
        other = (
            "vLLM 0.32 has no slot for it" if method.runs_on("text") else "it is for pictures, and only text is sent to a server"
        )
        raise BadInput(f"{method.title} does not run on vLLM: {REASONS.get(method.name, other)}.")
    if request.image is not None:
        raise BadInput("Pictures are not sent to a server; omit --image.")
    serving = _WAYS[request.method](request, _served_name(request.target, "target"))
    return replace(serving, differs=(_DRAWN, *serving.differs)) if serving.speculative and request.temperature else serving


def _lookup(request: Request, target: str) -> Serving:
    own = request.parameters
    if own.occurrence != "earliest" or not own.partial:
        return _custom(request, target, own.copied)
    return Serving(target, {
        "method": "ngram", "num_speculative_tokens": own.copied,
        "prompt_lookup_max": own.longest, "prompt_lookup_min": min(own.shortest, own.longest),
    })  # fmt: skip


def _suffix(request: Request, target: str) -> Serving:
    own = request.parameters
    if own.shape != "path":
        raise BadInput(f"SuffixDecoding does not run on vLLM as a tree: {_TREE}. Add --param shape=path.")
    if own.offset or own.threshold:
        return _custom(request, target, own.most)
    cached = ("vLLM remembers the outputs of all its clients, specviz only those of this process.",) if own.remembered else ()
    return Serving(target, {
        "method": "suffix", "num_speculative_tokens": own.most, "suffix_decoding_max_tree_depth": SUFFIX_DEPTH,
        "suffix_decoding_max_cached_requests": own.remembered, "suffix_decoding_max_spec_factor": own.factor,
        "suffix_decoding_min_token_prob": own.floor,
    }, differs=cached)  # fmt: skip


def _custom(request: Request, target: str, most: int) -> Serving:
    """Serve a drafter of this project in vLLM's slot for a custom class."""
    own = json.dumps({"method": request.method, "parameters": vars(request.parameters)}, sort_keys=True)
    return Serving(target, {"method": "custom_class", "model": CLASS, "num_speculative_tokens": most}, {DRAFTER: own})


def _draft_model(request: Request, target: str) -> Serving:
    if not request.draft or request.draft == "small_draft":
        raise BadInput(
            "The included draft model does not run on vLLM: it computes with the target's own embedding, and its file is not "
            "a checkpoint of an architecture that vLLM has. Name another with --draft."
        )
    config = {
        "method": "draft_model", "model": _served_name(request.draft, "draft model"),
        "num_speculative_tokens": request.parameters.gamma,
    }  # fmt: skip
    if request.temperature:
        config["draft_sample_method"] = "probabilistic"
    return Serving(target, config)


def _eagle3(request: Request, target: str) -> Serving:
    own = request.parameters
    if own.width != 1 or not own.depth or not own.nodes:
        raise BadInput(
            f"EAGLE-3 does not run on vLLM with these parameters: {_TREE}, of a fixed length. "
            "Add --param width=1 --param depth=4 --param nodes=4."
        )
    config = {"method": "eagle3", "model": HEAD, "num_speculative_tokens": min(own.depth, own.nodes)}
    if request.temperature and own.rule == "without_replacement":
        config["draft_sample_method"] = "probabilistic"
    if request.target not in _HEADED:
        raise BadInput(f"The exported EAGLE-3 head was trained on {_HEADED[0]}, not on {request.target}.")
    return Serving(target, config, before=f"python -m specviz export-drafter eagle3 --to speculators --out {HEAD}")


_WAYS: dict[str, Callable[[Request, str], Serving]] = {
    "autoregressive": lambda request, target: Serving(target, None),
    "prompt_lookup": _lookup,
    "suffix_decoding": _suffix,
    "speculative_sampling": _draft_model,
    "eagle3": _eagle3,
}


def _served_name(name: str, what: str) -> str:
    """Return a model's name for ``vllm serve``: a folder or hub id. Raises BadInput if vLLM cannot load the model."""
    place = resolve(name)
    entry = place.entry
    if place.repository and (entry is None or entry.modality == "text"):
        return place.repository
    if place.path is not None:
        if place.path.is_file():
            raise BadInput(f"{name} as {what} is a .gguf file; for a vLLM server give a folder with safetensors weights.")
        return str(place.path)
    assert entry is not None
    if entry.modality == "text" and isinstance(entry.source, WheelFile):
        return str(cache_folder() / "models" / place.name)
    raise BadInput(f"{entry.title} has an architecture of this project's own, which vLLM lacks; choose another {what}.")


@dataclass(frozen=True)
class Known:
    """Known settings of a server by name, and their source. ``speculates``: None if unknown."""

    settings: Mapping[str, str] = field(default_factory=dict)
    speculates: bool | None = None
    source: str = ""


@dataclass(frozen=True)
class Match:
    """Settings of a method that the server shares (``same``), has with other values (``different``), or does not report."""

    same: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def known(server: Server) -> Known:
    """Query the server's settings; none if the server does not answer."""
    with Client(server.url, server.key) as client:
        metrics = client.metrics()
    for _, labels, _ in prometheus(metrics, re.compile(INFO)):
        settings = {name: labels[name] for name in (*SETTINGS, DRAFTER) if labels.get(name)}
        return Known(settings, "method" in settings, "the plugin")
    counts = read_counters(metrics)
    if counts and counts.by_place:
        return Known({"num_speculative_tokens": str(len(counts.by_place))}, True, "its counters")
    return Known({}, None if "vllm:" not in metrics else False, "its counters")


def _plain(value: Any) -> str:
    """Return a setting as comparable text, in which 1 and 1.0 are equal."""
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return str(value)


def compared(serving: Serving, known: Known) -> Match:
    """Compare the method's settings with the server's known settings, one by one.

    Models are compared by the last part of their names. A folder with another name counts as unknown, since it may hold the same
    weights.
    """
    wanted = {name: _plain(value) for name, value in (serving.speculative or {}).items()} | dict(serving.environment)
    if not wanted or known.speculates is False:
        if known.speculates is None:
            return Match(unknown=("whether it speculates",))
        words = ("it speculates" if known.speculates else "it does not speculate",)
        return Match(same=words) if known.speculates == bool(wanted) else Match(different=words)
    same, different, unknown = [], [], []
    for name, value in wanted.items():
        theirs = _plain(known.settings.get(name, ""))
        if not theirs:
            unknown.append(name)
        elif _alike(name, value, theirs):
            same.append(f"{name} {short_name(value)}")
        elif name == "model" and (value == HEAD or "/" in (theirs[:1], value[:1])):
            unknown.append(f"whether {short_name(theirs)} holds the same weights as {short_name(value)}")
        else:
            different.append(f"{name} is {short_name(theirs)} there and {short_name(value)} here")
    return Match(tuple(same), tuple(different), tuple(unknown))


def _alike(name: str, ours: str, theirs: str) -> bool:
    if name == "model":
        return PurePosixPath(ours).name == PurePosixPath(theirs).name
    try:
        return ours == theirs or (name == DRAFTER and drafter_of(ours) == drafter_of(theirs))
    except BadInput:
        return False
