"""Drafters of this project that read only tokens, in vLLM's slot for a custom class (``method: custom_class``).

``SPECVIZ_VLLM_DRAFTER='{"method": "prompt_lookup", "parameters": {"occurrence": "latest"}}'`` selects one; ``python -m specviz
run --method … --engine vllm`` prints the whole command. In this slot vLLM passes rows of a batch that it reorders, without
request ids. A row is therefore matched to the drafter that has read the beginning of its text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from specviz.drafting.memory.output_store import OutputStore
from specviz.drafting.memory.prompt_copy import PromptCopy
from specviz.drafting.memory.retrieval import Retrieval
from specviz.drafting.memory.suffix_guess import LengthRule
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Round
from specviz.errors import BadInput
from specviz.interop.vllm_plugin.labels import DRAFTER, drafter_of

Chain = Callable[[Context], Sequence[int]]
_NOTHING: Any = None
"""Placeholder for arguments that token-only drafters do not read."""


class _Text:
    """One request's tokens, the drafter that has read them, and the function that drafts a chain."""

    def __init__(self, drafter: NullDrafter, chain: Chain, ids: np.ndarray) -> None:
        self.drafter, self.chain, self.ids = drafter, chain, ids
        drafter.begin(context(ids), None)

    def reads(self, ids: np.ndarray) -> None:
        """Update the text to ``ids``, and let the drafter observe the new tokens."""
        emitted = ids[len(self.ids) :].tolist()
        if emitted:
            self.drafter.observe(Round(context(self.ids), _NOTHING, _NOTHING, _NOTHING, emitted))
            self.ids = ids.copy()


class Drafter:
    """Proposer that vLLM builds for ``--speculative-config '{"method": "custom_class", "model": ".….Drafter", …}'``."""

    def __init__(self, vllm_config: Any) -> None:
        self._method, self._own = drafter_of(os.environ.get(DRAFTER, ""))
        if self._method not in ("prompt_lookup", "suffix_decoding") or getattr(self._own, "shape", "path") != "path":
            raise BadInput(f"{DRAFTER} names {self._method}, which cannot draft a chain from tokens alone.")
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._window = int(vllm_config.model_config.max_model_len)
        self._store = OutputStore(self._own.remembered) if self._method == "suffix_decoding" and self._own.remembered else None
        self._texts: list[_Text] = []

    def load_model(self, *given: Any, **named: Any) -> None:
        """Do nothing, since there is no model."""

    def propose(self, sampled: Sequence[Sequence[int]], lengths: Any, tokens: Any, **more: Any) -> list[list[int]]:
        """Draft a chain [row][token] for each row, empty without a draft.

        ``sampled`` [row][token]: tokens of this round. ``tokens`` [row, position] includes them, up to ``lengths`` [row].
        """
        rows = [np.asarray(tokens[row, : int(lengths[row])]) for row in range(len(sampled))]
        texts = [self._text_of(ids, len(new)) for ids, new in zip(rows, sampled, strict=True)]
        for ended in self._texts:
            ended.drafter.close()
        self._texts = list(filter(None, texts))
        chains = []
        for text, ids, new in zip(texts, rows, sampled, strict=True):
            room, asked = min(self._most, self._window - len(ids) - 1), context(ids, self._window - len(ids))
            # no draft for a row that is still in prefill
            chains.append(list(text.chain(asked))[:room] if text and len(new) and room > 0 else [])
        return chains

    def _text_of(self, ids: np.ndarray, new: int) -> _Text | None:
        """Return the row's text: the longest known text that it continues, or a new text. None during prefill."""
        known = [one for one in self._texts if np.array_equal(ids[: len(one.ids)], one.ids)]
        if known:
            text = max(known, key=lambda one: len(one.ids))
            self._texts.remove(text)
        elif new:
            text = _Text(*self._fresh(), ids[:-new].copy())
        else:
            return None
        text.reads(ids)
        return text

    def _fresh(self) -> tuple[NullDrafter, Chain]:
        own = self._own
        if self._method == "prompt_lookup":
            copy = PromptCopy(own.longest, own.shortest, own.copied, own.occurrence == "latest", own.partial)
            return copy, lambda asked: copy.continuation(asked)[0]
        retrieval = Retrieval(self._store, LengthRule(own.most, own.factor, own.offset, own.floor, tree=False), own.threshold)
        return retrieval, lambda asked: retrieval.guess(asked)[0].tokens


def context(ids: np.ndarray, room: int = 0) -> Context:
    """Return a context with the tokens so far; token-only drafters do not read the other fields."""
    return Context(ids.tolist(), len(ids), 0, _NOTHING, _NOTHING, torch.device("cpu"), room, record_notes=False)
