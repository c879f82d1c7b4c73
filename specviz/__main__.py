"""The command line: ``python -m specviz COMMAND``. Errors are one sentence on the error stream, never a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from specviz.commands.console import parser, print_message
from specviz.errors import SpecvizError

BAD_REQUEST = 2
BROKEN = 1
STOPPED = 130
PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 2 for a user's error, 1 for a bug, 130 when stopped, 141 for a closed
    pipe."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        options = parser().parse_args(arguments)
        status = int(options.execute(options))
        sys.stdout.flush()
        return status
    except SpecvizError as problem:
        return _failed(str(problem), BAD_REQUEST)
    except KeyboardInterrupt:
        return _failed("Stopped.", STOPPED)
    except BrokenPipeError:
        # The reader is gone; this keeps Python from complaining when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as problem:
        if os.environ.get("SPECVIZ_DEBUG") == "1":
            traceback.print_exc()
        message = " ".join(str(problem).split())[:200]
        what = f"{type(problem).__name__}: {message}" if message else type(problem).__name__
        return _failed(f"specviz failed ({what}); please report this with the output of SPECVIZ_DEBUG=1.", BROKEN)


def _failed(sentence: str, status: int) -> int:
    print_message(" ".join(sentence.split()))
    return status


if __name__ == "__main__":
    sys.exit(main())
