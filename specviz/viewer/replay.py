"""A recorded run as one HTML file that plays from disk: viewer and trace, and nothing that asks the network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html

from specviz.trace import replay, store
from specviz.viewer import bundle

COMPRESS_ABOVE = 400_000
"""Letters of trace from which it is embedded compressed, so that a page stays under a megabyte for long runs too."""

# The six marks are those of trace.replay, which makes the page of a run that is too long even for this.
TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{policy}}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{{title}}</title>
<style>
html, body { margin: 0; height: 100%; background: #fbfbfa; --specviz-height: max(600px, 100vh); }
.dark, .dark body { background: #14181c; }
.specviz-notice { margin: 0; padding: 6px 14px; font: 13px/1.4 system-ui, sans-serif; }
.specviz-notice { background: #fdf1d5; color: #1d2329; }
{{style}}</style>
</head>
<body>
{{notice}}
<main id="stage" OPTIONS></main>
<noscript>This page draws a recorded run and needs JavaScript. It asks nothing of the network.</noscript>
<script type="application/json" id="specviz-trace">{{trace}}</script>
<script>{{script}}</script>
</body>
</html>
"""

START = """(async () => {
const preferred = matchMedia("(prefers-color-scheme: dark)");
const asked = new URLSearchParams(location.search).get("theme");
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
window.stage = SpecvizViewer.mount(host, { text, ...options });
})();
"""


def page(
    text: str, *, title: str = "A recorded run · specviz", autoplay: bool = True, speed: float | None = None
) -> str:
    """The HTML file for the lines of a trace. ``speed`` 1 plays as fast as it was recorded, None chooses a calm speed.

    A run too long for a megabyte even when compressed loses notes, then tables, then its last steps; the page says so.
    """
    options = f'data-autoplay="{str(autoplay).lower()}" data-speed="{speed or 0:g}"'
    script = bundle.script() + START
    if len(text) <= COMPRESS_ABOVE:
        made = _filled(TEMPLATE.replace("OPTIONS", options), title, replay.embedded(text), script)
    else:
        packed = gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)
        data = base64.b64encode(packed).decode("ascii")
        made = _filled(TEMPLATE.replace("OPTIONS", f'{options} data-gzip="true"'), title, data, script)
    if len(made) < replay.MAX_PAGE and len(made.encode("utf-8", "surrogatepass")) < replay.MAX_PAGE:
        return made
    return replay.page(
        store.read(text.encode("utf-8", "surrogatepass")), script, "", TEMPLATE.replace("OPTIONS", options)
    )


def _filled(template: str, title: str, data: str, script: str) -> str:
    """The template with its marks filled from the left, so that nothing put in is read as a mark."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "title": html.escape(title), "style": "", "notice": "", "trace": data, "script": script}
    made, rest = "", template
    for mark, part in parts.items():
        before, _, rest = rest.partition("{{" + mark + "}}")
        made += before + part
    return made + rest
