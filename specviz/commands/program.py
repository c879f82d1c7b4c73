"""Run a program that a model wrote, and a check of it, in a process with limits."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile

from specviz.errors import BadInput

PASSED, REFUSED = 42, 43
"""Exit statuses. A program that exits with 0 before the check has not passed."""
SECONDS = 5
"""Maximum CPU time of a program. Its wall-clock time is limited to twice as many seconds."""
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)

# Modules are imported before the hook is set, since a hook cannot tell a program's own reads from those of an import.
SANDBOX = """
import os, re, resource, sys
import bisect, collections, copy, csv, dataclasses, datetime, enum, functools, heapq, io, itertools, json, math, operator
import random, statistics, string, textwrap, time, typing
program = sys.stdin.read()
for limit, value in (("CPU", {seconds}), ("AS", 1 << 30), ("FSIZE", 1 << 16), ("CORE", 0), ("NPROC", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (value, value))
def refuse(event, details):
    harmless = ("compile", "exec", "import", "marshal.loads", "code.__new__", "time.sleep")
    if event not in harmless and not event.startswith("object."):
        os._exit({refused})
code = compile(program, "program", "exec")
sys.stdout = sys.stderr = io.StringIO()
sys.addaudithook(refuse)
try:
    exec(code, {{"__name__": "program"}})
except BaseException as problem:
    sys.__stderr__.write(f"{{type(problem).__name__}}: {{problem}}"[:200])
    sys.__stderr__.flush()
    os._exit(1)
os._exit({passed})
"""


def program_in(answer: str) -> str:
    """Return the code blocks of an answer, or the whole answer if there are none."""
    return "\n".join(FENCED.findall(answer)) or answer


def check_program(answer: str, check: str) -> None:
    """Run the program in ``answer``, then the statements of ``check``. Raises BadInput if either fails.

    The process has no network, writes no file, starts no other process and reads no file after the start; its memory is limited
    to 1 GiB.
    """
    command = [sys.executable, "-I", "-S", "-c", SANDBOX.format(seconds=SECONDS, passed=PASSED, refused=REFUSED)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        try:
            done = subprocess.run(
                command, input=f"{program_in(answer)}\n{check}\n".encode(), cwd=folder, env={}, timeout=2 * SECONDS,
                stdout=subprocess.DEVNULL, stderr=errors, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BadInput(f"The program did not end within {2 * SECONDS} seconds.") from None
        errors.seek(0)
        problem = errors.read()[-200:].decode(errors="replace").strip()
    if done.returncode == REFUSED:
        raise BadInput("The program asked for a file, the network or another process.")
    if done.returncode != PASSED:
        raise BadInput(f"The program failed: {problem or f'exit status {done.returncode}'}.")
