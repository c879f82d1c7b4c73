"""HTML fragments around the stage. Untrusted text is escaped with ``markup``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

import gradio as gr

from specviz.figures.explain import Term, explain, step_cost_label
from specviz.figures.speed_table import amount
from specviz.figures.theme import duration, markup
from specviz.methods.registry import Method, Paper, all_methods, families
from specviz.trace import metrics
from specviz.trace.schema import PHASES, End, Run, Trace
from specviz.ui import theme
from specviz.ui.archive import Groups

ARXIV = "https://arxiv.org/abs/"
BASELINE = "autoregressive"
"""The method without a speed-up."""

UNRECORDED = '<p class="sp-summary">No run of this method is recorded here, so the stage is unchanged; run it live.</p>'
"""Note under the summary of a method without a recorded run."""


def _promise(method: Method) -> str:
    """Return the HTML of a method's exactness, with the meaning as a tooltip."""
    promise, meaning = method.exactness, theme.texts()["meaning"]
    words = str(meaning[promise.label])
    if promise.exception:
        words += " With {} “{}”: {}".format(*promise.exception, meaning[promise.exceptional.label])
    relaxed = " data-relaxed" * (str(promise) == "relaxed")
    return f'<b{relaxed} title="{markup(words)}">{markup(str(promise))}</b>'


def banner(message: str, note: bool = False) -> gr.HTML:
    """Return a banner with an error, or with a note if ``note``; hidden if the message is empty."""
    kind, role = ("note", "status") if note else ("error", "alert")
    html = f'<p class="sp-say sp-say-{kind}" role="{role}">{markup(message)}</p>'
    return gr.HTML(html if message else "", visible=bool(message))


def summary(name: str, note: str = "") -> str:
    """Return the HTML of a method's summary and exactness, with hints on what to watch, collapsed. ``note``: note of the
    recorded run.
    """
    method = all_methods()[name]
    return (
        f'<p class="sp-summary">{markup(method.summary)} {_promise(method)} {_link(method.paper)}</p>'
        f'<details class="sp-watch"><summary>What to watch</summary><p>{markup(note or method.look_at)}</p></details>'
    )


def hardware(sentence: str) -> str:
    """Return the HTML of the hardware description, repeated as a tooltip because a narrow column truncates it."""
    return f'<p title="{escape(sentence)}">{escape(sentence)}</p>'


def speed_explanation(trace: Trace | None, timing: bool = False, prefix: str = "sp") -> str:
    """Return the HTML of a run's speed-up and the terms that explain it.

    ``timing``: whether the baseline is still being timed; ``prefix``: prefix of the tab's ids, with which the button finds the
    figures.
    """
    terms = {term.name: term for term in explain(trace)} if trace and trace.end else {}
    if not trace or not terms:
        return '<p class="sp-why-none">When the run is over, this explains why it was faster or not.</p>'
    rows = [(one.sentence, one.label, amount(one)) for name in ("predicted", "tau", "plain") if (one := terms.get(name))]
    if costs := [terms[phase].value or 0.0 for phase in PHASES if phase in terms]:
        parts = f"draft + verify + judge + commit + host = {' + '.join(map(duration, costs))}"
        rows.append((parts, step_cost_label(trace), duration(sum(costs))))
    html = "".join(f'<dt title="{markup(about)}">{markup(name)}</dt><dd>{markup(value)}</dd>' for about, name, value in rows)
    return f'<div class="sp-why">{_headline(trace, terms, timing, prefix)}<dl>{html}</dl></div>'


def _headline(trace: Trace, terms: dict[str, Term], timing: bool, prefix: str) -> str:
    more = f'<button type="button" class="sp-link" data-sp-open="{prefix}-figures">term by term ▸</button>'
    measured = metrics.compared_speed(trace)
    sentence = markup(terms["verdict"].sentence)
    if not measured:
        state = "timing the autoregressive run …" if timing else "unknown: the autoregressive run was not timed"
        return f'<p title="{sentence}">Speed-up {more}</p><p>{state}</p>'
    word = {"level": "no faster"}.get(measured.word, measured.word)
    formula = markup(metrics.FORMULAS["speedup"])
    return f'<p title="{sentence}">Why {word} {more}</p><p title="{formula}"><b>{measured.speedup:.2f}×</b> measured</p>'


