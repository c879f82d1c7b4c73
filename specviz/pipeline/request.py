"""A user's request, and the memory of one user's earlier runs for later ones. Plain data: nothing here loads torch."""

from __future__ import annotations

import math
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from specviz.errors import BadInput, shown
from specviz.methods.registry import build, get

MOST_NEW_TOKENS = 4096
MAX_PROMPT_CHARACTERS = 1_000_000
"""Maximum number of characters of a prompt in a trace."""
MOST_ENTRIES = 8
"""Maximum number of values in the memory of one user's earlier runs."""
_WHOLE = {"max_new_tokens": (1, MOST_NEW_TOKENS), "top_k": (0, 2**31 - 1), "seed": (0, 2**63 - 1)}
_TEXTS = ("method", "prompt", "target", "dtype", "device", "tier", "record")
_SWITCHES = ("raw", "baseline")
_REAL = dict.fromkeys(("temperature", "top_p", "guidance"), (-math.inf, math.inf))


@dataclass(frozen=True)
class Request:
    """Settings of one run. ``raw`` skips the chat template; "auto" chooses dtype, device and tier for the machine.

    ``image`` is a path, or a PNG's or JPEG's bytes, for targets that read pictures. ``parameters`` are the method's own, given
    by name and stored as its dataclass: they are checked only here. ``guidance`` is the guidance scale of images, by default the
    target's. ``temperature`` is by default 0 for text, and 1 for images, which require sampling.
    """

    method: str
    prompt: str
    target: str = "smollm2-135m-instruct"
    draft: str | None = None
    raw: bool = False
    max_new_tokens: int = 128
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    tier: str = "auto"
    parameters: Any = field(default_factory=dict)
    baseline: bool = False
    record: str = "tree"
    image: bytes | str | None = None
    guidance: float | None = None

    def __post_init__(self) -> None:
        """Raise BadInput naming a field of a wrong type or value."""
        for name in _TEXTS:
            _text(name, getattr(self, name))
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise BadInput.of_field(name, name, f"is {shown(getattr(self, name))}; give True or False.")
        for name, (low, high) in (_WHOLE | _REAL).items():
            value = getattr(self, name)
            if value is None and name in ("temperature", "guidance"):
                continue
            convert = operator.index if name in _WHOLE else float  # the former accepts numpy's integers, but not 1.5
            try:
                number = math.nan if isinstance(value, bool | str | bytes) else convert(value)
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if not low <= number <= high or math.isinf(number):
                kind = f"whole number from {low} to {high}" if name in _WHOLE else "finite number"
                raise BadInput.of_field(name, name, f"is {shown(value)}; choose a {kind}.")
            object.__setattr__(self, name, number)
        if self.draft is not None:
            _text("draft", self.draft)
        pictures = self.image if isinstance(self.image, list | tuple) else (self.image,)
        if not all(isinstance(picture, bytes | str | PathLike | None) for picture in pictures):
            raise BadInput(f"image is {shown(self.image)}; give the path of a picture, or the bytes of a PNG or JPEG.")
        method = get(self.method)
        if not isinstance(self.parameters, Mapping | method.parameters):
            raise BadInput(f'parameters is {shown(self.parameters)}; give a dict of the method\'s own, such as {{"nodes": 8}}.')
        if isinstance(self.parameters, Mapping):
            object.__setattr__(self, "parameters", build(method.parameters, self.parameters, method.title))
        if not self.prompt.strip():
            raise BadInput("The prompt is empty; write what the model should continue, or draw.")
        if len(self.prompt) > MAX_PROMPT_CHARACTERS:
            raise BadInput(f"The prompt has {len(self.prompt):,} characters; give at most {MAX_PROMPT_CHARACTERS:,}.")


def refuse_unused(request: Request, reasons: Mapping[str, str]) -> None:
    """Raise BadInput if a field is set that this kind of target ignores; ``reasons`` maps fields to explanations."""
    for name, sentence in reasons.items():
        if getattr(request, name) not in (None, False):
            raise BadInput(f"{request.target} takes no {name}: {sentence}; leave {name} out.")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise BadInput.of_field(name, name, f"is {shown(value)}; give text.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput.of_field(name, name, "contains half of a surrogate pair, which is not a character; remove it.") from None


@dataclass
class _Entry:
    """A stored value, and the lowest generation not yet given to a run that uses it."""

    value: Any
    generation: int = 0


class Memory:
    """Memory of one user's earlier runs: n-gram stores, successor matrices. Bounded; evicts the least recently used."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[Any, ...], _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def entry(self, key: tuple[Any, ...], make: Callable[[], Any]) -> _Entry:
        """Return the entry of ``key``, with its generation, built by ``make`` if absent."""
        with self._lock:
            if key not in self._entries:
                self._entries[key] = _Entry(make())
            self._entries.move_to_end(key)
            while len(self._entries) > MOST_ENTRIES:
                self._entries.popitem(last=False)
            return self._entries[key]

    def next_generation(self, entries: Sequence[_Entry]) -> int:
        """Return the generation of a run that uses ``entries``: above those of all earlier runs that used one of them, 0 for the
        first run. Two runs that share an entry never get the same generation, even if they decode at the same time."""
        with self._lock:
            generation = max((entry.generation for entry in entries), default=0)
            for entry in entries:
                entry.generation = generation + 1
            return generation


class RunMemory:
    """Entries that one run takes from a memory while its method is composed."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._entries: list[_Entry] = []

    def remember(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return the value of ``key``, built by ``make`` if absent, and record its entry."""
        self._entries.append(self._memory.entry(key, make))
        return self._entries[-1].value

    def generation(self) -> int:
        """Return the run's generation (:meth:`Memory.next_generation`). Call it once, after all entries are recalled."""
        return self._memory.next_generation(self._entries)
