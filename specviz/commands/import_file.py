"""Convert a file of server responses to trace files."""

from __future__ import annotations

import argparse

from specviz.commands.console import print_message
from specviz.trace import store


def execute(options: argparse.Namespace) -> int:
    from specviz.interop.responses import read_file

    found = read_file(options.file)
    for note in found.notes:
        print_message(note)
    if found.unread:
        print_message(f"Ignored fields: {', '.join(found.unread)}.")
    for number, trace in enumerate(found.traces, start=1):
        place = options.out
        if number > 1:
            place = place.with_name(f"{place.name.removesuffix(store.SUFFIX)}-{number}{store.SUFFIX}")
        store.write(trace, place)
        print_message(f"Wrote {place}, steps: {len(trace.steps)}.")
    return 0
