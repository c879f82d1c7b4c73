"""``specviz.record``: runs of transformers' own ``generate``, assisted or not, as traces.

    with specviz.record(model, tokenizer) as recording:
        model.generate(**inputs, assistant_model=assistant, max_new_tokens=64)
    recording.trace.show()

Each drafter of ``generate`` is a candidate generator; its proposals and the target's verdicts are recorded where transformers
passes them on. Recording draws no random numbers, so sampled text is unchanged.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import torch
import transformers
from torch import Tensor

from specviz.engine.interfaces import TokenText
from specviz.errors import BadInput, SpecvizError, shown
from specviz.interop.chain import ChainRound, ChainSteps, NumberedTokens, agreement, by_name, run_of, short_name
from specviz.models.text.text import TokenizerText
from specviz.trace.metrics import summarise
from specviz.trace.schema import CUTS, Baseline, Divergence, Nanoseconds, Run, Sampling, Trace

TOP = 3
METHODS = {
    "PromptLookupCandidateGenerator": ("Prompt lookup in transformers", "prompt_lookup_num_tokens"),
    "EarlyExitCandidateGenerator": ("Early exit in transformers", "assistant_early_exit"),
    "MTPCandidateGenerator": ("Multi-token prediction in transformers", "use_mtp"),
    "DFlashTokenCandidateGenerator": ("DFlash in transformers", "speculation_type"),
}
"""Title of each candidate generator's method, and the setting that selects it; other generators use an assistant model."""
FIRST_PASS = "transformers reads the prompt in the first pass, which scores the first draft as well: its time is in step 1."
NO_TOKENIZER = "No tokenizer was given: tokens are shown by number. Pass it as specviz.record(model, tokenizer)."


@dataclass
class Recording:
    """Runs recorded so far, one trace per ``generate``. A plain run is the baseline of the other runs on the same prompt."""

    traces: list[Trace] = field(default_factory=list)

    @property
    def trace(self) -> Trace:
        """The last trace. Raises BadInput if nothing was recorded."""
        if not self.traces:
            raise BadInput("Nothing was recorded: call model.generate inside the block, with one prompt at a time.")
        return self.traces[-1]

    def _repr_html_(self) -> str:
        """Return the stage with the last run, for a notebook."""
        return self.trace._repr_html_()

    def add(self, trace: Trace, gap: Callable[[Sequence[int]], float]) -> None:
        """Add a trace, and make plain runs the baselines of runs that share their settings and have no baseline yet.

        ``gap``: function that returns the gap between the top two target logits after an output.
        """
        self.traces.append(trace)
        shared = attrgetter("prompt_pieces", "sampling", "max_new_tokens", "device", "dtype")
        plain = {shared(one.run): one for one in self.traces[::-1] if one.run.method == PLAIN}
        for place, one in enumerate(self.traces):
            base, end = plain.get(shared(one.run)), one.end
            if base is None or end is None or end.baseline or one.run.method == PLAIN:
                continue
            assert base.end is not None
            own, other = end.output_ids, base.end.output_ids
            parts, times = agreement(own, other), tuple(step.time.total for step in base.steps)
            baseline = Baseline(times, 0, own == other, None if own == other else Divergence(parts, gap(other[:parts])))
            metrics = summarise(one.steps, end.reason, end.prefill_ns, baseline)
            self.traces[place] = one.replace(end=end.replace(baseline=baseline, metrics=metrics))


PLAIN = "transformers_generate"


@contextmanager
def record(model: Any, tokenizer: Any = None) -> Iterator[Recording]:
    """Record the calls of ``model.generate`` inside the ``with`` block.

    ``model``: a transformers model that generates text from token ids. ``tokenizer``: for the text of tokens. Only single prompts
    without beams or encoder are recorded; other calls run as usual, with a warning.
    """
    if not callable(getattr(model, "generate", None)):
        raise BadInput("specviz.record takes a transformers model with a generate method.")
    recording = Recording()
    text = NumberedTokens() if tokenizer is None else TokenizerText(tokenizer, _name(model), 1 << 20)
    plain, busy = model.generate, threading.Lock()

    def generate(*given: Any, **asked: Any) -> Any:
        # Exclude nested calls by models that draft for themselves, and calls by other threads.
        if not busy.acquire(blocking=False):
            return plain(*given, **asked)
        call = _Call(model)
        try:
            with call.listening():
                output = plain(*given, **asked)
        finally:
            busy.release()
        try:
            recording.add(call.trace(output, text), call.gap)
        except SpecvizError as problem:
            warnings.warn(f"This call of generate was not recorded: {problem}", stacklevel=2)
        return output

    with _instead(model, "generate", generate):
        yield recording


