"""Replay page: a recorded run as a self-contained HTML file, or as a frame in a notebook.

The trace is embedded as data without "<". The page's content security policy allows the viewer's script and no requests.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate

from specviz.errors import BadInput
from specviz.palette import DARK, LIGHT
from specviz.trace import store
from specviz.trace.schema import Trace
from specviz.viewer import bundle

MAX_PAGE = 1_000_000
"""Maximum size of a page in bytes."""
COMPRESS_ABOVE = 400_000
"""Length of a trace in characters above which the page embeds it compressed."""
LEFT_OUT = "To keep this page below 1 MB it leaves out {}. The saved trace file has everything."
NOTES = "the method's notes on each step"

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""
BODY = """{notice}
<main id="stage" {options}></main>
<noscript>This page draws a recorded run and needs JavaScript. It loads nothing from other sites.</noscript>
<script type="application/json" id="specviz-trace">{trace}</script>"""
STYLE = f"""html, body {{ margin: 0; height: 100%; --specviz-height: max(600px, 100vh); background: {LIGHT.ground}; }}
.dark, .dark body {{ background: {DARK.ground}; }}
.specviz-notice {{ margin: 0; padding: 6px 14px; font: 13px/1.4 system-ui, sans-serif; }}
.specviz-notice {{ background: {LIGHT.tints["relaxed"]}; color: {LIGHT.ink}; }}
"""

# The page reads the query parameters ?theme=dark and ?step=4, with steps counted from 1.
START = """(async () => {
const preferred = matchMedia("(prefers-color-scheme: dark)");
const query = new URLSearchParams(location.search);
const asked = query.get("theme");
const dress = () => document.documentElement.classList.toggle("dark", asked ? asked === "dark" : preferred.matches);
preferred.addEventListener("change", dress);
dress();
const host = document.getElementById("stage");
let text = document.getElementById("specviz-trace").textContent;
if (host.dataset.gzip) {
const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
const { autoplay, speed } = host.dataset;
const options = { mode: "recorded", autoplay: autoplay !== "false", speed: Number(speed) };
const step = Number(query.get("step") ?? host.dataset.step) - 1;
const stage = SpecvizViewer.mount(host, { text, ...options });
if (Number.isInteger(step) && step >= 0) stage.go(step);
window.stage = stage;
})();
"""


@dataclass(frozen=True)
class Frame:
    """A replay page that a notebook displays in a frame."""

    page: str = field(repr=False)
    height: int

    def _repr_html_(self) -> str:
        # UTF-8 cannot encode lone surrogates.
        source = html.escape(self.page.encode("utf-8", "replace").decode("utf-8"), quote=True)
        style = f"width:100%;height:{self.height:d}px;border:0"
        return f'<iframe title="specviz" sandbox="allow-scripts" allowfullscreen style="{style}" srcdoc="{source}"></iframe>'


def frame(trace: Trace, step: int | None = None, height: int = 680) -> Frame:
    """Return a run's replay page as a frame. ``step``: step to show, from 0; by default, the run plays.

    A long run is shortened as in :func:`page`. Raises BadInput if the step does not exist.
    """
    if step is not None and not 0 <= step < len(trace.steps):
        raise BadInput(f"There is no step {step}; the run has {len(trace.steps)}, counted from 0.")
    return Frame(of_trace(trace, step), height)


def of_trace(trace: Trace, step: int | None = None) -> str:
    """Return the replay page of a trace. ``step``: step to show, from 0; by default, the run plays."""
    title = f"{trace.run.title} on {trace.run.target} · specviz"
    return page(store.text(trace), title=title, autoplay=step is None, step=step)


def page(
    text: str, *, title: str = "A recorded run · specviz", autoplay: bool = True, speed: float | None = None,
    step: int | None = None,
) -> str:  # fmt: skip
    """Return the replay page for the text of a trace file.

    ``speed``: playback speed, where 1 is the recorded speed and None a comfortable one; ``step``: first step shown, from 0.
    To stay below ``MAX_PAGE``, the page omits first the notes, then the target's rows, then the last steps, and shows a notice.
    Raises BadInput if a single step is too large.
    """
    options = f'data-autoplay="{str(autoplay).lower()}" data-speed="{speed or 0:g}"'
    if step is not None:
        options += f' data-step="{step + 1:d}"'

    def made(data: str, left_out: str = "", form: str = "") -> str:
        notice = f'<p class="specviz-notice" role="note">{html.escape(LEFT_OUT.format(left_out))}</p>' if left_out else ""
        return document(
            title,
            STYLE,
            bundle.script() + bundle.script("reading") + START,
            BODY.format(notice=notice, options=options + form, trace=data),
        )

    if len(text) <= COMPRESS_ABOVE:
        whole = made(bundle.embedded(text))
    else:
        packed = gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)
        whole = made(base64.b64encode(packed).decode("ascii"), form=' data-gzip="true"')
    if size(whole) < MAX_PAGE:
        return whole
    trace = store.read(text.encode("utf-8", "surrogatepass"))
    without_notes = trace.replace(steps=tuple(one.replace(notes=()) for one in trace.steps))
    bare = trace.replace(steps=tuple(one.replace(notes=(), rows=()) for one in trace.steps))
    for shorter, left_out in ((without_notes, NOTES), (bare, f"{NOTES} and the target's tables of likely tokens")):
        shown = made(bundle.embedded("\n".join(store.lines(shorter))), left_out)
        if size(shown) < MAX_PAGE:
            return shown
    first, *steps = [bundle.embedded(line) for line in store.lines(bare.replace(end=None))]
    left_out = f"the steps after the first {{}} of {len(steps)}, the run's totals, notes and target's tables"
    room = MAX_PAGE - 1 - size(made(first, left_out.format(len(steps))))
    count = bisect_right(list(accumulate(size(line) + 1 for line in steps)), room)
    if count == 0:
        raise BadInput("This run is too large for a replay page; save the trace file and open it in the app.")
    return made("\n".join([first, *steps[:count]]), left_out.format(count))


def document(title: str, style: str, script: str, body: str) -> str:
    """Return an HTML page with a content security policy that allows ``script`` and no requests."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return TEMPLATE.format(policy=policy, title=html.escape(title), style=style, body=body, script=script)


def size(text: str) -> int:
    """Return the size of a text in bytes of UTF-8. Lone surrogates are allowed."""
    return len(text.encode("utf-8", "surrogatepass"))
