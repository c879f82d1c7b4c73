"""DiffuSpec (2510.02358): an off-the-shelf masked-diffusion model yields a lattice, and a search a coherent path through it."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import TOKEN_EXACT, Card, number, parts, switch


@dataclass(frozen=True)
class Parameters:
    """The paper drafts 20 to 30 tokens with a model of 7 billion parameters. The shipped one has 1.4 million, so the default
    maximum is a fifth of that. The minimum is 2: with 4 the length could not follow a drafted end of the text."""

    longest: int = number(6, 1, 32, "Maximum masks in a block, and their number if the length is fixed; published: 30.", "tokens")
    shortest: int = number(2, 1, 32, "Minimum masks in a block; published: 20.", "tokens")
    stride: int = number(2, 0, 32, "Masks added while all drafted tokens are accepted; published: 10.", "tokens")
    adaptive: bool = switch(
        True, "Adapt the length: shorter after a drafted end of the text, longer while all is accepted; off: the maximum."
    )
    mass: float = number(0.8, 0.05, 1.0, "Share of a position's distribution that its column of the lattice holds.", step=0.05)
    cap: int = number(15, 1, 64, "Maximum tokens in a column.", "tokens")
    beams: int = number(3, 1, 16, "Beams of the search.", "beams")
    weight: float = number(
        0.5, 0.0, 1.0, "The drafter's weight in a path's score, the rest being the n-gram model's; 1 takes each position's "
        "likeliest token without a search.", step=0.05,
    )  # fmt: skip


@Card(name="diffuspec", exactness=TOKEN_EXACT, family="heads", parameters=Parameters, weights=("masked_lm", "ngrams"))
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    from specviz.methods.diffuspec.lattice import Gauge, MaskedBlock, Searched

    given = parameters
    drafter = MaskedBlock(resources.drafter_weights("masked_lm"), given.longest)
    gauge = Gauge(min(given.shortest, given.longest), given.longest, given.stride)
    search = (given.mass, given.cap, given.beams, given.weight, given.adaptive)
    controller = Searched(drafter, resources.drafter_weights("ngrams"), gauge, resources.target.eos_ids, *search)
    return parts.Composition(controller, parts.Match(), draft_name="masked_lm")
