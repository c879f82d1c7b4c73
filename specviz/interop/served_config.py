"""Known settings of a running vLLM's speculation, and their comparison with a method's.

Three sources: the plugin's line in ``/metrics`` (``specviz:speculative_config_info``), ``/server_info`` of a server started with
``VLLM_SERVER_DEV_MODE=1``, and vLLM's own counters, whose number of positions is the number of drafted tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from specviz.errors import BadInput
from specviz.interop.chain import short_name
from specviz.interop.client import Client
from specviz.interop.responses import converted
from specviz.interop.server import Server
from specviz.interop.server_counters import prometheus, read_counters
from specviz.interop.vllm_methods import HEAD, Serving
from specviz.interop.vllm_plugin.labels import DRAFTER, INFO, SETTINGS, drafter_of

_INFO = re.compile(INFO)


@dataclass(frozen=True)
class Known:
    """A server's ``settings`` by name, as far as known, and their source. ``speculates`` is None if unknown."""

    settings: Mapping[str, str] = field(default_factory=dict)
    speculates: bool | None = None
    source: str = ""


class _Config(Struct, frozen=True):
    speculative_config: dict[str, Any] | None | UnsetType = UNSET


class _Info(Struct):
    vllm_config: _Config = _Config()


@dataclass(frozen=True)
class Match:
    """A method's settings that the server has (``same``), has with other values (``different``), or does not report."""

    same: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def known(server: Server) -> Known:
    """Query the server's settings. Sources that do not answer are skipped."""
    with Client(server.url, server.key) as client:
        metrics, page = client.found("/metrics"), client.found("/server_info?config_format=json")
    for _, labels, _ in prometheus(metrics, _INFO):
        settings = {name: labels[name] for name in (*SETTINGS, DRAFTER) if labels.get(name)}
        return Known(settings, "method" in settings, "the plugin")
    try:
        found = converted(_Info, page).vllm_config.speculative_config
    except BadInput:
        found = UNSET
    if found is not UNSET:
        values = {name: (found or {}).get(name) for name in SETTINGS}
        settings = {name: _plain(value) for name, value in values.items() if isinstance(value, str | int | float)}
        return Known(settings, found is not None, "/server_info")
    counts = read_counters(metrics)
    if counts and counts.by_place:
        return Known({"num_speculative_tokens": str(len(counts.by_place))}, True, "its counters")
    return Known({}, None if "vllm:" not in metrics else False, "its counters")


def _plain(value: Any) -> str:
    """Return a setting as comparable text: 1 and 1.0 are equal."""
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return str(value)


def compared(serving: Serving, found: Known) -> Match:
    """Compare the method's settings with the server's known ones, one by one.

    A model is compared by the last part of its name. A folder of another name counts as unknown: it may hold the same weights.
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