@contextmanager
def _instead(model: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of ``model`` inside the ``with`` block by an instance attribute, which hides the class's method."""
    setattr(model, name, function)
    try:
        yield
    finally:
        delattr(model, name)


class _Call:
    """One call of ``generate``, recorded by hooks on the model. Times are host times in nanoseconds."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._config: Any = None
        self._generator: Any = None
        self._propose: Callable[..., Any]
        self._learn: Callable[..., Any]
        self._began = time.perf_counter_ns()
        self._prompt: list[int] = []
        self._passes: list[tuple[int, int]] = []
        """Start and end of each call of the target."""
        self._rounds: list[ChainRound] = []
        self._length = 0
        """Number of tokens before this round's draft."""
        self._drafted: list[int] = []
        self._q: list[float | None] = []
        self._drafting = (0, 0)
        self._aside = self._entered = 0
        self._problem = ""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record the call inside the ``with`` block, and remove the hooks afterwards."""
        model = self._model
        prepare, choose = model._prepare_generation_config, model._get_candidate_generator

        def prepared(*given: Any, **asked: Any) -> Any:
            answer = prepare(*given, **asked)
            if self._config is None:  # later calls come from the drafter
                self._config = answer[0] if isinstance(answer, tuple) else answer
            return answer

        def chosen(*given: Any, **asked: Any) -> Any:
            """Return the generator with two methods wrapped; transformers checks its class, so a different object is not
            accepted.
            """
            generator = self._generator = choose(*given, **asked)
            self._propose, self._learn = generator.get_candidates, generator.update_candidate_strategy
            generator.get_candidates, generator.update_candidate_strategy = self._proposed, self._learned
            return generator

        with (
            model.register_forward_pre_hook(self._enter, with_kwargs=True),
            model.register_forward_hook(self._leave),
            _instead(model, "_prepare_generation_config", prepared),
            _instead(model, "_get_candidate_generator", chosen),
        ):
            yield

    def _now(self) -> int:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
        return time.perf_counter_ns()

    def _enter(self, module: Any, given: tuple[Any, ...], asked: dict[str, Any]) -> None:
        if not self._prompt:
            ids = asked.get("input_ids", given[0] if given else None)
            if isinstance(ids, Tensor) and ids.dim() == 2 and ids.shape[0] == 1:
                self._prompt = ids[0].tolist()
            else:
                self._problem = "only one prompt of token ids at a time can be recorded"
        self._entered = self._now()

    def _leave(self, module: Any, given: tuple[Any, ...], output: Any) -> None:
        self._passes.append((self._entered, self._now()))

    def _proposed(self, input_ids: Tensor, *given: Any, **asked: Any) -> Any:
        began = self._now()
        ids, logits = self._propose(input_ids, *given, **asked)
        self._drafting = began, self._now()
        text = input_ids[0].tolist()
        self._prompt = self._prompt or text  # the assistant runs before the target's first pass
        self._length = len(text)
        self._drafted = ids[0, self._length :].tolist()
        self._q = _probabilities(logits, self._drafted)
        self._aside = self._now() - self._drafting[1]
        return ids, logits

    def _learned(self, input_ids: Tensor, scores: Tensor, *given: Any, **asked: Any) -> Any:
        """Store the round; ``scores`` [1, depth, vocab] are the target's, after the logits processors.

        The target's pass is the last one recorded. Earlier ones may be an assistant's, if the assistant is the model itself.
        """
        judged = self._now()
        emitted, (began, ended), (draft, drafted) = input_ids[0, self._length :].tolist(), self._passes[-1], self._drafting
        p = scores[0].float().softmax(-1)
        best = p.topk(min(TOP, p.shape[-1]), -1)
        top = [list(zip(*row, strict=True)) for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        known = any(q is not None for q in self._q)
        known_p, bonus_p = _probabilities(scores, self._drafted), float(p[len(emitted) - 1, emitted[-1]])
        learning = self._now()
        answer = self._learn(input_ids, scores, *given, **asked)
        self._rounds.append(ChainRound(
            self._drafted, emitted,
            Nanoseconds(
                draft=drafted - draft + self._now() - learning, verify=ended - began, judge=max(0, judged - ended),
                host=max(0, began - drafted - self._aside), aside=self._aside + learning - judged,
            ),
            rule=("ratio" if known else "match") if self._config.do_sample else "greedy",
            q=self._q, p=known_p, bonus_p=bonus_p, top=top, draft_calls=max(1, len(self._drafted)) if known else 1,
        ))  # fmt: skip
        return answer

    def trace(self, output: Any, text: TokenText) -> Trace:
        """Return the run as a trace. Raises BadInput if a trace cannot hold the run."""
        spent = (self._now() - self._began) / 1e9
        sequences: Any = output if isinstance(output, Tensor) else getattr(output, "sequences", None)
        if problem := self._problem or self._unfit(sequences):
            raise BadInput(f"{problem}.")
        ids = sequences[0].tolist()[len(self._prompt) :]
        found = self._config.eos_token_id
        ends = frozenset([] if found is None else [found] if isinstance(found, int) else found)
        most, strings = (getattr(self._config, name, None) for name in ("max_time", "stop_strings"))
        named = f", such as one of the stop strings {shown(strings)}" if strings else ""
        reason, message = "cancelled", f"A stopping criterion of generate ended it{named}."
        if ids[-1] in ends:
            reason, message = "eos", ""
        elif len(ids) >= self._budget():
            reason, message = "budget", ""
        elif most and spent >= most:
            reason, message = "time_limit", f"generate had max_time={most:g} s."
        steps = ChainSteps(text, self._prompt[-1], len(self._prompt), ends)
        rounds = self._rounds
        if not rounds:  # no draft: one pass per token, and the time between passes is host time
            nexts = [began for began, _ in self._passes[1:]] + [self._passes[-1][1]]
            rounds = [
                ChainRound((), (token,), Nanoseconds(verify=ended - began, host=max(0, later - ended)))
                for token, (began, ended), later in zip(ids, self._passes, nexts, strict=True)
            ]
        for round_ in (*rounds[:-1], replace(rounds[-1], cut=reason if reason in CUTS else None)):
            steps.add(round_)
        return Trace(self._run(text), tuple(steps.steps), steps.end(reason, message))

    def gap(self, output: Sequence[int]) -> float:
        """Return the gap between the top two target logits after ``output``, from one pass over the text."""
        with torch.inference_mode():
            ids = torch.tensor([[*self._prompt, *output]], device=self._model.device)
            best = self._model(input_ids=ids, use_cache=False).logits[0, -1].float().topk(2).values
        return float(best[0] - best[1])

    def _budget(self) -> int:
        config = self._config
        return int(config.max_new_tokens or max(0, (config.max_length or 0) - len(self._prompt)))

    def _unfit(self, sequences: Any) -> str:
        """Return the reason why a trace cannot hold this run, or ""."""
        if not self._prompt or self._config is None or not isinstance(sequences, Tensor):
            return "the model was never called"
        if len(sequences) != 1 or self._config.num_beams > 1:
            return "a trace holds one text, and this call wrote several"
        if getattr(self._model.config, "is_encoder_decoder", False):
            return "the model has an encoder"
        ids, start = sequences[0].tolist(), len(self._prompt)
        written = ids[start:]
        if ids[:start] != self._prompt or not written:
            return "the prompt was not prefilled as token ids in one pass"
        if self._rounds and [token for round_ in self._rounds for token in round_.emitted] != written:
            return "the rounds do not add up to the text"
        if not self._rounds and len(self._passes) != len(written):
            return f"generate called the model {len(self._passes)} times for {len(written)} tokens"
        return ""

    def _run(self, text: TokenText) -> Run:
        model, config, generator = self._model, self._config, self._generator
        title, setting = METHODS.get(type(generator).__name__, ("Assisted generation in transformers", "num_assistant_tokens"))
        assistant = getattr(generator, "assistant_model", None)
        chosen = config if assistant is None or setting != "num_assistant_tokens" else generator
        loose = getattr(config, "assistant_ensemble_weight", None)
        settings = {setting: getattr(chosen, setting, None), "assistant_ensemble_weight": loose}
        bound = f"Drafts are judged by a mixture of target and drafter, weight {loose}."
        relaxed = {} if loose is None else {"exactness": "relaxed", "bound": bound}
        return run_of(
            _name(model),
            "transformers_assisted" if generator else PLAIN,
            title if generator else "generate in transformers",
            Sampling(float(config.temperature or 1.0), int(config.top_k or 0), float(config.top_p or 1.0))
            if config.do_sample
            else Sampling(),
            self._budget(),
            **relaxed,
            parameters=by_name(settings) if generator else {},
            device=str(model.device),
            dtype=str(model.dtype).removeprefix("torch."),
            tier="eager",
            prompt_pieces=text.pieces([], self._prompt),
            draft="" if assistant in (None, model) else _name(assistant),
            libraries={"torch": torch.__version__, "transformers": transformers.__version__},
            warnings=(FIRST_PASS, NO_TOKENIZER) if isinstance(text, NumberedTokens) else (FIRST_PASS,),
        )


def _name(model: Any) -> str:
    """Return a model's name: the hub id, the last part of the folder's path, or the class."""
    return short_name(getattr(model, "name_or_path", None)) or type(model).__name__


def _probabilities(logits: Tensor | None, tokens: Sequence[int]) -> list[float | None]:
    """Return the probabilities of ``tokens`` under ``logits`` [1, depth, vocab], None for tokens without a row.

    Rows over a smaller vocabulary give no probabilities.
    """
    known: list[float] = []
    if logits is not None and logits.dim() == 3 and tokens:
        p = logits[0, : len(tokens)].float().softmax(-1)
        if max(own := list(tokens[: len(p)]), default=0) < p.shape[-1]:
            known = p[range(len(own)), own].tolist()
    return [*known, *[None] * (len(tokens) - len(known))]
