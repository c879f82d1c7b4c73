"""Prompts to click, grouped by what makes them easy or hard to draft."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """One prompt. ``label`` is what the button says."""

    label: str
    prompt: str


@dataclass(frozen=True)
class Group:
    """Prompts of one kind, what to expect of them, and the temperature at which it shows."""

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
