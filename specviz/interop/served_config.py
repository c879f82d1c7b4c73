"""What can be known of how a running vLLM speculates, and whether that is what a method asks for.

Three places tell: the plugin's line in ``/metrics`` (``specviz:speculative_config_info``), ``/server_info`` of a server started
with ``VLLM_SERVER_DEV_MODE=1``, and vLLM's own counters, which have a place
for every drafted token and so say how many there are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from specviz.errors import BadInput
from specviz.interop.chain import short_name
from specviz.interop.client import Client
from specviz.interop.fields import Fields
from specviz.interop.server import Server
from specviz.interop.server_counters import prometheus, read_counters
from specviz.interop.vllm_methods import HEAD, Serving
from specviz.interop.vllm_plugin.labels import DRAFTER, INFO, SETTINGS, drafter_of

_INFO = re.compile(INFO)


@dataclass(frozen=True)
class Known:
    """``settings`` by name, as far as known, and their source. ``speculates`` is None where that is unknown."""

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
    with Client(server.url, server.key) as client:
        metrics, page = client.found("/metrics"), client.found("/server_info?config_format=json")
    for _, labels, _ in prometheus(metrics, _INFO):
        settings = {name: labels[name] for name in (*SETTINGS, DRAFTER) if labels.get(name)}
        return Known(settings, "method" in settings, "the plugin")
    try:
        config = Fields.parsed(page).inner("vllm_config")
        found = config.inner("speculative_config").found
    except BadInput:
        config, found = Fields({}), {}
    if "speculative_config" in config.found:
        settings = {name: _plain(found[name]) for name in SETTINGS if isinstance(found.get(name), str | int | float)}
        return Known(settings, "speculative_config" in config, "/server_info")
    counts = read_counters(metrics)
    if counts is not None and counts.by_place:
        return Known({"num_speculative_tokens": str(len(counts.by_place))}, True, "its counters")
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
    if not wanted or found.speculates is False:
        if found.speculates is None:
            return Match(unknown=("whether it speculates",))
        words = ("it speculates" if found.speculates else "it does not speculate",)
        return Match(same=words) if found.speculates == bool(wanted) else Match(different=words)
    same, different, unknown = [], [], []
    for name, value in wanted.items():
        theirs = _plain(found.settings.get(name, ""))
        if not theirs:
            unknown.append(name)
        elif _alike(name, value, theirs):
            same.append(f"{name} {short_name(value)}")
        elif name == "model" and (value == HEAD or theirs.startswith("/") or value.startswith("/")):
            unknown.append(f"whether {short_name(theirs)} holds the same weights as {short_name(value)}")
        else:
            different.append(f"{name} is {short_name(theirs)} there and {short_name(value)} here")
    return Match(tuple(same), tuple(different), tuple(unknown))


def _alike(name: str, ours: str, theirs: str) -> bool:
    if name == "model":
        return PurePosixPath(ours).name == PurePosixPath(theirs).name
    try:
        return drafter_of(ours) == drafter_of(theirs) if name == DRAFTER else ours == theirs
    except BadInput:
        return ours == theirs
