"""A request with everything it names loaded and checked: what each kind of target fills in, and what runs do with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specviz.engine.cost import CostCurve, measure
from specviz.engine.interfaces import Composition
from specviz.engine.loop import Decoding
from specviz.engine.recorder import Recorder
from specviz.engine.sampling import Noise
from specviz.errors import BadInput
from specviz.methods.registry import Method, all_methods, get
from specviz.methods.resources import MethodResources
from specviz.request import Memory, Recollection, Request
from specviz.trace.schema import Step

Progress = Callable[[str, float | None], None]

KINDS = {"text": "text", "image": "images", "vision_language": "pictures and text"}
"""What targets of a modality work on, in words for a sentence."""

_CURVES: dict[tuple[str, ...], CostCurve] = {}
_CURVES_LOCK = threading.Lock()


@dataclass
class Prepared:
    """A request with everything it names loaded and checked; nothing has been decoded yet.

    ``loaded`` is the model as its loader gives it: it has a ``name`` and ``warnings``. ``text`` spells tokens.
    ``facts`` are further fields of the trace's run line that this kind of target fills. ``memory`` is the user's.
    """

    request: Request
    method: Method
    parameters: Any
    loaded: Any
    target: Any
    text: Any
    prompt_ids: list[int]
    parts: MethodResources
    modality: str = "text"
    budget: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    def __post_init__(self) -> None:
        self.budget = self.budget or self.request.max_new_tokens

    def compose(self, name: str | None = None, **changed: Any) -> Composition:
        """One run of the method, or of a parameterless one by ``name``, with some of the parts ``changed``.

        What it recalls from the memory gives the run its generation, so each run needs a composition of its own. Raises
        BadInput where a draft was asked for and the method drafts without one.
        """
        method, values = (self.method, self.parameters) if name is None else (get(name), get(name).parameters())
        recollection = Recollection(self.memory)
        made = method.compose(values, replace(self.parts, recall=recollection.recall, **changed))
        if name is None and self.request.draft and not made.draft_name:
            raise BadInput(f"{self.method.title} takes no draft: it drafts without a second model; leave draft out.")
        return replace(made, generation=recollection.generation())

    def decoding(
        self, composition: Composition, seed: int, record: str, cancel: threading.Event, trajectory: int = 0
    ) -> Decoding:
        """One run, ready to start, or with a number from 1 a trajectory that only teaches the drafter."""
        noise = Noise(seed, trajectory, composition.generation)
        warp, recorder = self.parts.warp, self.recorder(record)
        return Decoding(self.target, composition, self.prompt_ids, warp, noise, self.budget, recorder, cancel)

    def recorder(self, record: str) -> Recorder:
        """Who makes the steps of a run."""
        return Recorder(self.text, record, ends=frozenset(self.target.eos_ids))

    def told(self, step: Step, output: Sequence[int]) -> Step:
        """The step as it goes into the trace; ``output`` is all that was written up to and with it."""
        return step

    def closing(self, output: Sequence[int]) -> dict[str, Any]:
        """Further fields of the trace's end line."""
        return {}


def suited(name: str, modality: str, target: str) -> Method:
    """The method called ``name``. Raises BadInput naming those that run on such a target when it does not."""
    found = get(name)
    if modality not in found.modality:
        able = ", ".join(one.name for one in all_methods().values() if modality in one.modality) or "none yet"
        raise BadInput(
            f"{found.title} does not run on {target}, which works on {KINDS.get(modality, modality)}. Methods that do: {able}."
        )
    return found


def measured_curve(target: Any, progress: Progress) -> CostCurve:
    """The cost curve of this target here, measured once per process."""
    progress("Measuring what a pass costs here", None)
    rows = str(getattr(target, "rows", 1))  # a guided picture reads every code twice
    key = (target.name, str(target.device), str(target.dtype), target.tier, rows)
    with _CURVES_LOCK:
        if key not in _CURVES:
            _CURVES[key] = measure(target)
        return _CURVES[key]
