"""Start of the app: a problem that prevents it ends the process with one sentence on stderr and exit code 2."""

from __future__ import annotations

import gc
import logging
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradio.utils import get_upload_folder

from specviz.errors import BadInput, SpecvizError, shown
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.hub.catalog import is_model
from specviz.ui.settings import Settings
from specviz.ui.stubs import without_proxies

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
