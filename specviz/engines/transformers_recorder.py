"""``specviz.record``: runs of transformers' own ``generate`` as traces, assisted or not, text unchanged.

    with specviz.record(model, tokenizer) as recording:
        model.generate(**inputs, assistant_model=assistant, max_new_tokens=64)
    recording.trace.show()

Every drafter that ``generate`` knows goes through a candidate generator: what it proposes, and what the target made of it, is
noted where transformers itself passes it on. Nothing is drawn, so a sampled text is the same with and without recording.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from specviz.engines.chain import ChainRound, ChainSteps, NumberedTokens, TokenTexts, by_name, fitted_run
from specviz.errors import BadInput, SpecvizError, shown
from specviz.models.text.text import TokenizerText
from specviz.trace.metrics import summarise
from specviz.trace.schema import CUTS, Baseline, Divergence, Nanoseconds, Run, Sampling, Trace
from specviz.version import __version__

TOP = 3
METHODS = {
    "PromptLookupCandidateGenerator": ("Prompt lookup in transformers", "prompt_lookup_num_tokens"),
    "EarlyExitCandidateGenerator": ("Early exit in transformers", "assistant_early_exit"),
    "MTPCandidateGenerator": ("Multi-token prediction in transformers", "use_mtp"),
    "DFlashTokenCandidateGenerator": ("DFlash in transformers", "speculation_type"),
}
"""Title of what a candidate generator does, and the setting that chose it; all others have an assistant model."""
FIRST_PASS = "transformers reads the prompt in the first pass, which scores the first draft as well: its time is in step 1."
UNTOLD = "No tokenizer was given: tokens are shown by number. Pass it as specviz.record(model, tokenizer)."

Gap = Callable[[Sequence[int]], float]
"""From tokens behind the prompt to how far apart the target's two best logits are after them."""


@dataclass
class Recording:
    """Runs noted so far, one trace for each ``generate``. A plain one with the same prompt is the baseline of the others."""

    traces: list[Trace] = field(default_factory=list)

    @property
    def trace(self) -> Trace:
        """The last one. Raises BadInput where nothing was recorded."""
        if not self.traces:
            raise BadInput("Nothing was recorded: call model.generate inside the block, with one prompt at a time.")
        return self.traces[-1]

    def _repr_html_(self) -> str:
        """What a notebook shows: the last run's stage."""
        return self.trace._repr_html_()

    def add(self, trace: Trace, gap: Gap) -> None:
        """Keep a trace, and let every plain run be the baseline of those with its prompt; ``gap`` is for that prompt."""
        self.traces.append(trace)
        plain = [one for one in self.traces if one.run.method == PLAIN]
        self.traces = [_beside(one, plain, gap) if one.run.method != PLAIN else one for one in self.traces]


PLAIN = "transformers_generate"


@contextmanager
def record(model: Any, tokenizer: Any = None) -> Iterator[Recording]:
    """Record what ``model.generate`` does inside the block; the answer's ``traces`` hold it, ``trace`` the last one.

    ``model`` is a transformers model that generates text from token ids, ``tokenizer`` shows its tokens. Runs that are no
    chain of one prompt (several prompts at once, beams, an encoder) are generated as always and not recorded, with a warning.
    """
    if not callable(getattr(model, "generate", None)):
        raise BadInput("specviz.record takes a transformers model with a generate method.")
    recording, text = Recording(), _texts(model, tokenizer)
    plain, busy = model.generate, threading.Lock()

    def generate(*given: Any, **asked: Any) -> Any:
        # A model that drafts for itself calls its own generate, and another thread's run would be heard in this one.
        if not busy.acquire(blocking=False):
            return plain(*given, **asked)
        noted = _Noted(model)
        try:
            with noted.listening():
                output = plain(*given, **asked)
        finally:
            busy.release()
        try:
            recording.add(noted.trace(output, text), noted.gap)
        except SpecvizError as problem:
            warnings.warn(f"This call of generate was not recorded: {problem}", stacklevel=2)
        return output

    model.generate = generate
    try:
        yield recording
    finally:
        del model.generate  # the class's own is behind it


def _texts(model: Any, tokenizer: Any) -> TokenTexts:
    if tokenizer is None:
        return NumberedTokens()
    return TokenizerText(tokenizer, str(getattr(model, "name_or_path", "") or type(model).__name__), 1 << 20)


