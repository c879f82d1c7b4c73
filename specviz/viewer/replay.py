"""A recorded run as one HTML page: a file that plays from disk, or a frame in a notebook; neither uses the network.

The trace is never parsed as markup: its lines are in a data block without any "<", and the page's policy allows only the
viewer's script and no requests.
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
"""Upper limit of a page's size in bytes."""
COMPRESS_ABOVE = 400_000
"""Characters of a trace above which it is embedded compressed, so that pages of long runs stay under a megabyte too."""
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

# ?theme=dark and ?step=4 after the address of a file; steps are counted as on the screen, from 1.
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
    """A replay page in its own frame, which a notebook shows as a cell's last value."""

    page: str = field(repr=False)
    height: int

    def _repr_html_(self) -> str:
        """The frame as HTML. Its page may run only the script that its policy names, and reaches nothing around it."""
        # A notebook is sent as UTF-8, which cannot encode a lone surrogate.
        source = html.escape(self.page.encode("utf-8", "replace").decode("utf-8"), quote=True)
        style = f"width:100%;height:{self.height:d}px;border:0"
        return f'<iframe title="specviz" sandbox="allow-scripts" allowfullscreen style="{style}" srcdoc="{source}"></iframe>'


def frame(trace: Trace, step: int | None = None, height: int = 680) -> Frame:
    """Return a frame ``height`` pixels high with the run, opened at ``step``, counted from 0; by default it plays.

    A run too long for a page loses its last steps, as in ``page``; the last remaining one is shown in their place.
    Raises BadInput for a step that the run does not have.
    """
    if step is not None and not 0 <= step < len(trace.steps):
        raise BadInput(f"There is no step {step}; the run has {len(trace.steps)}, counted from 0.")
    return Frame(of_trace(trace, step), height)


def of_trace(trace: Trace, step: int | None = None) -> str:
    """Return the page of a trace with its title: opened at ``step``, counted from 0; by default it plays."""
    title = f"{trace.run.title} on {trace.run.target} · specviz"
    return page(store.text(trace), title=title, autoplay=step is None, step=step)


def page(
    text: str, *, title: str = "A recorded run · specviz", autoplay: bool = True, speed: float | None = None,
    step: int | None = None,
) -> str:  # fmt: skip
    """Return the HTML file for the lines of a trace. ``speed`` 1 plays as fast as recorded, None chooses a calm speed.

    The page opens at ``step``, counted from 0, and waits there; None opens it at the first step. A run too long for a megabyte
    even when compressed loses notes, then tables, then its last steps and with them its totals; a banner reports it.
    Raises BadInput if not even one step fits.
    """
    options = f'data-autoplay="{str(autoplay).lower()}" data-speed="{speed or 0:g}"'
    if step is not None:
        options += f' data-step="{step + 1:d}"'

    def made(data: str, left_out: str = "", form: str = "") -> str:
        notice = f'<p class="specviz-notice" role="note">{html.escape(LEFT_OUT.format(left_out))}</p>' if left_out else ""
        return document(title, STYLE, bundle.script() + START, BODY.format(notice=notice, options=options + form, trace=data))

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
        raise BadInput("This run is too large for a replay page; save its trace file and open that in the app.")
    return made("\n".join([first, *steps[:count]]), left_out.format(count))


def document(title: str, style: str, script: str, body: str) -> str:
    """Return a page around ``body`` whose policy lets it run ``script`` and nothing else, and load nothing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return TEMPLATE.format(policy=policy, title=html.escape(title), style=style, body=body, script=script)


def size(text: str) -> int:
    """Return the bytes of a text in UTF-8, lone surrogates included."""
    return len(text.encode("utf-8", "surrogatepass"))
