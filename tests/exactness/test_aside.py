"""What is only shown costs a method nothing: notes are made in time that is counted aside, whatever the method.

A run that somebody looks at and one that nobody does must work alike in their timed phases. That is counted, not timed: tensor
operations inside drafting, judging and learning but outside ``context.untimed``, and notes that are made there.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specviz.engine.loop import Decoding, Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.engine.to_device import clear_device_caches
from specviz.methods.registry import all_methods
from specviz.trace.notes.base import TypedNote
from tests.support.ladder import PICTURES, PLAIN, ROWS
from tests.support.tiny.text import Letters

WARM = Warp(1.0)
SHOWN = {row.method: row for row in reversed([*ROWS, *PICTURES]) if row.method in all_methods()}
"""Each method by its first row of the ladder."""


class Watch(TorchDispatchMode):
    """Counts tensor operations in the timed phases of a decoding, and the notes made there, but for what is aside."""

    def __init__(self):
        super().__init__()
        self.operations = 0
        self.notes: list[str] = []
        self.aside_notes: list[str] = []
        self._run: Decoding | None = None
        self._timed = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += self.counts
        return func(*args, **(kwargs or {}))

    @property
    def counts(self):
        return self._timed > 0 and self._run is not None and not self._run.untimed._depth

    def made(self, note):
        if self._timed:
            (self.notes if self.counts else self.aside_notes).append(note)

    def timing(self, one, *names):
        """Let the methods ``names`` of ``one`` count as timed."""
        for name in names:
            plain = getattr(one, name)

            def timed(*given, plain=plain):
                self._timed += 1
                try:
                    return plain(*given)
                finally:
                    self._timed -= 1

            object.__setattr__(one, name, timed)

    def over(self, row, level):
        place = row.open(PLAIN)
        composition = place.compose(row.method, row.values, WARM, {})
        self.timing(composition.controller, "draft", "observe")
        self.timing(composition.acceptance, "judge")
        self._run = Decoding(place.target, composition, place.prompt, WARM, Noise(7), 12, Recorder(Letters(), level))
        with self:
            for step in self._run.steps():
                assert not step.pruned or step.considered is not None, "what was pruned is counted whole, before any cap"
        assert self._run.outcome.reason in ("budget", "eos"), self._run.outcome.message
        return self._run.outcome.output_ids


def test_every_method_is_watched():
    assert set(SHOWN) == set(all_methods()) - {"autoregressive"}, "a new method needs a row of the ladder"


@pytest.mark.spread(1)
@pytest.mark.parametrize("row", SHOWN.values(), ids=str)
def test_what_is_only_shown_is_made_aside(row, monkeypatch):
    watches: list[Watch] = []
    plain = TypedNote.to_note

    def noted(note):
        made = plain(note)
        watches[-1].made(made.type)
        return made

    monkeypatch.setattr(TypedNote, "to_note", noted)
    written = []
    for level in ("off", "tree", "off"):  # the first one fills what is computed once a process
        watches.append(Watch())
        clear_device_caches()  # or it hangs on what ran before
        torch.manual_seed(0)
        written.append(watches[-1].over(row, level))
    _, seen, unseen = watches
    assert written[1] == written[2], "looking must not change the text"
    assert seen.aside_notes and not seen.notes, f"made on the method's clock: {set(seen.notes)}"
    assert not unseen.notes and not unseen.aside_notes, f"made for nobody: {set(unseen.notes + unseen.aside_notes)}"
    # Fewer where what was computed aside is there already when the method comes to it.
    assert seen.operations <= unseen.operations
