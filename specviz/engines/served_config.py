"""What can be known of how a running vLLM speculates, and whether that is what a method asks for.

Three places tell: the plugin's line in ``/metrics`` (``specviz:speculative_config_info``), ``/server_info`` of a server started
with ``VLLM_SERVER_DEV_MODE=1``, and vLLM's own counters, which have a place
for every drafted token and so say how many there are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import httpx

from specviz.engines.server import Server
from specviz.engines.server_counters import connection
from specviz.engines.vllm_methods import HEAD, Serving
from specviz.engines.vllm_plugin.labels import DRAFTER, INFO, SETTINGS
from specviz.errors import BadInput
from specviz.methods.parameters import build
from specviz.methods.registry import get

_INFO = re.compile(rf"^{INFO}\{{(.*)\}} [0-9.e+]+$", re.M)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PLACE = re.compile(r'^vllm:spec_decode_num_accepted_tokens_per_pos_total\{[^}]*position="(\d+)"', re.M)


@dataclass(frozen=True)
class Known:
    """``settings`` by name, as far as known, and who told. ``speculates`` is None where nobody tells."""

    settings: Mapping[str, str] = field(default_factory=dict)
    speculates: bool | None = None
    source: str = ""


@dataclass(frozen=True)
class Match:
    """What of a method's settings the server was seen to have (``same``), has otherwise, or does not tell."""

    same: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def known(server: Server) -> Known:
    """Ask the server. What does not answer tells nothing."""
    with connection(server.key) as asking:
        metrics, dev = _text(asking, f"{server.url}/metrics"), _text(asking, f"{server.url}/server_info?config_format=json")
    return _by_plugin(metrics) or _by_server_info(dev) or _by_counters(metrics)


def _text(asking: httpx.Client, url: str) -> str:
    try:
        response = asking.get(url)
    except httpx.HTTPError:
        return ""
    return response.text if response.status_code == 200 else ""


def _by_plugin(metrics: str) -> Known | None:
    found = _INFO.search(metrics)
    if found is None:
        return None
    labels = {name: value.replace('\\"', '"').replace("\\\\", "\\") for name, value in _LABEL.findall(found[1])}
    settings = {name: labels[name] for name in (*SETTINGS, DRAFTER) if labels.get(name)}
    return Known(settings, bool(settings.get("method")), "the plugin")


def _by_server_info(told: str) -> Known | None:
    try:
        config = json.loads(told)["vllm_config"]["speculative_config"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(config, Mapping):
        return Known({}, False, "/server_info")
    settings = {name: _plain(config[name]) for name in SETTINGS if config.get(name) is not None}
    return Known(settings, True, "/server_info")


def _by_counters(metrics: str) -> Known:
    places = [int(place) for place in _PLACE.findall(metrics)]
    if places:
        return Known({"num_speculative_tokens": str(max(places) + 1)}, True, "its counters")
    return Known({}, None if "vllm:" not in metrics else False, "its counters")


def _plain(value: Any) -> str:
    """A setting as text that compares: 1 and 1.0 are one number."""
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return str(value)


def compared(serving: Serving, found: Known) -> Match:
    """Setting by setting, what the method asks for and what the server is known to have.

    A model is compared by the last part of its name; a folder of another name may hold the same weights, which nobody tells.
    """
    wanted = {name: _plain(value) for name, value in (serving.speculative or {}).items()} | dict(serving.environment)
    if found.speculates is False and not wanted:
        return Match(same=("it does not speculate",))
    if found.speculates is False or (found.speculates and not wanted):
        return Match(different=("it does not speculate" if wanted else "it speculates",))
    same, different, unknown = [], [], []
    for name, value in wanted.items():
        theirs = found.settings.get(name)
        if theirs is None:
            unknown.append(name)
        elif _alike(name, value, _plain(theirs)):
            same.append(f"{name} {_short(value)}")
        elif name == "model" and (value == HEAD or theirs.startswith("/") or value.startswith("/")):
            unknown.append(f"whether {_short(theirs)} holds the same weights as {_short(value)}")
        else:
            different.append(f"{name} is {_short(_plain(theirs))} there and {_short(value)} here")
    if not wanted:
        unknown.append("whether it speculates")
    return Match(tuple(same), tuple(different), tuple(unknown))


def _alike(name: str, ours: str, theirs: str) -> bool:
    if name == "model":
        return PurePosixPath(ours).name == PurePosixPath(theirs).name
    if name == DRAFTER:
        return bool(_parsed(ours) == _parsed(theirs))
    return ours == theirs


def _parsed(text: str) -> Any:
    """A drafter of ours as the variable names it, its parameters' defaults filled in."""
    try:
        told = json.loads(text)
        parameters = get(told["method"]).parameters
        return told["method"], build(parameters, told.get("parameters") or {}, told["method"])
    except (ValueError, KeyError, TypeError, AttributeError, BadInput):
        return text


def _short(value: str) -> str:
    return PurePosixPath(value).name if value.startswith("/") else value[:200]
