"""Example prompts under the prompt, one click each, grouped by how easy they are to draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import gradio as gr

from specviz.figures.theme import markup
from specviz.ui.widgets import controls

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Example:
    """One prompt. ``label`` is the text of its button."""

    label: str
    prompt: str


@dataclass(frozen=True)
class Group:
    """Prompts of one kind, their expected effect, and the temperature at which it shows."""

    kind: str
    expect: str
    examples: tuple[Example, ...]
    temperature: float = 0.0


_JSON = '{"name": "Ada Lovelace", "born": 1815, "field": "mathematics", "city": "London", "languages": ["English", "French"]}'
_NOTES = (
    "The meeting on Monday will start at ten in the blue room on the second floor. Please bring the printed report, "
    "the budget for next year and two copies of the contract."
)

GROUPS = (
    Group(
        "Copies its prompt",
        "Drafts copied from the prompt are accepted many at a time.",
        (
            Example("Edit a JSON", f'Change the city to "Paris" and return the whole JSON:\n{_JSON}'),
            Example("Quote a text", f"Repeat this text word for word:\n{_NOTES}"),
            Example(
                "Rename in code",
                "Rename the variable total to amount and return the whole function:\n"
                "def add_up(prices):\n    total = 0\n    for price in prices:\n        total = total + price\n"
                "    return total",
            ),
        ),
    ),
    Group(
        "Follows a pattern",
        "Lists and tables repeat themselves, so earlier steps help later ones.",
        (
            Example("Numbered list", "List twelve European countries with their capitals, one per line, numbered."),
            Example("Times table", "Write the multiplication table of 7 from 7 x 1 to 7 x 12, one line each."),
            Example("HTML rows", "Write an HTML table with the names and ages of six people."),
        ),
    ),
    Group(
        "Explains",
        "Common words are easy to guess, the content words are not.",
        (
            Example("Autumn leaves", "Why do leaves change colour in autumn? Answer in three sentences."),
            Example("Blue sky", "Explain to a child why the sky is blue."),
            Example("Photosynthesis", "What is photosynthesis? Explain in one paragraph."),
        ),
    ),
    Group(
        "Invents",
        "At a high temperature hardly anything can be guessed: expect little or no gain.",
        (
            Example("A short story", "Write the opening of a story about a lighthouse keeper who finds a message."),
            Example("A poem", "Write a short poem about rain in the city."),
            Example("Ten odd names", "Invent ten unusual names for a bookshop."),
        ),
        temperature=1.0,
    ),
)

_SCRIPT = """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-at]");
  if (!button) return;
  element.querySelector("details").open = false;
  trigger("choose", { at: Number(button.dataset.at) });
});
element.addEventListener("keydown", (event) => {
  const details = element.querySelector("details");
  if (event.key !== "Escape" || !details.open) return;
  details.open = false;
  details.querySelector("summary").focus();
});
"""

EXAMPLES = tuple((example.prompt, group.temperature) for group in GROUPS for example in group.examples)


def picker(groups: Sequence[Group], elem_id: str) -> gr.HTML:
    """Closed list of examples; the event ``choose`` carries the index of the clicked one."""
    at = iter(range(sum(len(group.examples) for group in groups)))
    listed = "".join(
        f"<section><h2>{markup(group.kind)}</h2>{group.expect and f'<p>{markup(group.expect)}</p>'}<div>"
        + "".join(
            f'<button type="button" data-at="{next(at)}" title="{markup(example.prompt)}">{markup(example.label)}</button>'
            for example in group.examples
        )
        + "</div></section>"
        for group in groups
    )
    html = f'<details class="sp-examples"><summary>Examples</summary><div class="sp-pop">{listed}</div></details>'
    return gr.HTML(html, js_on_load=_SCRIPT, apply_default_css=False, elem_id=elem_id)


def clicked(event: gr.EventData, entries: Sequence[Entry]) -> Entry | None:
    """Return the clicked entry; None for an invalid index."""
    at = event._data.get("at") if isinstance(event._data, dict) else None
    return entries[at] if isinstance(at, int) and 0 <= at < len(entries) else None


def chosen(basics: str, event: gr.EventData) -> Any:
    """Return the clicked prompt, and the form with its temperature."""
    example = clicked(event, EXAMPLES)
    return (gr.skip(), gr.skip()) if example is None else (example[0], controls.replaced(basics, "temperature", example[1]))
