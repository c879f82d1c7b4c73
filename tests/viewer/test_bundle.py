"""What travels to the page: a script and a stylesheet that are safe to inline and ask nothing of the network."""

from __future__ import annotations

import re

from specviz.viewer import bundle


def test_the_script_is_safe_to_inline() -> None:
    script = bundle.script()
    assert "</script" not in script.lower()
    assert "<!--" not in script
    assert bundle.style().count("{") == bundle.style().count("}")


def test_text_never_becomes_markup() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in bundle._sources())
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "srcdoc",
        "DOMParser",
    ):
        assert way not in sources


def test_nothing_asks_the_network() -> None:
    whole = bundle.script()
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", whole))
    assert addresses == {"http://www.w3.org/2000/svg"}
    for way in ("fetch(", "XMLHttpRequest", "WebSocket", "EventSource", "sendBeacon", "@import", "import("):
        assert way not in whole


def test_every_file_is_in_the_bundle_and_small() -> None:
    sources = bundle._sources()
    assert {path.name for path in sources} == {path.name for path in (bundle.HERE / "js").rglob("*.js")}
    for path in [*sources, *(bundle.HERE / "css").glob("*.css")]:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, path.name
    assert len(bundle.script()) < 320_000


def test_slimming_takes_comments_only() -> None:
    assert bundle._slim("  // gone\n  a(); // stays\n/* gone\n too */\nb('//x');\n") == "a(); // stays\nb('//x');\n"
