"""A method's note in a step, read with care: a trace file may come from anyone, and notes are free-form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specviz.errors import BadInput, BadTrace
from specviz.trace.schema import SKIPPED, Step, Trace

MOST_ROWS = 12


@dataclass(frozen=True)
class Story:
    """One note, or one entry of a list in it, and where it stands, for the message when something in it is wrong."""

    data: Mapping[str, Any]
    where: str

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number that is not negative."""
        value = self.data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(name, "a whole number")
        return value

    def maybe_whole(self, name: str) -> int | None:
        """A whole number that is not negative, or None where the note says null."""
        return None if self.data.get(name) is None else self.whole(name)

    def number(self, name: str) -> float:
        """A finite number."""
        value = _finite(self.data.get(name))
        if value is None:
            raise self.wrong(name, "a number")
        return value

    def maybe_number(self, name: str) -> float | None:
        """A finite number, or None where the note says null."""
        return None if self.data.get(name) is None else self.number(name)

    def share(self, name: str) -> float:
        """A number from 0 to 1; rounding in the file may have pushed it over the edge by a hair."""
        value = _finite(self.data.get(name))
        if value is None or not -1e-3 <= value <= 1 + 1e-3:
            raise self.wrong(name, "a number from 0 to 1")
        return min(1.0, max(0.0, value))

    def numbers(self, name: str, count: int) -> list[float]:
        """A list of ``count`` finite numbers."""
        found = [_finite(value) for value in self._list(name)]
        if len(found) != count or None in found:
            raise self.wrong(name, f"a list of {count} numbers")
        return [value for value in found if value is not None]

    def texts(self) -> list[str]:
        """The text of each of ``tokens``; their ids where the recorder knew no text."""
        tokens = self._list("tokens")
        texts = self.data.get("texts")
        if isinstance(texts, Sequence) and not isinstance(texts, str) and len(texts) == len(tokens):
            return [str(text) for text in texts]
        return [f"#{token}" for token in tokens]

    def tokens(self) -> list[int]:
        """The ids in ``tokens``."""
        found = self._list("tokens")
        if any(isinstance(token, bool) or not isinstance(token, int) for token in found):
            raise self.wrong("tokens", "a list of token ids")
        return list(found)

    def wholes(self, name: str, below: int = 1 << 40) -> list[int]:
        """A list of whole numbers from 0 to ``below``, not included."""
        found = list(self._list(name))
        if any(isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < below for one in found):
            raise self.wrong(name, f"a list of whole numbers below {below}")
        return found

    def levels(self, name: str, below: int) -> list[list[int]]:
        """A list of lists of whole numbers below ``below``."""
        rows = [Story({name: row}, f"{self.where}, {name} {place + 1}") for place, row in enumerate(self._list(name))]
        return [row.wholes(name, below) for row in rows]

    def names(self, name: str, most: int = MOST_ROWS) -> list[str]:
        """A list of words, the first few."""
        return [str(one) for one in self._list(name)[:most]]

    def lists(self, name: str, most: int = MOST_ROWS) -> list[list[float]]:
        """A list of lists of finite numbers, the first few."""
        rows = [Story({name: row}, f"{self.where}, {name} {place + 1}") for place, row in enumerate(self._list(name)[:most])]
        return [row.finite(name) for row in rows]

    def finite(self, name: str) -> list[float]:
        """A list of finite numbers, however many."""
        return self.numbers(name, len(self._list(name)))

    def part(self, name: str) -> Story | None:
        """An object inside the note, or None where the note says null."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return Story(value, f"{self.where}, {name}")

    def word(self, name: str, known: Sequence[str]) -> str:
        """One of the ``known`` words."""
        value = self.data.get(name)
        if not isinstance(value, str) or value not in known:
            raise self.wrong(name, f"one of {', '.join(known)}")
        return value

    def rows(self, name: str, most: int = MOST_ROWS) -> list[Story]:
        """The entries of a list of objects, the first few."""
        found = self._list(name)[:most]
        if any(not isinstance(row, Mapping) for row in found):
            raise self.wrong(name, "a list of objects")
        return [Story(row, f"{self.where}, {name} {place + 1}") for place, row in enumerate(found)]

    def rows_of_pairs(self, name: str, most: int = MOST_ROWS) -> list[tuple[float, float]]:
        """The entries of a list of pairs of numbers, the first few."""
        rows = [Story({name: row}, self.where).numbers(name, 2) for row in self._list(name)[:most]]
        return [(row[0], row[1]) for row in rows]

    def _list(self, name: str) -> Sequence[Any]:
        value = self.data.get(name)
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.wrong(name, "a list")
        return value

    def wrong(self, name: str, wanted: str) -> BadTrace:
        """What to raise when a field is not as it should be."""
        return BadTrace(f"{self.where}: {name} is not {wanted}; the trace was not written by specviz or is damaged.")


def story(trace: Trace, index: int, kind: str) -> tuple[Step, Story]:
    """The step at ``index`` and its note of that type. Raises BadInput when there is no such step or note."""
    if not 0 <= index < len(trace.steps):
        raise BadInput(f"There is no step {index}; the run has {len(trace.steps)}, counted from 0.")
    step = trace.steps[index]
    for note in step.notes:
        if note.type == kind:
            return step, Story(note.data, f"note {kind} of step {index + 1}")
    kinds = ", ".join(note.type for note in step.notes) or "none"
    raise BadInput(f"Step {index} of a {trace.run.title} run has no note {kind!r}; it has: {kinds}.")


def node_of(step: Step, row: Story) -> int:
    """The tree node that a row speaks of."""
    node = row.whole("node")
    if node >= len(step.nodes):
        raise BadTrace(f"{row.where}: there is no node {node} in this step; the trace is damaged.")
    return node


def drafted_as(step: Step, parent: int, token: int) -> str | None:
    """The verdict on the child of ``parent`` that carries this token, None when it was not drafted there."""
    return next((node.status for node in step.nodes if node.parent == parent and node.token == token), None)


def status_at(step: Step, node: int) -> str:
    """The verdict on a node."""
    return step.nodes[node].status if node < len(step.nodes) else SKIPPED


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
