"""The environment variables that the app reads, in one place, as one frozen value.

==========================  ========================================================================================
SPECVIZ_TARGET              target chosen when the page opens (default smollm2-135m-instruct).
SPECVIZ_MODELS              models that the page offers, names separated by commas (default all that the catalogue lists; if
                            other machines can reach the app, the shipped ones and smollm2-135m-instruct).
SPECVIZ_ANY_MODEL           1 lets visitors name any hub id or local folder; 0 restricts them to the models that the
                            page offers (default 1 if only this machine can reach the app; 0 on a Space and on any other
                            address, because there strangers would choose the files to download and read).
SPECVIZ_DEVICE              auto, cpu or cuda: the device chosen when the page opens (default auto).
SPECVIZ_MAX_NEW_TOKENS      maximum number of new tokens that a visitor may request (default 512).
SPECVIZ_MAX_WAITING         maximum number of runs that wait for the engine, two thirds of them from one address; further
                            ones are refused (default 48).
SPECVIZ_MAX_SECONDS         maximum seconds that one run may compute, its earlier trajectories and its baseline included
                            (default 120 if other machines can reach the app, else no limit; on a ZeroGPU Space at most
                            its GPU time for a run, less the time to load).
SPECVIZ_MAX_PREPARING       maximum seconds for fetching and loading a model while other runs wait (default 120).
SPECVIZ_MAX_UPLOAD_MB       largest trace file a visitor may upload, in megabytes (default 20).
SPECVIZ_SHARE_DAYS          days for which the app keeps a run that a visitor shares by link, in shared below SPECVIZ_CACHE; at
                            most 1,000 runs and 256 MiB, the least recently opened go first (default 7; 0 keeps none).
SPECVIZ_SERVERS             addresses of running servers (vLLM, llama.cpp, SGLang), separated by commas, to which visitors
                            may send prompts; they are listed as targets (default none).
SPECVIZ_TRACES              folder of recorded runs (default assets/traces beside app.py).
SPECVIZ_LESSONS             folder of lessons (default assets/lessons beside app.py).
SPECVIZ_PROXIED             1 if every request comes through a proxy that adds the visitor's address to X-Forwarded-For
                            (default 1 on a Space, else 0); without it all visitors behind the proxy count as one.
SPECVIZ_CACHE               folder of fetched and unpacked models and measured pass costs (default specviz in the user's cache
                            folder). If it is set, files from the model hub are in hub below it, unless HF_HOME or
                            HF_HUB_CACHE names another folder.
PORT, GRADIO_SERVER_PORT    port to listen on (default 7860 or the next free one).
GRADIO_TEMP_DIR             folder in which this process makes its own folder of uploads (default the system's).
GRADIO_SERVER_NAME          address to listen on (default 127.0.0.1).
SPACES_ZERO_GPU, SPACE_ID   set by Hugging Face Spaces.
==========================  ========================================================================================

An app on a loopback address answers only to localhost and its addresses. A tunnel or proxy to 127.0.0.1 makes it
public nevertheless: from the first request with a forwarding header on, the defaults are those of a public app. Variables that
are set explicitly keep their values. A tunnel that adds no such header needs GRADIO_SERVER_NAME=0.0.0.0.
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
"""Maximum seconds of one run where strangers can reach the app."""
SMALL = (
    catalog.DEFAULT_TEXT_TARGET,
    *(entry.name for entry in catalog.entries() if isinstance(entry.source, catalog.ShippedFile)),
)
"""Models that any machine can run, and the only ones that strangers may choose by default."""
WANTED = {
    "port": "a whole number from 1 to 65,535", "device": "auto, cpu or cuda", "any_model": "1 or 0", "proxied": "1 or 0",
    "share_days": "a whole number from 0 to 365",
}  # fmt: skip
"""Valid values of the variables that are not counts, for the message that refuses another one."""
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
GPU_SECONDS = 60
"""Maximum seconds that one run may hold a GPU of a ZeroGPU Space, which then takes the GPU away."""
LOADING_SECONDS = 20
"""Share of :data:`GPU_SECONDS` for starting a process and loading a model; a run has the rest, and ends by itself."""


@dataclass(frozen=True)
class Settings:
    """Configuration of this copy of the app.

    ``models`` are those that the page offers, empty for the whole catalogue. ``private``: only this machine reaches the app;
    ``exposed`` then holds the settings that apply once a proxy forwards visitors.
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
    """Read the settings from environment variables. Raises BadInput naming an invalid variable."""
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
            if name in ("max_seconds", "port") and not text.isdecimal():  # msgspec reads "null" as no limit
                values[name] = "no number"
    try:
        settings = msgspec.convert(values, Settings, strict=False, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")
        variable, wanted = variables[name], WANTED.get(name, "a whole number from 1 to 1,000,000")
        raise BadInput(f"The environment variable {variable} is {shown(environment[variable])}; give {wanted}.") from None
    return replace(settings, servers=tuple(map(address, settings.servers)))


def most_seconds(settings: Settings) -> int | None:
    """Return the maximum seconds that a run may compute; None for no limit."""
    if not settings.zero_gpu:
        return settings.max_seconds
    return min(settings.max_seconds or GPU_SECONDS, GPU_SECONDS - LOADING_SECONDS)


def is_loopback(name: str) -> bool:
    """Whether a host's name or address is one of the loopback interface."""
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return f".{name.lower()}".endswith(".localhost")


MENDABLE = 2
"""Exit code for problems that the user can fix, as on the command line."""
SWITCH_SECONDS = 0.0002
"""The interpreter's switch interval. Threads read and write files beside the event loop, which needs the interpreter hundreds
of times per response. It would wait Python's default of 5 ms each time."""
COLLECTIONS = 1000
"""Garbage collections of the middle generation before a full one, which stops every thread for a second while a visitor's
large trace is read. A trace contains no cycles, so its memory is freed without a full collection."""


@contextmanager
def explained() -> Iterator[None]:
    """On a SpecvizError, end the process with its message and exit code 2."""
    try:
        yield
    except SpecvizError as problem:
        print(" ".join(str(problem).split()), file=sys.stderr)
        raise SystemExit(MENDABLE) from None


def check(settings: Settings) -> Settings:
    """Return ``settings`` if the app can start with them.

    Raises BadInput naming the variable to change when a port, a folder or a model cannot be used. A cache that cannot be
    written only causes a warning, since models already in it still run.
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
            f"Uploads are kept in {uploads}, which cannot be written ({problem.strerror or problem}). Set the environment "
            "variable GRADIO_TEMP_DIR to a writable folder."
        ) from problem
    if problem := _unwritable(cache):
        logging.getLogger(__name__).warning(
            "Models are kept in %s, which cannot be written (%s), so none can be fetched or unpacked. Set the environment "
            "variable SPECVIZ_CACHE to a writable folder.", cache, problem.strerror or problem,
        )  # fmt: skip
    return settings


def _check_address(name: str, port: int | None) -> None:
    try:
        where = socket.getaddrinfo(name.strip("[]"), port or 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as problem:
        raise BadInput(
            f"The environment variable GRADIO_SERVER_NAME is {shown(name)}, which cannot be resolved ({problem})."
        ) from problem
    with socket.socket(*where[:3]) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(where[4])
        except OSError as problem:
            reason = problem.strerror or problem
            raise BadInput(
                f"The app cannot listen on {f'port {port}' if port else 'any port'} of {name} ({reason}). Set PORT to a free "
                "port, or stop the program that uses this one."
            ) from problem


def _unwritable(folder: Path) -> OSError | None:
    """Return the error that prevents writing to this folder, or None. Creates the folder if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as problem:
        return problem


def launch(page: Any, options: dict[str, Any]) -> None:
    """Serve ``page`` until the process ends. Raises BadInput when no port is free."""
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
