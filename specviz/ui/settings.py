"""Settings of the app, read from environment variables.

==========================  ========================================================================================
SPECVIZ_TARGET              initial target (default smollm2-135m-instruct).
SPECVIZ_MODELS              models to offer, separated by commas (default the whole catalogue; in a public app, the included
                            models and smollm2-135m-instruct).
SPECVIZ_ANY_MODEL           1 lets visitors enter any hub id or local folder; 0 allows only the offered models (default 1, or
                            0 in a public app).
SPECVIZ_DEVICE              initial device: auto, cpu or cuda (default auto).
SPECVIZ_MAX_NEW_TOKENS      maximum number of new tokens per run (default 512).
SPECVIZ_MAX_WAITING         maximum number of waiting runs (default 48), two thirds of them from one address.
SPECVIZ_MAX_SECONDS         maximum computing time of a run in seconds, including the baseline (default no limit, or 120 in a
                            public app). On a ZeroGPU Space, the GPU time of a run is an upper limit.
SPECVIZ_MAX_PREPARING       maximum time in seconds for fetching and loading a model while other runs wait (default 120).
SPECVIZ_MAX_UPLOAD_MB       maximum size of an uploaded trace file in megabytes (default 20).
SPECVIZ_SHARE_DAYS          days for which shared runs are kept, in shared below SPECVIZ_CACHE (default 7; 0 keeps none).
                            Beyond 1,000 runs or 256 MiB, the least recently opened runs are removed.
SPECVIZ_SERVERS             addresses of inference servers (vLLM, llama.cpp, SGLang) to offer as targets, separated by commas
                            (default none).
SPECVIZ_TRACES              folder of recorded runs (default assets/traces beside app.py).
SPECVIZ_LESSONS             folder of lessons (default assets/lessons beside app.py).
SPECVIZ_PROXIED             1 if a proxy adds the visitor's address to X-Forwarded-For (default 1 on a Space, else 0).
                            With 0, all visitors behind a proxy share the limits of one address.
SPECVIZ_CACHE               folder of fetched models and measured pass costs (default specviz in the user's cache folder). If
                            set, hub files are in its subfolder hub, unless HF_HOME or HF_HUB_CACHE is set.
PORT, GRADIO_SERVER_PORT    port to listen on (default 7860 or the next free one).
GRADIO_TEMP_DIR             parent folder of the upload folder (default the system's temporary folder).
GRADIO_SERVER_NAME          address to listen on (default 127.0.0.1).
SPACES_ZERO_GPU, SPACE_ID   set by Hugging Face Spaces.
==========================  ========================================================================================

An app is public on a Space and on any address but a loopback address. A private app accepts only requests to localhost, and
becomes public at the first request through a proxy or tunnel that sets a forwarding header. A tunnel that sets no such header
requires GRADIO_SERVER_NAME=0.0.0.0. Variables that are set override the defaults in both cases.
"""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from gradio.utils import get_upload_folder

from specviz.errors import BadInput, SpecvizError, shown
from specviz.interop.client import address
from specviz.models.hub import catalog
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.hub.catalog import is_model
from specviz.paths import ASSETS
from specviz.ui.before_gradio import without_proxies

PUBLIC_SECONDS = 120
"""Maximum computing time of a run in a public app, in seconds."""
SMALL = (
    catalog.DEFAULT_TEXT_TARGET,
    *(entry.name for entry in catalog.entries() if isinstance(entry.source, catalog.ShippedFile)),
)
"""Models that a public app offers by default."""
WANTED = {
    "port": "a whole number from 1 to 65,535", "device": "auto, cpu or cuda", "any_model": "1 or 0", "proxied": "1 or 0",
    "share_days": "a whole number from 0 to 365",
}  # fmt: skip
"""Valid values of variables that are not counts, for error messages."""
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
GPU_SECONDS = 60
"""Time in seconds for which a ZeroGPU Space lends a GPU to a run."""
LOADING_SECONDS = 20
"""Part of :data:`GPU_SECONDS` reserved for starting a process and loading a model."""


@dataclass(frozen=True)
class Settings:
    """Settings of the app.

    ``models``: models to offer, empty for the whole catalogue; ``private``: whether only this machine can access the app;
    ``exposed``: settings of a private app after the first request through a proxy.
    """

    target: str = "smollm2-135m-instruct"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_new_tokens: Count = 512
    max_waiting: Count = 48
    max_seconds: Count | None = None
    max_upload_mb: Count = 20
    any_model: bool = True
    traces: Path = ASSETS / "traces"
    lessons: Path = ASSETS / "lessons"
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None
    zero_gpu: bool = False
    proxied: bool = False
    servers: tuple[str, ...] = ()
    max_preparing: Count = 120
    models: tuple[str, ...] = ()
    share_days: Annotated[int, msgspec.Meta(ge=0, le=365)] = 7
    host: str = "127.0.0.1"
    private: bool = True
    exposed: Settings | None = field(default=None, compare=False)


