"""Convert a server's responses in a file to trace files."""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.commands.console import print_message
from specviz.errors import BadInput
from specviz.trace import store

HELP = "convert a server's responses to traces"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a server's response, or several in a list or one a line")
    parser.add_argument("--out", metavar="F", help=f"the trace file to write ({store.SUFFIX}); further ones are F-2 and so on")


def execute(options: argparse.Namespace) -> int:
    """Write the traces, and name the unread parts."""
    from specviz.interop import imports

    found = imports.read(options.file)
    for note in found.notes:
        print_message(note)
    if found.unread:
        print_message(f"Not read: {', '.join(found.unread)}.")
    if not options.out:
        raise BadInput("Name the trace file to write with --out F.")
    for number, trace in enumerate(found.traces, start=1):
        place = Path(options.out)
        if number > 1:
            place = place.with_name(f"{place.name.removesuffix(store.SUFFIX)}-{number}{store.SUFFIX}")
        store.write(trace, place)
        print_message(f"Wrote {place}: {len(trace.steps)} steps.")
    return 0
