"""HTML page that compares two recorded runs of a prompt: a race, a table of metrics, and two synchronised stages."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Sequence
from os.path import commonprefix

from specviz.errors import BadInput
from specviz.palette import DARK, LIGHT
from specviz.trace import metrics, store
from specviz.trace.schema import Trace
from specviz.viewer import bundle, replay

BODY = """<div id="race" data-stages="#left #right" data-name="pair" data-open><p>{headline}</p></div>
<main class="pair">
<div id="left"><div class="specviz-host"></div></div>
<div id="right"><div class="specviz-host"></div></div>
</main>
<section class="remarks">
{table}
{words}
</section>
<noscript>This page draws two recorded runs and needs JavaScript. It loads nothing from other sites.</noscript>
<script type="application/json" id="left-trace">{left}</script>
<script type="application/json" id="right-trace">{right}</script>"""
STYLE = f"""html, body {{ margin: 0; background: {LIGHT.ground}; color: {LIGHT.ink}; --specviz-height: max(560px, 70vh); }}
body {{ font: 14px/1.45 system-ui, sans-serif; }}
.pair {{ display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1px; margin-top: 8px; background: {LIGHT.line}; }}
.remarks {{ display: flex; flex-wrap: wrap; gap: 12px 48px; padding: 14px; }}
.remarks table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
.remarks :is(th, td) {{ padding: 3px 18px 3px 0; text-align: left; font-weight: inherit; vertical-align: top; }}
.remarks thead th {{ font-weight: 650; }}
.remarks tbody th {{ color: {LIGHT.mute}; }}
.remarks ul {{ flex: 1 1 320px; max-width: 70ch; margin: 3px 0 0; padding-left: 18px; }}
.dark, .dark body {{ background: {DARK.ground}; color: {DARK.ink}; }}
.dark .pair {{ background: {DARK.line}; }}
.dark .remarks tbody th {{ color: {DARK.mute}; }}
@media (max-width: 820px) {{ .pair {{ grid-template-columns: minmax(0, 1fr); --specviz-height: auto; }} }}
"""
START = """(() => {
const preferred = matchMedia("(prefers-color-scheme: dark)");
const asked = new URLSearchParams(location.search).get("theme");
const dress = () => document.documentElement.classList.toggle("dark", asked ? asked === "dark" : preferred.matches);
preferred.addEventListener("change", dress);
dress();
for (const side of ["left", "right"]) {
const host = document.querySelector(`#${side} .specviz-host`);
const text = document.getElementById(`${side}-trace`).textContent;
host.specviz = SpecvizViewer.mount(host, { text, mode: "recorded", autoplay: false });
}
const [left, right] = ["left", "right"].map((side) => document.querySelector(`#${side} .specviz-host`).specviz);
right.go(0);
SpecvizViewer.align("#left", "#right", "token");
const kept = left.stage.trace.steps.map((step) => step.path.length);
left.go(kept.indexOf(Math.max(...kept)));
SpecvizViewer.race(document.getElementById("race"));
})();
"""


def page(left: Trace, right: Trace, remarks: Sequence[str] = ()) -> str:
    """Return the HTML page. ``remarks``: sentences shown beside the table.

    Raises BadInput if the prompts differ or the runs are too long.
    """
    if left.run.prompt != right.run.prompt:
        raise BadInput("The runs have different prompts; compare two runs of one prompt.")
    body = BODY.format(
        headline=html.escape(headline(left, right)),
        table=table(left, right, ROWS, f"<tr><th scope=row>text</th><td colspan=2>{parting(left, right)}</td></tr>"),
        words="<ul>" + "".join(f"<li>{html.escape(sentence)}</li>" for sentence in remarks) + "</ul>" if remarks else "",
        left=bundle.embedded(store.text(left)),
        right=bundle.embedded(store.text(right)),
    )
    title = f"{left.run.title} and {right.run.title} · specviz"
    document = replay.document(title, STYLE, bundle.script() + START, body)
    if replay.size(document) > 4 * replay.MAX_PAGE:
        raise BadInput("The two runs are too long for one page; request fewer tokens.")
    return document


def rate(trace: Trace) -> float | None:
    """Return tokens per second without the first step, which includes the prefill in served runs; None for a single step."""
    steps = trace.steps[1:]
    return metrics.ratio(sum(len(step.emitted) for step in steps), sum(step.time.total for step in steps) / 1e9)


def parting(left: Trace, right: Trace) -> str:
    """Describe whether the texts of two runs are equal, or after how many characters the texts differ."""
    texts = [trace.end.text if trace.end else "".join("".join(step.pieces) for step in trace.steps) for trace in (left, right)]
    if texts[0].strip() == texts[1].strip():
        return "the same"
    return f"the same for {len(commonprefix(texts))} characters, then different"


def headline(left: Trace, right: Trace) -> str:
    """Return a summary of the comparison; a dash for what a run of one step leaves unknown."""
    said = [f"{one.run.title}: {ROWS[TAU](one)} tokens per pass, {number(rate(one), 0)} per second" for one in (left, right)]
    return f"{'. '.join(said)}."


TAU = "tokens per pass, τ, after the first step"
Rows = dict[str, Callable[[Trace], str]]
"""Function that returns a run's table cell, by row title."""
ROWS: Rows = {
    "tokens": lambda trace: str(sum(len(step.emitted) for step in trace.steps)),
    "target passes": lambda trace: str(sum(step.passes for step in trace.steps)),
    TAU: lambda trace: number(metrics.tau(trace.steps[1:])),
    "tokens per second after the first step": lambda trace: number(rate(trace), 1),
    "milliseconds per step, median": lambda trace: number(_median(trace), 1),
    "accepted at depth 1, 2, …, of those reached": lambda trace: (
        " ".join(number(share) for share in metrics.accepted_by_depth(trace.steps)[:8]) or "no drafts"
    ),
    "drafted and accepted tokens": lambda trace: (
        f"{sum(step.verified for step in trace.steps)} and {sum(step.accepted for step in trace.steps)}"
    ),
    "numbers": lambda trace: f"{trace.run.dtype or 'unknown'}, {trace.run.device}",
}


def table(left: Trace, right: Trace, rows: Rows, more: str = "") -> str:
    """Return an HTML table of two runs. ``more``: HTML of further rows."""
    cells = "".join(
        f"<tr><th scope=row>{name}</th><td>{html.escape(text(left))}</td><td>{html.escape(text(right))}</td></tr>"
        for name, text in rows.items()
    )
    heads = "".join(f"<th scope=col>{html.escape(trace.run.title)}</th>" for trace in (left, right))
    return f"<table><thead><tr><td></td>{heads}</tr></thead><tbody>{cells}{more}</tbody></table>"


def number(value: float | None, digits: int = 2) -> str:
    """Format a value with this number of decimals; None as a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def _median(trace: Trace) -> float | None:
    return statistics.median([step.time.total / 1e6 for step in trace.steps[1:]]) if trace.steps[1:] else None
