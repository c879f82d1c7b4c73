"""Updates of a streaming event, each sent together with all before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def gathered(updates: Iterator[dict[Any, Any]]) -> Iterator[dict[Any, Any]]:
    """Each dictionary with what the earlier ones held and it does not.

    Gradio sends only what differs from the answer before and edits that answer in place in the browser, which draws when
    it finds the time. So an update that the next answer leaves out may never be drawn at all. An empty
    one takes all earlier ones back.
    """
    sent: dict[Any, Any] = {}
    for update in updates:
        sent = {**sent, **update} if update else {}
        yield sent
