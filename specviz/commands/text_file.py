"""Prompts from a file or from standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from specviz.errors import BadInput


def read_text(name: str | Path) -> str:
    """Read a file, or standard input for the ``name`` "-", without a byte order mark. Lines end in "\\n".

    Raises BadInput for a file that cannot be read or is not UTF-8.
    """
    what = "The prompt on the input" if str(name) == "-" else f"The prompt file {name}"
    try:
        content = sys.stdin.buffer.read() if str(name) == "-" else Path(name).read_bytes()
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as problem:
        raise BadInput(f"{what} is not UTF-8 text (byte {problem.start + 1}); save it as UTF-8.") from None
    except (OSError, ValueError) as problem:  # a name with a zero byte is a ValueError
        raise BadInput(f"{what} cannot be read: {getattr(problem, 'strerror', None) or problem}.") from problem
