"""DiffuSpec (2510.02358): a masked-diffusion model gives a lattice of tokens, and a search finds a coherent path."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, number, parts, switch


@dataclass(frozen=True)
class Parameters:
    """The paper drafts 20 to 30 tokens with a model of 7 billion parameters; the shipped model has 1.4 million.

    The minimum is 2 rather than a proportional 4, so that drafts can shrink after a drafted end of text.
    """

    longest: int = number(6, 1, 32, "Maximum block length; the paper uses 30.", "tokens")
    shortest: int = number(2, 1, 32, "Minimum block length; the paper uses 20.", "tokens")
    stride: int = number(2, 0, 32, "Tokens added to the block after full acceptance; the paper uses 10.", "tokens")
    adaptive: bool = switch(
        True, "Adapt the block length: shorter after a drafted end of text, longer after full acceptance; off: the maximum."
    )
    mass: float = number(0.8, 0.05, 1.0, "Probability that the candidates of a position must cover (top-p).", step=0.05)
    cap: int = number(15, 1, 64, "Maximum candidates per position.", "tokens")
    beams: int = number(3, 1, 16, "Beam width of the search.", "beams")
    weight: float = number(
        0.5, 0.0, 1.0, "Weight of the drafter in the score of a path, against the n-gram model; 1 takes the most likely token "
        "of every position.", step=0.05,
    )  # fmt: skip


@Card(name="diffuspec", exactness=TOKEN_EXACT, family="heads", parameters=Parameters, weights=("masked_lm", "ngrams"))
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    from specviz.methods.diffuspec.lattice import Gauge, MaskedBlock, Searched

    given = parameters
    drafter = MaskedBlock(resources.drafter_weights("masked_lm"), given.longest)
    gauge = Gauge(min(given.shortest, given.longest), given.longest, given.stride)
    search = (given.mass, given.cap, given.beams, given.weight, given.adaptive)
    controller = Searched(drafter, resources.drafter_weights("ngrams"), gauge, resources.target.eos_ids, *search)
    return parts.Composition(controller, parts.Match(), draft_name="masked_lm")
