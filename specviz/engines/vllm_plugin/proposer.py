"""Drafters of ours in vLLM's slot for a class (``method: custom_class``): those that read the tokens so far and nothing else.

``SPECVIZ_VLLM_DRAFTER='{"method": "prompt_lookup", "parameters": {"occurrence": "latest"}}'`` says which, and
``python -m specviz run --method … --engine vllm`` prints the whole command. vLLM names no request in this slot, only rows of its
batch, which it moves: a row's text is taken up by the drafter that has read its beginning.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch

from specviz.drafters.memory.output_store import OutputStore
from specviz.drafters.memory.prompt_copy import PromptCopy
from specviz.drafters.memory.retrieval import Retrieval
from specviz.drafters.memory.suffix_guess import LengthRule
from specviz.engine.interfaces import Context, Round
from specviz.engines.vllm_plugin.labels import DRAFTER
from specviz.errors import BadInput
from specviz.methods.parameters import build
from specviz.methods.registry import get


class Continues(Protocol):
    """A drafter of one text, and the chain that it drafts now."""

    def begin(self, context: Context, prefill: None) -> None: ...

    def observe(self, finished: Round) -> None: ...

    def close(self) -> None: ...


class _Text:
    """One request's tokens and its drafter."""

    def __init__(self, drafter: Continues, ids: np.ndarray, prompt: int) -> None:
        self.drafter, self.ids = drafter, ids[:prompt].copy()
        drafter.begin(context(self.ids.tolist(), 0), None)
        self.reads(ids)

    def goes_on_as(self, ids: np.ndarray) -> bool:
        """Whether ``ids`` begins with what was read."""
        return len(ids) >= len(self.ids) and bool(np.array_equal(ids[: len(self.ids)], self.ids))

    def reads(self, ids: np.ndarray) -> None:
        """The text as it is now."""
        emitted = ids[len(self.ids) :].tolist()
        if emitted:
            told = Round(context(self.ids.tolist(), 0), *cast(Any, (None, None, None)), emitted)
            self.drafter.observe(told)
            self.ids = ids.copy()


class Drafter:
    """What vLLM makes of ``--speculative-config '{"method": "custom_class", "model": ".….Drafter", …}'``."""

    def __init__(self, vllm_config: Any) -> None:
        self._method, self._own = _wanted()
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._window = int(vllm_config.model_config.max_model_len)
        self._store = OutputStore(self._own.remembered) if self._method == "suffix_decoding" else None
        self._texts: list[_Text] = []

    def load_model(self, *given: Any, **named: Any) -> None:
        """There is none."""

    def propose(self, sampled: Sequence[Sequence[int]], lengths: Any, tokens: Any, **more: Any) -> list[list[int]]:
        """A chain for each row [row][token], empty where nothing is drafted. ``sampled`` [row][token] are the tokens of this
        round, which ``tokens`` [row, position] holds already, up to ``lengths`` [row]."""
        rows = [(np.asarray(tokens[row, : int(lengths[row])]), len(new)) for row, new in enumerate(sampled)]
        texts = [self._text_of(ids, new) for ids, new in rows]
        for ended in self._texts:
            ended.drafter.close()
        self._texts = [text for text in texts if text is not None]
        # A row that still reads its prompt drafts nothing.
        return [self._chain(text, ids) if text is not None and new else [] for text, (ids, new) in zip(texts, rows, strict=True)]

    def _text_of(self, ids: np.ndarray, new: int) -> _Text | None:
        """The row's text, taken from those known or begun with its first token; None while it reads its prompt."""
        text = max((one for one in self._texts if one.goes_on_as(ids)), key=lambda one: len(one.ids), default=None)
        if text is not None:
            self._texts.remove(text)
            text.reads(ids)
        elif new:
            text = _Text(self._fresh(), ids, len(ids) - new)
        return text

    def _fresh(self) -> Continues:
        own = self._own
        if self._method == "prompt_lookup":
            return PromptCopy(own.longest, own.shortest, own.copied, own.occurrence == "latest", own.partial)
        rule = LengthRule(own.most, own.factor, own.offset, own.floor, tree=False)
        return Retrieval(self._store if own.remembered else None, rule, own.threshold)

    def _chain(self, text: _Text, ids: np.ndarray) -> list[int]:
        room = min(self._most, self._window - len(ids) - 1)
        if room <= 0:
            return []
        asked = context(ids.tolist(), self._window - len(ids))
        if isinstance(text.drafter, PromptCopy):
            return list(text.drafter.continuation(asked)[0])[:room]
        assert isinstance(text.drafter, Retrieval)
        return list(text.drafter.guess(asked)[0].tokens)[:room]


def context(ids: Sequence[int], room: int) -> Context:
    """The tokens so far as our drafters are shown them; the rest of a context is for drafters that these are not."""
    return Context(ids, len(ids), 0, *cast(Any, (None, None)), torch.device("cpu"), room, record_notes=False)


def _wanted() -> tuple[str, Any]:
    """The method and its parameters. Raises BadInput where the variable names none that fits the slot."""
    told = os.environ.get(DRAFTER, "")
    try:
        wanted = json.loads(told)
        name, parameters = str(wanted["method"]), wanted.get("parameters") or {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f'{DRAFTER} is {told[:200]!r}; give it as {{"method": "prompt_lookup", "parameters": {{}}}}.') from None
    own = build(get(name).parameters, parameters, get(name).title)
    if name not in ("prompt_lookup", "suffix_decoding") or (name == "suffix_decoding" and own.shape != "path"):
        raise BadInput(f"{DRAFTER} names {name}, which drafts no chain from the tokens alone.")
    return name, own