def read(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from environment variables. Raises BadInput for an invalid value."""
    private = is_loopback(environment.get("GRADIO_SERVER_NAME") or Settings.host) and not environment.get("SPACE_ID")
    settings = _read(environment, private)
    return replace(settings, exposed=_read(environment, private=False)) if private else settings


def _read(environment: Mapping[str, str], private: bool) -> Settings:
    on_space = bool(environment.get("SPACE_ID"))
    zero_gpu = environment.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")
    values: dict[str, Any] = {"any_model": private, "proxied": on_space, "private": private, "zero_gpu": zero_gpu}
    if not private:
        values |= {"max_seconds": PUBLIC_SECONDS, "models": SMALL}
    variables = {
        one.name: f"SPECVIZ_{one.name.upper()}" for one in fields(Settings) if one.name not in ("zero_gpu", "private", "exposed")
    }
    variables |= {"host": "GRADIO_SERVER_NAME", "port": "PORT" if environment.get("PORT") else "GRADIO_SERVER_PORT"}
    for name, variable in variables.items():
        if text := environment.get(variable):
            listed = [part.strip() for part in text.split(",") if part.strip()]
            values[name] = (listed or values.get(name, ())) if name in ("servers", "models") else text
            if name in ("max_seconds", "port") and not text.isdecimal():  # msgspec would accept "null"
                values[name] = "no number"
    try:
        settings = msgspec.convert(values, Settings, strict=False, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")
        variable, wanted = variables[name], WANTED.get(name, "a whole number from 1 to 1,000,000")
        raise BadInput(f"The environment variable {variable} is {shown(environment[variable])}; give {wanted}.") from None
    return replace(settings, servers=tuple(map(address, settings.servers)))


def most_seconds(settings: Settings) -> int | None:
    """Return the maximum computing time of a run in seconds, or None."""
    if not settings.zero_gpu:
        return settings.max_seconds
    return min(settings.max_seconds or GPU_SECONDS, GPU_SECONDS - LOADING_SECONDS)


def is_loopback(name: str) -> bool:
    """Return whether a host name or address belongs to the loopback interface."""
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return f".{name.lower()}".endswith(".localhost")


MENDABLE = 2
"""Exit code for errors that the user can fix."""
SWITCH_SECONDS = 0.0002
"""Thread switch interval in seconds. With the default of 5 ms, the event loop would wait too long for other threads."""
COLLECTIONS = 1000
"""Number of middle-generation garbage collections before a full one, which would stop all threads for a second while a large
trace is read. Traces contain no cycles and need no full collection."""


@contextmanager
def explained() -> Iterator[None]:
    """On a SpecvizError, print the message and exit with code 2."""
    try:
        yield
    except SpecvizError as problem:
        print(" ".join(str(problem).split()), file=sys.stderr)
        raise SystemExit(MENDABLE) from None


def check(settings: Settings) -> Settings:
    """Return ``settings`` if the app can start with these settings.

    Raises BadInput, naming the variable to change, if a port, folder or model cannot be used. A read-only cache causes a warning,
    because cached models still run.
    """
    named = [("SPECVIZ_TARGET", settings.target), *(("SPECVIZ_MODELS", name) for name in settings.models)]
    for variable, model in named:
        if not is_model(model):
            raise BadInput(
                f"The environment variable {variable} names {shown(model)}, which is not a model of the catalogue, a hub "
                "id, a folder or a .gguf file. `python -m specviz fetch --help` lists the catalogue."
            )
    _check_address(settings.host, settings.port)
    for variable, folder in (("SPECVIZ_TRACES", settings.traces), ("SPECVIZ_LESSONS", settings.lessons)):
        if not folder.is_dir():
            raise BadInput(f"The environment variable {variable} names {shown(str(folder))}, which is not a folder.")
    uploads, cache = Path(get_upload_folder()), cache_folder()
    if problem := _unwritable(uploads):
        raise BadInput(
            f"The upload folder {uploads} cannot be written ({problem.strerror or problem}). Set the environment variable "
            "GRADIO_TEMP_DIR to a writable folder."
        ) from problem
    if problem := _unwritable(cache):
        logging.getLogger(__name__).warning(
            "The cache folder %s cannot be written (%s), so models cannot be fetched or unpacked. Set the environment variable "
            "SPECVIZ_CACHE to a writable folder.", cache, problem.strerror or problem,
        )  # fmt: skip
    return settings


def _check_address(name: str, port: int | None) -> None:
    try:
        family, *_, where = socket.getaddrinfo(name.strip("[]"), port or 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as problem:
        raise BadInput(
            f"The environment variable GRADIO_SERVER_NAME is {shown(name)}, which cannot be resolved ({problem})."
        ) from problem
    try:
        socket.create_server(where, family=family).close()
    except OSError as problem:
        raise BadInput(
            f"The app cannot listen on {f'port {port}' if port else 'any port'} of {name} ({problem.strerror or problem}). Set "
            "PORT to a free port, or stop the program that uses this port."
        ) from problem


def _unwritable(folder: Path) -> OSError | None:
    """Return the error that prevents writing to a folder, or None. Creates the folder if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as problem:
        return problem


def launch(page: Any, options: dict[str, Any]) -> None:
    """Serve ``page`` until the process ends. Raises BadInput if no port is free."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(700, 10, COLLECTIONS)
    try:
        with without_proxies():  # Gradio requests the app's own address
            page.launch(**options, prevent_thread_lock=True)
    except OSError as problem:
        raise BadInput(
            f"The app cannot listen: set PORT to a free port, or GRADIO_SERVER_NAME to an address of this machine. {problem}"
        ) from problem
    page.block_thread()