def facts(rows: Mapping[str, str], attributes: str = ' class="sp-facts"') -> str:
    """Return an HTML list of names and values (HTML). Empty values are omitted."""
    return f"<dl{attributes}>" + "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows.items() if text) + "</dl>"


def cards(measured: Mapping[str, str]) -> str:
    """Return the HTML of the method cards, collapsed by family. ``measured``: results as HTML, by method."""
    html = ""
    for title, methods in families().items():
        names = markup(" · ".join(method.title for method in methods))
        family_cards = "".join(_card(method, measured.get(method.name, "")) for method in methods)
        html += f'<details class="sp-family"><summary><h3>{markup(title)}</h3>{names}</summary>'
        html += f'<div class="sp-cards">{family_cards}</div></details>'
    return html


def _card(method: Method, measured: str) -> str:
    source = "none: this is how a model decodes without a draft"
    if paper := method.paper:
        listed = ", ".join(filter(None, (f"{paper.authors} {paper.year}", paper.venue)))
        source = f"<cite>{markup(paper.title)}</cite>, {markup(listed)} {_link(paper)}"
    rows = {
        "Watch": markup(method.look_at),
        "Needs": needs(method),
        "Bound": markup(method.bound),
        "Claimed": markup(method.claim),
        "Here": measured,
        "Differs": markup(method.differs),
        "Paper": source,
    }
    return (
        f'<article class="sp-card"><h4>{markup(method.title)} {_promise(method)}</h4>'
        f"<p>{markup(method.summary)}</p>{facts(rows, '')}</article>"
    )


def _link(paper: Paper | None) -> str:
    """Return an HTML link to a paper on arXiv; empty without a number."""
    if not paper or not paper.arxiv:
        return ""
    address, title = f"{ARXIV}{markup(paper.arxiv)}", markup(paper.title)
    return f'<a href="{address}" target="_blank" rel="noopener noreferrer" title="{title}">arXiv {markup(paper.arxiv)}</a>'


def needs(method: Method) -> str:
    """Describe what a method requires."""
    if method.needs:
        return method.needs
    if method.needs_draft:
        pictures = method.modality == ("vision_language",)
        return f"a draft model with the target's tokenizer; one for {'scenes-vlm' if pictures else 'SmolLM2'} is included"
    if method.weights:
        included = " and ".join(theme.texts()["included"][kind] for kind in method.modality)
        return f"a drafter trained for the target; included for {included}"
    return "nothing but the target"


def measured(run: Run, end: End | None, name: str) -> str:
    """Return the HTML of a recorded run's results, with a link to the run."""
    numbers = end.metrics if end else {}
    tau, speed = numbers.get("tau"), numbers.get("speedup")
    parts = [f"τ {tau:.2f}"] if tau else []
    slower = " (slower than one token at a time)" if speed and speed <= 1 / metrics.LEVEL else ""
    parts += [f"{speed:.2f}×{slower}"] if speed and run.method != BASELINE else []
    where = f"{run.target}, {run.machine or run.device}"
    sentence = f"{', '.join(parts)} in its recorded run ({where})" if parts else f"recorded ({where})"
    return f'{markup(sentence)} <a href="?trace={markup(name)}">play it</a>'


def drop_down(
    groups: Groups, value: str, label: str, *, elem_id: str, script: str = "widgets/choice.js", below: str = "", **more: Any
) -> gr.HTML:  # fmt: skip
    """Return a native drop-down with headings. The value is the selected name, or a :func:`listing`.

    ``below``: further HTML, filled by ``script``.
    """
    name = f"{elem_id}-choice"
    template = f'<div class="sp-field sp-choice"><label for="{name}">{markup(label)}</label>'
    template += f'<select id="{name}" data-groups="{markup(json.dumps(list(groups.items())))}"></select></div>{below}'
    return theme.html(value, script, html_template=template, elem_id=elem_id, **more)


def listing(groups: Groups, name: str) -> str:
    """Return a drop-down value that replaces the entries, because only the value can be updated in an unopened tab."""
    return json.dumps({"groups": list(groups.items()), "name": name})
