"""Start of the app: what keeps it from starting is one sentence on the error stream and exit code 2."""

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
"""The exit code of what the user can mend, as the command line has it."""
SWITCH_SECONDS = 0.0005
"""Most that a thread computes in Python before another one may. Files are read and made in threads beside the event loop, which
has to come in hundreds of times for one answer and would wait Python's 5 ms each time."""
COLLECTIONS = 1000
"""Collections of the middle generation before one of all objects, which stops every thread for a second while a visitor's large
trace is read. A trace holds no cycles: its memory is free without one."""


@contextmanager
def explained() -> Iterator[None]:
    """End the process with the sentence of a SpecvizError."""
    try:
        yield
    except SpecvizError as problem:
        print(" ".join(str(problem).split()), file=sys.stderr)
        raise SystemExit(MENDABLE) from None


def check(settings: Settings) -> Settings:
    """The ``settings``, if the app can start with them.

    Raises a SpecvizError naming the variable to change where a port, a folder or a model is none that can be used. A cache that
    cannot be written is a warning: what is there runs.
    """
    named = [("SPECVIZ_TARGET", settings.target), *(("SPECVIZ_MODELS", name) for name in settings.models)]
    for variable, model in named:
        if not is_model(model):
            raise BadInput(
                f"The environment variable {variable} names {shown(model)}, which is no model of the catalogue, hub id, "
                "folder or .gguf file. `python -m specviz fetch --help` lists the catalogue."
            )
    _check_address(settings.host, settings.port)
    for variable, folder in (("SPECVIZ_TRACES", settings.traces), ("SPECVIZ_LESSONS", settings.lessons)):
        if not folder.is_dir():
            raise BadInput(f"The environment variable {variable} names {shown(str(folder))}, which is no folder.")
    uploads, cache = Path(get_upload_folder()), cache_folder()
    if problem := _unwritable(uploads):
        raise BadInput(
            f"Uploads are kept in {uploads}, which cannot be written ({problem.strerror or problem}). Set the environment "
            "variable GRADIO_TEMP_DIR to a folder that can."
        ) from problem
    if problem := _unwritable(cache):
        logging.getLogger(__name__).warning(
            "Models are kept in %s, which cannot be written (%s): none can be fetched or unpacked. Set the environment variable "
            "SPECVIZ_CACHE to a folder that can.", cache, problem.strerror or problem,
        )  # fmt: skip
    return settings


def _check_address(name: str, port: int | None) -> None:
    try:
        where = socket.getaddrinfo(name.strip("[]"), port or 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as problem:
        raise BadInput(f"The environment variable GRADIO_SERVER_NAME is {shown(name)}, no address here ({problem}).") from problem
    with socket.socket(*where[:3]) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(where[4])
        except OSError as problem:
            reason = problem.strerror or problem
            raise BadInput(
                f"The app cannot listen on port {port or 'any'} of {name} ({reason}). Set PORT to a free port, or stop the "
                "program that has this one."
            ) from problem


def _unwritable(folder: Path) -> OSError | None:
    """Why no file can be made in this folder, which is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as problem:
        return problem


def launch(page: Any, options: dict[str, Any]) -> None:
    """Serve ``page`` until the process ends. Raises BadInput where no port is free."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(700, 10, COLLECTIONS)
    try:
        with without_proxies():  # Gradio asks the app's own address
            page.launch(**options, prevent_thread_lock=True)
    except OSError as problem:
        raise BadInput(f"The app cannot listen ({problem}) Set PORT or GRADIO_SERVER_NAME to what is free here.") from problem
    page.block_thread()
