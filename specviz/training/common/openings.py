"""First words of user turns, by kind: what people ask a model for, which it seldom asks itself when left alone.

The target goes on from one and so writes a whole question of that kind. No prompt that numbers are reported
on begins with one of them, and the rest of every question is the target's own.
"""

from __future__ import annotations

from itertools import product

LANGUAGES = ("French", "Spanish", "German", "Italian", "Portuguese", "Dutch")

_ASKED = (
    "Translate into {}: The",
    "Translate this sentence into {}: I",
    "Translate to {}: We",
    "Please translate to {}: My",
)
TRANSLATION = tuple(asked.format(language) for asked, language in product(_ASKED, LANGUAGES))
SUMMARY = (
    "Summarise in one sentence: This", "Summarise in two sentences: In the", "Summarise the following text: A",
    "Summarize in a few words: Every year", "Summarise in three points: Many people", "Give a short summary of this text: When",
    "Summarise in two sentences: Scientists", "Summarise in one sentence: Yesterday",
    "Summarise this story in two sentences: Once", "Shorten this text to one sentence: Our",
)  # fmt: skip
QUESTION = (
    "Why can", "Why is the", "How does the", "How can", "What makes", "How do you tell apart", "Why were",
    "Who invented", "What happens when", "How is", "What are the main reasons for", "Explain why",
)  # fmt: skip
MATHS = (
    "A car travels", "A train leaves", "Anna has", "Tom buys", "A triangle has", "Solve the equation", "A shop sells",
    "Find the mean of", "A box contains", "If 3", "Calculate", "A bottle holds", "Peter reads", "What percentage of",
)  # fmt: skip
CODE = (
    "Write a Python function which", "Write a Python function to", "Write a JavaScript function to", "Write an SQL query to",
    "Explain what this Python code does:", "Write a Python class that", "Write a Python script that", "Fix this Python code:",
    "Write a shell command to", "Write a function in Python which takes a list and",
)  # fmt: skip
CHAT = (
    "What could I", "I find it hard", "My friend", "How can I", "Could you recommend", "Help us", "I want to learn",
    "Give me some advice on", "What would you", "I feel", "Write a short email to", "Tell me a story about",
)  # fmt: skip
KINDS = (CHAT, TRANSLATION, SUMMARY, QUESTION, MATHS, CODE)


def opening(number: int) -> str:
    """An opening for every whole number: the kinds take turns, and so do the openings of each kind."""
    kind = KINDS[number % len(KINDS)]
    return kind[number // len(KINDS) % len(kind)]
