"""Inspection of a drafter head: how well it foresees a target as it was loaded, and whether another reading would do better.

A head loaded with other conventions than it was trained with runs without an error and drafts badly. Here the target writes a
few answers once; every reading of the head is then taught along them, so that readings are compared on the same places.
"""

from __future__ import annotations

OWN = ("eagle", "eagle3", "medusa")
"""Drafters that ship and can be inspected by their name."""

QUESTIONS = (
    "Describe the picture.",
    "What is the most prominent thing in the picture, and where does it stand?",
    "Which colours does the picture have, and where?",
    "Tell a short story about what the picture shows.",
)
"""What a target is asked about the user's picture."""

PROMPTS = (
    "What are three good habits for staying healthy, and why do they help?",
    "Explain how rain forms, step by step.",
    "Write a short story about a fox who learns to swim.",
    "Write a Python function that counts the vowels in a word and explain it.",
)
"""What a drafter is looked at on by default: none is trained on."""
