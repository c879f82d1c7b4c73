"""Access to the app: who asks, by what name, and whether a proxy stands between."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specviz.ui.settings import Settings, is_loopback

FORWARDING = ("x-forwarded-for", "forwarded", "x-real-ip", "x-forwarded-host", "cf-connecting-ip", "via")
"""Headers that proxies and tunnels add, and browsers never."""
FOREIGN_HOST = (
    "This app answers only where it runs, as localhost or 127.0.0.1. To let others reach it, start it with "
    "GRADIO_SERVER_NAME=0.0.0.0."
)


def visitor(headers: Iterable[tuple[str, str]], peer: str) -> str:
    """The address that a visitor comes from behind proxies: the last public one, since what stands before it the visitor may
    have written and what stands behind it are proxies. ``peer`` where there is none."""
    forwarded = ",".join(value for name, value in headers if name.lower() == "x-forwarded-for")
    entries = [entry for part in forwarded.split(",") if (entry := part.strip())]
    for entry in reversed(entries):
        host = entry[1:].split("]")[0] if entry.startswith("[") else entry.split(":")[0] if entry.count(":") == 1 else entry
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return entry[:64]  # what a proxy wrote, though no address: before it stands nothing that can be trusted
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_global:
            return str(address)
    return entries[-1][:64] if entries else peer


def own_name(host: str) -> bool:
    """Whether a Host header names this machine to itself; a program may leave it out."""
    name = host[1:].split("]")[0] if host.startswith("[") else host.rsplit(":", 1)[0] if host.count(":") == 1 else host
    return not host or is_loopback(name.rstrip("."))


class Gate:
    """The middleware of a private app: it refuses other names than its own, by which a foreign page could reach it, and calls
    ``expose`` once a request shows that a proxy brings visitors."""

    def __init__(self, app: ASGIApp, settings: Callable[[], Settings], expose: Callable[[], None]) -> None:
        self.app = app
        self.settings = settings
        self.expose = expose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and self.settings().private:
            headers = Headers(scope=scope)
            if any(name in headers for name in FORWARDING):
                logging.getLogger(__name__).warning(
                    "A proxy or tunnel brings visitors: what only this machine may do is off. Where it adds their addresses, "
                    "start the app with SPECVIZ_PROXIED=1."
                )
                self.expose()
            elif scope["type"] == "http" and not own_name(headers.get("host", "")):
                return await PlainTextResponse(FOREIGN_HOST, 421)(scope, receive, send)
        await self.app(scope, receive, send)
