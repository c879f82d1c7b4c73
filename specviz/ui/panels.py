"""Small pieces of HTML around the stage. Text from outside goes through ``markup``; nothing here carries a script."""

from __future__ import annotations

from specviz.methods.registry import Method, all_methods
from specviz.trace.schema import PHASES, Trace
from specviz.views.explain import Term, explain
from specviz.views.speed_table import amount
from specviz.views.theme import duration, markup

EXACTNESS = {
    (True, True): "exact, token for token",
    (True, False): "exact in law",
    (False, True): "relaxed",
    (False, False): "relaxed",
}
MEANING = {
    "exact, token for token": "With the same seed it writes the very tokens of the one-by-one run.",
    "exact in law": "Its output follows the target's own law; the same seed may draw other tokens.",
    "relaxed": "Its output law differs from the target's own, within a stated bound.",
}


MORE = '<button type="button" class="sp-link" data-sp-open="sp-figures">term by term ▸</button>'
"""Opens the fold under the stage; page.js listens."""


def exactness(method: Method) -> str:
    """In two or three words."""
    return EXACTNESS[method.exactness == "exact", method.token_exact]


def banner(message: str, kind: str = "error") -> str:
    """A message that cannot be overlooked, or nothing. ``kind`` is "error" or "note"."""
    if not message:
        return ""
    role = "alert" if kind == "error" else "status"
    return f'<p class="sp-say sp-say-{kind}" role="{role}">{markup(message)}</p>'


def summary(name: str, note: str = "") -> str:
    """Under the method's name: what it does, how exact it is, and, to be opened, what to watch. ``note`` is a recording's."""
    method = all_methods()[name]
    word = exactness(method)
    return (
        f'<p class="sp-summary">{markup(method.summary)} <b title="{markup(MEANING[word])}">{markup(word)}</b></p>'
        f'<details class="sp-watch"><summary>What to watch</summary><p>{markup(note or method.look_at)}</p></details>'
    )


def why(trace: Trace | None, timing: bool = False) -> str:
    """The speed-up in one number and the terms behind it. ``timing`` says that the one-by-one run is still to come."""
    terms = {term.name: term for term in explain(trace)} if trace is not None and trace.end is not None else {}
    if not terms:
        return '<p class="sp-why-none">Why it was faster, or not, stands here when the run is over.</p>'
    return f'<div class="sp-why">{_headline(terms, timing)}<dl>{"".join(_rows(terms))}</dl></div>'


def _headline(terms: dict[str, Term], timing: bool) -> str:
    measured = terms["measured"].value if "measured" in terms else None
    said = markup(terms["verdict"].sentence)
    if measured is None:
        why = "timing the one-by-one run …" if timing else "unknown: the one-by-one run was not timed"
        return f'<p title="{said}">Speed-up {MORE}</p><p>{why}</p>'
    word = "faster" if measured >= 1 else "slower"
    return f'<p title="{said}">Why {word} {MORE}</p><p><b>{measured:.2f}×</b> measured</p>'


def _rows(terms: dict[str, Term]) -> list[str]:
    rows = [_row(terms[name]) for name in ("predicted", "tau", "plain") if name in terms]
    costs = [terms[phase].value or 0.0 for phase in PHASES if phase in terms]
    if costs:
        parts = " + ".join(duration(terms[phase].value or 0.0) for phase in PHASES)
        rows.append(
            f'<dt title="draft + verify + judge + commit + host = {parts}">one step</dt><dd>{duration(sum(costs))}</dd>'
        )
    return rows


def _row(term: Term) -> str:
    return f'<dt title="{markup(term.sentence)}">{markup(term.label)}</dt><dd>{markup(amount(term))}</dd>'


def cards(modality: str | None = None) -> str:
    """A card for every method: what it does, what to watch, how exact it is, what it needs, where it comes from."""
    found = [one for one in all_methods().values() if modality is None or modality in one.modality]
    return f'<div class="sp-cards">{"".join(_card(one) for one in found)}</div>'


def _card(method: Method) -> str:
    word = exactness(method)
    needs = "a draft model with the target's tokenizer" if method.needs_draft else "nothing but the target"
    bound = f"<dt>Bound</dt><dd>{markup(method.bound)}</dd>" if method.bound else ""
    return (
        f'<article class="sp-card"><h3>{markup(method.title)} <span class="sp-tag" title="{markup(MEANING[word])}">'
        f"{markup(word)}</span></h3>"
        f"<p>{markup(method.summary)}</p><dl><dt>Watch</dt><dd>{markup(method.look_at)}</dd>"
        f"<dt>Needs</dt><dd>{needs}</dd>{bound}<dt>Paper</dt><dd>{_paper(method)}</dd></dl></article>"
    )


def _paper(method: Method) -> str:
    paper = method.paper
    if paper is None:
        return "none: this is how a model decodes without a draft"
    where = f"arXiv {paper.arxiv}" if paper.arxiv else ""
    listed = ", ".join(part for part in (f"{paper.authors} {paper.year}", paper.venue, where) if part)
    return f"<cite>{markup(paper.title)}</cite>, {markup(listed)}"