@dataclass
class _Pass:
    """One call of the target. Host times in nanoseconds."""

    begun: int
    ended: int = 0


class _Noted:
    """What one ``generate`` shows of itself to hooks."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._config: Any = None
        self._generator: Any = None
        self._began = time.perf_counter_ns()
        self._prompt: list[int] | None = None
        self._passes: list[_Pass] = []
        self._rounds: list[ChainRound] = []
        self._drafted: list[int] = []
        self._q: list[float | None] = []
        self._length = 0
        self._marks: dict[str, int] = {}
        self._aside = 0
        self._problem = ""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note what happens inside. All hooks are taken off again, whatever happens."""
        model = self._model
        prepare, choose = model._prepare_generation_config, model._get_candidate_generator

        def prepared(*given: Any, **asked: Any) -> Any:
            answer = prepare(*given, **asked)
            if self._config is None:  # what a drafter then asks for its own sake is another
                self._config = answer[0] if isinstance(answer, tuple) else answer
            return answer

        def chosen(*given: Any, **asked: Any) -> Any:
            self._generator = self._heard(choose(*given, **asked))
            return self._generator

        before = model.register_forward_pre_hook(self._enter, with_kwargs=True)
        after = model.register_forward_hook(self._leave)
        model._prepare_generation_config, model._get_candidate_generator = prepared, chosen
        try:
            yield
        finally:
            del model._prepare_generation_config, model._get_candidate_generator
            before.remove()
            after.remove()

    def _now(self) -> int:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
        return time.perf_counter_ns()

    def _enter(self, module: Any, given: tuple[Any, ...], asked: dict[str, Any]) -> None:
        ids = asked.get("input_ids", given[0] if given else None)
        if self._prompt is None:
            if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.shape[0] != 1:
                self._problem = "it is about one prompt of token ids at a time"
            self._prompt = [] if self._problem else ids[0].tolist()
        self._passes.append(_Pass(self._now()))

    def _leave(self, module: Any, given: tuple[Any, ...], output: Any) -> None:
        self._passes[-1].ended = self._now()

    def _heard(self, generator: Any) -> Any:
        """The generator itself, its two methods overheard: transformers asks what class it is of."""
        propose, learn = generator.get_candidates, generator.update_candidate_strategy

        def proposed(input_ids: Tensor, *given: Any, **asked: Any) -> Any:
            self._marks["draft"] = self._now()
            ids, logits = propose(input_ids, *given, **asked)
            self._marks["drafted"] = self._now()
            if self._prompt is None:  # the assistant comes before the target's first pass
                self._prompt = input_ids[0].tolist()
            self._length = input_ids.shape[1]
            self._drafted = ids[0, self._length :].tolist()
            self._q = _of(logits, self._drafted)
            self._aside = self._now() - self._marks["drafted"]
            return ids, logits

        def learned(input_ids: Tensor, scores: Tensor, num_matches: int, *given: Any, **asked: Any) -> Any:
            judged = self._now()
            self._rounds.append(self._round(input_ids[0, self._length :].tolist(), scores[0], judged))
            began = self._now()
            answer = learn(input_ids, scores, num_matches, *given, **asked)
            last = self._rounds[-1]
            spent = self._now() - began
            self._rounds[-1] = replace(last, time=replace(last.time, draft=last.time.draft + spent))
            return answer

        generator.get_candidates, generator.update_candidate_strategy = proposed, learned
        return generator

    def _round(self, emitted: list[int], scores: Tensor, judged: int) -> ChainRound:
        """``scores`` [depth, vocab] are the target's, after the processors. The pass is the last one heard."""
        started = time.perf_counter_ns()
        # With a device of its own the pass is the model's last call; an assistant that is the model itself calls it too.
        passed = self._passes[-1]
        log_p = torch.log_softmax(scores.float(), -1)
        best = log_p.topk(min(TOP, log_p.shape[-1]), -1)
        top = [
            list(zip(ids, [min(1.0, p) for p in values], strict=True))
            for ids, values in zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
        ]
        after = len(emitted) - 1
        time_spent = Nanoseconds(
            draft=self._marks["drafted"] - self._marks["draft"],
            verify=passed.ended - passed.begun,
            judge=max(0, judged - passed.ended),
            host=max(0, passed.begun - self._marks["drafted"] - self._aside),
            aside=self._aside + time.perf_counter_ns() - started,
        )
        known = any(q is not None for q in self._q)
        sampled = bool(self._config is not None and self._config.do_sample)
        return ChainRound(
            self._drafted, emitted, time_spent,
            rule="ratio" if sampled and known else "match" if sampled else "greedy",
            q=self._q, p=_of(scores[None], self._drafted), bonus_p=float(log_p[after, emitted[-1]].exp().clamp(0, 1)),
            top=top,
            draft_calls=max(1, len(self._drafted)) if known else 1,
        )  # fmt: skip

    def trace(self, output: Any, text: TokenTexts) -> Trace:
        """The run as a trace. Raises BadInput where it was none that a trace can hold."""
        spent = (self._now() - self._began) / 1e9
        sequences = output if isinstance(output, Tensor) else getattr(output, "sequences", None)
        problem = self._problem or self._unfit(sequences)
        if problem:
            raise BadInput(f"{problem}.")
        assert self._prompt is not None and sequences is not None
        ids = sequences[0].tolist()[len(self._prompt) :]
        ends = _ends(self._config)
        reason, message = self._ending(ids, ends, spent)
        steps = ChainSteps(text, self._prompt[-1], len(self._prompt), ends)
        for told in self._rounds or self._plain(ids):
            at_end = len(steps.output) + len(told.emitted) == len(ids)
            steps.add(replace(told, cut=reason if at_end and reason in CUTS else None))
        return Trace(fitted_run(self._run(text)), tuple(steps.steps), steps.end(reason, message))

    def gap(self, output: Sequence[int]) -> float:
        """How far apart the target's two best logits are after ``output``, as one pass over the text computes them."""
        assert self._prompt is not None
        with torch.inference_mode():
            ids = torch.tensor([[*self._prompt, *output]], device=self._model.device)
            best = self._model(input_ids=ids, use_cache=False).logits[0, -1].float().topk(2).values
        return float(best[0] - best[1])

    def _ending(self, ids: Sequence[int], ends: frozenset[int], spent: float) -> tuple[str, str]:
        """Why the run was over after these tokens and seconds, and a sentence where a stopping criterion ended it."""
        if ids[-1] in ends:
            return "eos", ""
        assert self._prompt is not None
        if len(ids) >= _budget(self._config, len(self._prompt)):
            return "budget", ""
        most = getattr(self._config, "max_time", None)
        if most is not None and spent >= most:
            return "time_limit", f"generate had max_time={most:g} s."
        found = getattr(self._config, "stop_strings", None)
        named = f", such as one of the stop strings {shown(found)}" if found else ""
        return "cancelled", f"A stopping criterion of generate ended it{named}."

    def _unfit(self, sequences: Any) -> str:
        """Why a trace cannot hold this run, or nothing."""
        config = self._config
        if self._prompt is None or config is None or not isinstance(sequences, Tensor):
            return "the model was never called"
        if len(sequences) != 1 or config.num_beams > 1:
            return "a trace holds one text, and this call wrote several"
        if getattr(self._model.config, "is_encoder_decoder", False):
            return "the model has an encoder"
        written = sequences.shape[1] - len(self._prompt)
        if sequences[0, : len(self._prompt)].tolist() != self._prompt or written < 1:
            return "its prompt was not read as token ids in one pass"
        emitted = [token for told in self._rounds for token in told.emitted]
        if self._rounds and emitted != sequences[0, len(self._prompt) :].tolist():
            return "the rounds do not add up to the text"
        if not self._rounds and len(self._passes) != written:
            return f"it called the model {len(self._passes)} times for {written} tokens"
        return ""

    def _plain(self, ids: Sequence[int]) -> Iterator[ChainRound]:
        """A run without a draft: a pass a token. What lies between two passes is the host's."""
        ends = [one.begun for one in self._passes[1:]] + [self._passes[-1].ended]
        for token, one, end in zip(ids, self._passes, ends, strict=True):
            spent = Nanoseconds(verify=one.ended - one.begun, host=max(0, end - one.ended))
            yield ChainRound((), (token,), spent, rule="none", draft_calls=0)

    def _run(self, text: TokenTexts) -> Run:
        model, config = self._model, self._config
        kind = type(self._generator).__name__
        title, setting = METHODS.get(kind, ("Assisted generation in transformers", "num_assistant_tokens"))
        assistant = getattr(self._generator, "assistant_model", None)
        sampled = bool(config.do_sample)
        assert self._prompt is not None
        loose = getattr(config, "assistant_ensemble_weight", None)
        settings = {setting: getattr(config, setting, None), "assistant_ensemble_weight": loose}
        if self._generator is None:
            title, settings = "generate in transformers", {}
        elif setting == "num_assistant_tokens" and assistant is not None:
            settings[setting] = getattr(self._generator, "num_assistant_tokens", None)
        untold = isinstance(text, NumberedTokens)
        return Run(
            modality="text",
            target=_name(model),
            method=PLAIN if self._generator is None else "transformers_assisted",
            title=title,
            exactness="exact" if loose is None else "relaxed",
            bound="" if loose is None else f"Drafts are judged by a mixture of target and drafter, weight {loose}.",
            parameters=by_name(settings),
            sampling=Sampling(
                float(config.temperature or 1.0) if sampled else 0.0,
                int(config.top_k or 0) if sampled else 0,
                float(config.top_p or 1.0) if sampled else 1.0,
            ),
            device=str(model.device),
            dtype=str(model.dtype).removeprefix("torch."),
            tier="eager",
            prompt="".join(text.pieces([], self._prompt)),
            prompt_pieces=text.pieces([], self._prompt),
            max_new_tokens=_budget(config, len(self._prompt)),
            draft="" if assistant is None or assistant is model else _name(assistant),
            libraries={"specviz": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
            recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            warnings=tuple(word for word in (FIRST_PASS, UNTOLD if untold else "") if word),
        )


def _name(model: Any) -> str:
    """What it was loaded by: a hub's name, the last part of a folder's path, or else its class."""
    name = str(getattr(model, "name_or_path", "") or "")
    return (Path(name).name if Path(name).is_absolute() else name)[:1024] or type(model).__name__


def _of(logits: Tensor | None, tokens: Sequence[int]) -> list[float | None]:
    """Probabilities of ``tokens`` under rows of ``logits`` [1, depth, vocab]; None where the drafter has none.

    Rows may be fewer than tokens, or of another vocabulary.
    """
    if logits is None or logits.dim() != 3 or not tokens:
        return [None] * len(tokens)
    rows = logits[0, : len(tokens)].float()
    known = [token for token in tokens[: len(rows)] if token < rows.shape[-1]]
    if len(known) < min(len(rows), len(tokens)):
        return [None] * len(tokens)
    log_p = torch.log_softmax(rows[: len(known)], -1).gather(-1, torch.tensor(known, device=rows.device)[:, None])[:, 0]
    values = [min(1.0, value) for value in log_p.exp().tolist()]
    return [*values, *([None] * (len(tokens) - len(values)))]


def _ends(config: Any) -> frozenset[int]:
    ids = getattr(config, "eos_token_id", None)
    return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)


def _budget(config: Any, prompt: int) -> int:
    if config.max_new_tokens is not None:
        return int(config.max_new_tokens)
    return max(0, int(config.max_length or 0) - prompt)


def _beside(trace: Trace, plain: Sequence[Trace], gap: Gap) -> Trace:
    """The trace with the plain run of its prompt as baseline, where there is one and it has none yet."""
    end = trace.end
    if end is None or end.baseline is not None:
        return trace
    for one in plain:
        if one.end is None or one.run.prompt_pieces != trace.run.prompt_pieces or one.run.sampling != trace.run.sampling:
            continue
        own, other = end.output_ids, one.end.output_ids
        place = next((at for at, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), None)
        if place is None and len(own) != len(other):
            place = min(len(own), len(other))
        divergence = None if place is None else Divergence(place, gap(other[:place]))
        baseline = Baseline(tuple(step.time.total for step in one.steps), 0, place is None, divergence)
        metrics = summarise(trace.steps, end.reason, end.prefill_ns, baseline)
        return replace(trace, end=replace(end, baseline=baseline, metrics=metrics))
    return trace
