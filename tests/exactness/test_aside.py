"""What is only shown costs a method nothing: notes are made in time that is counted aside, whatever the method.

A run that somebody looks at and one that nobody does must work alike in their timed phases. That is counted, not timed: tensor
operations inside drafting, judging and learning but outside ``context.untimed``, and notes that are made there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specviz.engine.interfaces import Composition
from specviz.engine.loop import Decoding
from specviz.engine.recorder import Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.engine.to_device import forget
from specviz.methods.registry import all_methods
from specviz.trace.schema import Note
from tests.support.tiny.text import Letters, tiny_target
from tests.support.worlds import hybrid
from tests.support.worlds.image import World
from tests.support.worlds.text import compose
from tests.support.worlds.vision import compose as vision
from tests.support.worlds.vision import world

WARM = Warp(1.0)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 3, 1, 4, 1, 5]
TREE = {"depth": 3, "width": 4, "nodes": 12}
Made = tuple[Any, Composition, Sequence[int]]


def text(name: str, **values: Any) -> Callable[[], Made]:
    """A method on the tiny text target."""

    def made() -> Made:
        target = tiny_target()
        return target, compose(name, values, target, WARM), PROMPT

    return made


def pictured(name: str, **values: Any) -> Callable[[], Made]:
    def made() -> Made:
        here = World()
        return here.target, here.compose(name, values, WARM), here.prompt

    return made


def seeing(name: str, **values: Any) -> Callable[[], Made]:
    def made() -> Made:
        here = world("smolvlm")
        return here.target, vision(name, values, here, WARM), here.prompt

    return made


def stree() -> Made:
    pair = hybrid.models("hybrid")
    return pair[0], hybrid.compose(hybrid.BEAM, *pair, WARM), PROMPT


METHODS: Mapping[str, Callable[[], Made]] = {
    "prompt_lookup": text("prompt_lookup"),
    "speculative_sampling": text("speculative_sampling", gamma=3),
    "token_recycling": text("token_recycling"),
    "stand": text("stand", nodes=12),
    "suffix_decoding": text("suffix_decoding"),
    "reader": text("reader"),
    "eagle": text("eagle"),
    "eagle2": text("eagle2", **TREE),
    "eagle3": text("eagle3", **TREE, rule="rejection"),
    "ddd": text("ddd", **TREE),
    "gto": text("gto", **TREE, compare=True),
    "traversal": text("traversal", shape="sparse"),
    "falcon": text("falcon", tree="fitted", nodes=20),
    "medusa": text("medusa", tree="published"),
    "polybasic": text("polybasic", middle="plain_copy", gathered=6, nodes=5),
    "easyspec": text("easyspec", drafter="draft", gamma=3),
    "owl": text("owl", depth=3, width=6, nodes=24),
    "howl": text("howl"),
    "diffuspec": text("diffuspec", longest=9, shortest=3),
    "deer": text("deer", block=6),
    "not_a_bandit": text("not_a_bandit", gamma=3),
    "bandit_ucb": text("bandit_ucb", gamma=3),
    "bandit_exp3": text("bandit_exp3", gamma=3),
    "stree": stree,
    "hivis": seeing("hivis", residuals="compare"),
    "dream": seeing("dream"),
    "language_only": seeing("language_only"),
    "lantern": pictured("lantern", nodes=24),  # what pays depends on how busy the machine is, and the picture on the tree
    "lantern_pp": pictured("lantern_pp"),
    "mulo_sd": pictured("mulo_sd"),
    "speculative_jacobi": pictured("speculative_jacobi"),
}


class Watch(TorchDispatchMode):
    """Counts tensor operations in the timed phases of a decoding, and the notes made there, but for what is aside."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.notes: list[str] = []
        self.aside_notes: list[str] = []
        self._run: Decoding | None = None
        self._timed = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += self.counts
        return func(*args, **(kwargs or {}))

    @property
    def counts(self) -> bool:
        return self._timed > 0 and self._run is not None and not self._run.untimed._depth

    def made(self, note: str) -> None:
        if self._timed:
            (self.notes if self.counts else self.aside_notes).append(note)

    def timing(self, one: Any, *names: str) -> None:
        """Let the methods ``names`` of ``one`` count as timed."""
        for name in names:
            plain = getattr(one, name)

            def timed(*given: Any, plain: Callable[..., Any] = plain) -> Any:
                self._timed += 1
                try:
                    return plain(*given)
                finally:
                    self._timed -= 1

            object.__setattr__(one, name, timed)

    def over(self, made: Made, level: str) -> list[int]:
        target, composition, prompt = made
        self.timing(composition.controller, "draft", "observe")
        self.timing(composition.acceptance, "judge")
        self._run = Decoding(target, composition, prompt, WARM, Noise(7), 20, Recorder(Letters(), level))
        with self:
            for step in self._run.steps():
                assert not step.pruned or step.considered is not None, (
                    "what was pruned is counted whole, not as far as it travels"
                )
        assert self._run.outcome.reason in ("budget", "eos"), self._run.outcome.message
        return self._run.outcome.output_ids


def test_every_method_is_watched() -> None:
    assert set(METHODS) == set(all_methods()) - {"autoregressive"}, "a new method needs a line above"


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", METHODS)
def test_what_is_only_shown_is_made_aside(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watches: list[Watch] = []
    plain = Note.__init__

    def noted(note: Note, *given: Any, **named: Any) -> None:
        plain(note, *given, **named)
        watches[-1].made(note.type)

    monkeypatch.setattr(Note, "__init__", noted)
    written = []
    for level in ("off", "tree", "off"):  # the first one fills what is computed once a process
        watches.append(Watch())
        forget()  # or it hangs on what ran before
        torch.manual_seed(0)
        written.append(watches[-1].over(METHODS[name](), level))
    _, seen, unseen = watches
    assert written[1] == written[2], "looking must not change the text"
    assert seen.aside_notes and not seen.notes, f"made on the method's clock: {set(seen.notes)}"
    assert not unseen.notes and not unseen.aside_notes, f"made for nobody: {set(unseen.notes + unseen.aside_notes)}"
    # Fewer where what was computed aside is there already when the method comes to it.
    assert seen.operations <= unseen.operations
