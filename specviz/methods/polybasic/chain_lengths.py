"""Calibrated accepted lengths of a cascade's levels, and whether an intermediate model pays by them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from specviz.engine.cost import CostCurve
from specviz.errors import ModelUnavailable
from specviz.methods.polybasic.cost_model import CascadeForecast, Costs, Lengths, forecast


@dataclass(frozen=True)
class ChainLengths:
    """``alone`` are the lengths of ``target`` with ``drafter`` right below it, ``middles`` those with each model between."""

    target: str
    drafter: str
    source: str
    alone: Lengths
    middles: dict[str, Lengths]

    @staticmethod
    def load(path: Path) -> tuple[ChainLengths, ...]:
        """All that were calibrated. Raises ModelUnavailable where the file is missing or damaged."""
        try:
            return tuple(_read(one) for one in json.loads(path.read_text(encoding="utf-8"))["chains"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ModelUnavailable(
                f"The calibrated lengths in {path.name} cannot be read ({problem}): make them again with "
                f"`python -m specviz calibrate {path.stem}`."
            ) from problem

    @staticmethod
    def find(path: Path, target: str, drafter: str) -> ChainLengths | None:
        """Those of this pair, or None where nobody calibrated it."""
        known = ChainLengths.load(path)
        return next((one for one in known if (one.target, one.drafter) == (target, drafter)), None)

    def save(self, path: Path) -> None:
        """Write them beside those of other pairs. Of this pair only the models for the middle that were not asked again stay."""
        others: list[ChainLengths] = []
        middles = dict(self.middles)
        for one in ChainLengths.load(path) if path.is_file() else ():
            if (one.target, one.drafter) == (self.target, self.drafter):
                middles = {**one.middles, **middles}
            else:
                others.append(one)
        mine = ChainLengths(self.target, self.drafter, self.source, self.alone, middles)
        chains = [asdict(one) for one in (*others, mine)]
        path.write_text(json.dumps({"chains": chains}, indent=1) + "\n", encoding="utf-8")


def _read(found: dict[str, Any]) -> ChainLengths:
    middles = {kind: Lengths(**one) for kind, one in found["middles"].items()}
    return ChainLengths(found["target"], found["drafter"], found["source"], Lengths(**found["alone"]), middles)


class Costed(Protocol):
    """A model for the middle, as far as choosing between several goes."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def branches(self) -> bool: ...

    @property
    def cost(self) -> Callable[[], CostCurve]: ...


@dataclass(frozen=True)
class Weighed:
    """A model for the middle, the buffer that suits it, and what it is expected to do; None where nobody calibrated it."""

    middle: Any
    block: int
    forecast: CascadeForecast | None

    @property
    def gain(self) -> float:
        """Expected speed-up over the chain without it; unknown counts as none."""
        return self.forecast.gain if self.forecast else 1.0

    def told(self) -> str:
        """The model with its forecast, in words."""
        found = self.forecast
        if found is None:
            return f"{self.middle.title}: never calibrated"
        return (
            f"{self.middle.title}: {found.gain:.2f} times the chain of two (its pass costs {found.ratio:.2f} of the target's, "
            f"by the published condition it may cost {found.bound:.2f}: margin {found.margin:+.2f})"
        )


def warning(best: Weighed, candidates: Sequence[Weighed], recipe: str = "") -> str:
    """What the user should know of the model taken among these candidates, or nothing where it should pay.

    ``recipe`` is the command that calibrates it, if one does.
    """
    if best.forecast is None:
        unknown = f"How much of {best.middle.title} this target keeps was never calibrated, so whether it pays is unknown"
        return f"{unknown}: `{recipe}` finds out." if recipe else f"{unknown}."
    if best.forecast.pays:
        return ""
    if len(candidates) == 1:
        return f"This model in the middle is not expected to pay on this machine. {_capital(best.told())}. No other was weighed."
    others = "; ".join(one.told() for one in candidates)
    return f"None of the {len(candidates)} models weighed for the middle is expected to pay on this machine. {_capital(others)}."


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def weighed(
    middle: Costed, above: CostCurve, forward: float, known: ChainLengths | None, nodes: int, block: int, unknown: int
) -> Weighed:
    """``forward`` is a drafter forward in milliseconds; ``block`` 0 takes the buffer that pays most, or ``unknown`` where
    nothing is known.
    """
    lengths = known.middles.get(middle.name) if known else None
    if known is None or lengths is None:
        return Weighed(middle, block or unknown, None)
    return Weighed(middle, *forecast(Costs(above, middle.cost(), forward, nodes), known.alone, lengths, block))
