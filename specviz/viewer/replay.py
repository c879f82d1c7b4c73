"""A recorded run as one HTML file that plays offline from disk: the viewer, the trace, and nothing that asks the network."""

from __future__ import annotations

import base64
import gzip
import html
import json

from specviz.viewer import bundle

COMPRESS_ABOVE = 400_000
"""Letters of trace from which it is embedded compressed, so that the file stays under a megabyte for long runs too."""

# Nothing may be fetched, whatever a trace says; only what is in this file runs.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
html, body {{ margin: 0; height: 100%; background: #fbfbfa; --specviz-height: max(600px, 100vh); }}
html.dark, .dark body {{ background: #14181c; }}
</style>
</head>
<body>
<main id="stage"></main>
<noscript>This page draws a recorded run and needs JavaScript. It asks nothing of the network.</noscript>
<script type="application/json" id="trace">{trace}</script>
<script>
{script}</script>
<script>
{start}</script>
</body>
</html>
"""

START = """(async () => {
const preferred = matchMedia("(prefers-color-scheme: dark)");
const asked = new URLSearchParams(location.search).get("theme");
const dress = () => document.documentElement.classList.toggle("dark", asked ? asked === "dark" : preferred.matches);
preferred.addEventListener("change", dress);
dress();
const given = JSON.parse(document.getElementById("trace").textContent);
let text = given.text;
if (given.gzip) {
const bytes = Uint8Array.from(atob(given.gzip), (one) => one.charCodeAt(0));
text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
window.stage = SpecvizViewer.mount(document.getElementById("stage"), { text, ...given.options });
})();
"""


def safe_json(value: object) -> str:
    """JSON that no HTML parser can mistake for markup inside a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def page(text: str, *, title: str = "A recorded run · specviz", autoplay: bool = True, speed: float | None = None) -> str:
    """The HTML file for the lines of a trace. ``speed`` 1 plays as fast as the run was recorded, None chooses a calm speed."""
    options = {"mode": "recorded", "autoplay": autoplay, **({} if speed is None else {"speed": speed})}
    given: dict[str, object] = {"options": options, "text": text}
    if len(text) > COMPRESS_ABOVE:
        packed = gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)
        given = {"options": options, "gzip": base64.b64encode(packed).decode("ascii")}
    return PAGE.format(
        policy=html.escape(POLICY), title=html.escape(title), trace=safe_json(given), script=bundle.script(), start=START
    )
