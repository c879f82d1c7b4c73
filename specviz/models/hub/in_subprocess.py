"""``python -m specviz.models.hub.in_subprocess NAME``: download and unpack a model in a separate process.

torch's worker threads do not survive a fork, so a process that has computed hangs after forking. A ZeroGPU Space forks the app
for each run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

from specviz.errors import ModelUnavailable, SpecvizError
from specviz.models.hub.cache_dir import Progress
from specviz.paths import IMPORTED_FROM

_HERE: set[str] = set()


def load_in_subprocess(name: str, progress: Progress) -> None:
    """Fetch and unpack the model if it is missing, once per process. Raises ModelUnavailable.

    An error raised by ``progress`` kills the subprocess and is raised again.
    """
    if name in _HERE:
        return
    command = [sys.executable, "-m", "specviz.models.hub.in_subprocess", name]
    # stderr goes to a file: other libraries' progress bars would fill an unread pipe.
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(command, cwd=IMPORTED_FROM, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8") as child,
    ):
        refusal = ""
        try:
            for line in child.stdout or ():
                report = json.loads(line)
                if refusal := report.get("refused", ""):
                    break
                progress(report["message"], report["share"])
        except BaseException:
            child.kill()
            raise
        if child.wait() and not refusal:
            errors.seek(0)
            reason = (errors.read().splitlines() or ["no reason was given"])[-1].strip()
            refusal = f"{name} could not be fetched: {reason}"
    if refusal:
        raise ModelUnavailable(refusal)
    _HERE.add(name)


def main(name: str) -> None:
    """Fetch the model. Prints each progress report as one line of JSON, and a refusal as another."""
    from specviz.models.hub.prepare import prepare

    try:
        prepare(name, lambda message, share: print(json.dumps({"message": message, "share": share}), flush=True))
    except SpecvizError as problem:
        print(json.dumps({"refused": str(problem)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
