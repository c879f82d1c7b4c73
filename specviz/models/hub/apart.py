"""A model brought here by a process of its own: ``python -m specviz.models.hub.apart NAME``.

A process to be forked must not have computed before: the threads that torch's operations share work with do not survive a fork,
and the copy waits for them for ever. A ZeroGPU Space forks the app for each run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable

from specviz.errors import ModelUnavailable, SpecvizError
from specviz.paths import IMPORTED_FROM

Progress = Callable[[str, "float | None"], None]
_HERE: set[str] = set()
_LOCK = threading.Lock()


def prepare_apart(name: str, progress: Progress) -> None:
    """Fetch and unpack what is not here yet, once for this process. Raises ModelUnavailable, and whatever ``progress`` raises,
    which ends the other process."""
    with _LOCK:
        if name in _HERE:
            return
    command = [sys.executable, "-m", "specviz.models.hub.apart", name]
    with subprocess.Popen(
        command, cwd=IMPORTED_FROM, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as child:
        # Its error stream has bars of other libraries, which would fill the pipe if nobody read them.
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(child.stderr or ()), daemon=True)
        reader.start()
        refusal = ""
        try:
            for line in child.stdout or ():
                said = json.loads(line)
                if refusal := said.get("refused", ""):
                    break
                progress(said["message"], said["share"])
        except BaseException:
            child.kill()
            raise
        child.wait()
        reader.join()
    if refusal or child.returncode:
        raise ModelUnavailable(refusal or f"{name} could not be fetched: {(errors or ['no reason was given'])[-1].strip()}")
    with _LOCK:
        _HERE.add(name)


def main(name: str) -> None:
    """Fetch, a line of JSON for each word of progress, or one that says why not."""
    from specviz.models.hub.prepare import prepare

    try:
        prepare(name, lambda message, share: print(json.dumps({"message": message, "share": share}), flush=True))
    except SpecvizError as problem:
        print(json.dumps({"refused": str(problem)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
