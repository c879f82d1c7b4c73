"""User turns by template: what people ask a model for, of ten kinds, with sampled content.

A template is a text with slots, ``{animal}`` or ``{3-40}`` (a whole number), each filled with one of its words, which may hold
slots again. Every tenth word of a long list belongs to held-out turns alone, so that they ask about other things in the same
forms. What is asked *about a text* takes it from what the target has written before, or from texts made by template
(:mod:`specviz.training.common.turn_texts`). No turn that numbers are reported on
is ever made (tests/training/common/test_turns.py).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specviz.training.common.turn_texts import TEXTS
from specviz.training.common.turn_words import WORDS

HELD_OUT_EVERY = 10
SHORT_LIST = 10
"""A list of fewer words is the same for held-out turns: languages, numbers of sentences."""
_SLOT = re.compile(r"\{\{|\}\}|\{(\w+)(?:-(\d+))?\}")

ASKED: Mapping[str, tuple[str, ...]] = {
    "chat": (
        "{trouble} {advise}", "{trouble} {advise}", "{plan} {advise}", "{plan} {advise}", "{greeting} {trouble} {advise}",
        "Can you recommend {leisure} for {someone}?", "What would be a good present for {someone} who likes {hobby}?",
        "I want to learn {hobby}. Where do I start?", "Give me {some} tips for {activity}.",
        "How do I get better at {activity}?", "What do you think about {activity}?", "Give me {some} ideas for {occasion}.",
        "How can I make {occasion} special?", "Write a short {tone} email to {someone} about {matter}.",
        "Write a message to {someone} to say {message}.", "Tell me something interesting about {animals}.",
        "Plan {trip} for {someone}.", "What should I pack for {trip}?", "What can I cook with {food}, {food} and {food}?",
        "Give me a simple recipe with {food} and {food}.", "Is it better to {choice} or to {choice}?",
        "Recommend {some} books about {topic}.", "I feel {mood} today. {advise}", "How do I tell {someone} that {message}?",
        "Which {thing} would you choose for {someone}, and why?", "Make a list of {some} things to check before {activity}.",
        "Write a toast for {occasion}.", "What are the advantages and disadvantages of {activity}?",
        "Suggest a name for {named}.", "Cheer me up, I am {mood}.",
    ),
    "translation": (
        "Translate to {language}: {sentence}", "Translate to {language}: {sentence}", "Translate into {language}: {sentence}",
        "Translate this sentence to {language}: {sentence}", "Please translate into {language}: {sentence} {sentence}",
        "How do you say \"{sentence}\" in {language}?", "Translate the following text into {language}:\n{sentence} {sentence}",
        "Translate from English to {language}: {sentence}", "{sentence}\n\nTranslate this into {language}.",
        "What is {thing} in {language}?", "Give me the {language} translation of \"{sentence}\"",
        "Translate to {language}: {question}", "I am writing to a friend in {country}. Translate to {language}: {sentence}",
    ),
    "summarising": (
        "Summarise in {few} sentences: {passage}", "Summarise in one sentence: {passage}", "Summarize this text: {passage}",
        "Summarise the following text in {few} sentences:\n\n{passage}", "Give a short summary of this text: {passage}",
        "Summarise in {few} short points: {passage}", "What is the main idea of this text? {passage}", "TL;DR: {passage}",
        "{passage}\n\nSummarize the text above in one sentence.", "Shorten this to one sentence: {passage}",
        "Write a headline for this text: {passage}", "Summarise in {few} sentences for a child: {passage}",
        "Summarise the message in one sentence: {passage}", "What are the key points of this text?\n{passage}",
    ),
    "question answering": (
        "{question}", "{question}", "{question}", "{question} Answer in {few} sentences.", "{question} Explain it to a child.",
        "{question} Keep it short.", "{question} Give an example.", "What is {concept}?", "Explain {concept} in simple words.",
        "What is the difference between {concept} and {concept}?", "Why is {concept} important?", "How does {device} work?",
        "Who was {person} and why is this person remembered?", "Tell me about the history of {topic}.",
        "What are the main causes of {problem}?", "How can {problem} be prevented?", "What is {country} known for?",
        "Why do {animals} {behaviour}?", "Where do {animals} live and what do they eat?", "How is {material} made?",
        "Read the text and answer the question.\n\nText: {passage}\n\nQuestion: What is the text about?",
        "{passage}\n\nAccording to this text, what is the most important thing?", "Is this true or false: {claim} Explain.",
        "Text: {passage}\n\nWhich facts are named in the text?", "{passage}\n\nWhy does this matter?",
    ),
    "maths": (
        "{sum}", "{sum}", "{sum} Show each step.", "{sum} Explain.", "{sum} Show the work.", "{sum} Give only the result.",
        "{sum} Write down the calculation.", "Solve this problem step by step: {sum}",
    ),
    "code": (
        "Write a {program} function {task}.", "Write a {program} function {task}.", "Write a Python function {task}.",
        "Write a Python function {task}, with a short explanation.",
        "Implement a {program} function {task} and show an example.", "Write a Python script {task}.",
        "Write a Python class for {named} with methods to {method} and {method}.", "Explain what this code does:\n{snippet}",
        "Explain this Python code line by line:\n{snippet}", "Write a unit test for this function:\n{snippet}",
        "Rewrite this code so that it is easier to read:\n{snippet}", "Translate this Python code to {program}:\n{snippet}",
        "Add comments to this code:\n{snippet}", "Write an SQL query that {query}.", "Write a shell command that {shell}.",
        "Write a regular expression that {regex}.", "Write an HTML page {page}.",
        "What is {construct} in {program}? Give a short example.", "How do I {howto} in {program}?",
        "Find and fix the mistake in this code:\n{broken}",
    ),
    "rewriting": (
        "Rewrite this text in a more {tone} way: {passage}", "Correct the grammar: {mistaken}",
        "Make this text shorter: {passage}", "Rewrite the text in the past tense: {passage}",
        "Rewrite this in simple words: {passage}", "Copy this text exactly:\n{passage}",
        "Replace every {animal} by {animal}: {swapped}", "Paraphrase: {sentence}",
        "Turn this text into a list of points: {passage}", "Rewrite this sentence in {few} different ways: {sentence}",
        "Rewrite the email so that it sounds more {tone}:\n{letter}", "Sort this list alphabetically: {list}",
        "Continue this text: {passage}", "Turn this list into a table: {list}",
    ),
    "extraction": (
        "List all names in this text: {passage}", "Extract the name, the place and the date from this text: {notice}",
        "Give the important facts of this text as JSON: {notice}", "Which of these are {category}? {list}",
        "What does the customer want? {letter}", "Is the tone of this review positive or negative? {review}",
        "Quote the sentence of the text that matters most: {passage}", "Make a list of all verbs in this text: {passage}",
        "Classify this message as a question, a complaint or praise: {letter}", "Find {few} keywords for this text: {passage}",
        "Fill in a table with the columns name, price and number: {order}", "What problem is described here? {letter}",
        "Read this JSON and describe the person in one sentence: {record}", "Change the city to {city} in this JSON: {record}",
    ),
    "stories": (
        "Write a short story about {figure} who {deed}.", "Tell me a story about {figure} and {figure}.",
        "Write the first paragraph of a {genre} story set in {place}.", "Write a poem about {thing}.",
        "Write a dialogue between {figure} and {figure} about {topic}.",
        "Write a {genre} story in {few} paragraphs about {thing}.", "Describe {place} {moment}.", "Write a song about {topic}.",
        "Invent a legend that explains why {animals} {behaviour}.", "Write a diary entry of {figure} who {deed}.",
        "Write a short article about {topic} for a school magazine.", "Write a paragraph about {topic}.",
        "Write a paragraph about {concept}.", "Write a product description for {thing}.", "Write a short speech about {topic}.",
        "Write a joke about {figure}.", "Explain {concept} with a little story.",
    ),
}  # fmt: skip
FOLLOWING = (
    "Can you explain that in simpler words?", "Make it shorter.", "Give me an example.",
    "Can you say more about the first point?", "Why?", "Thank you! What should I do next?",
    "Translate your answer to {language}.", "Summarise your answer in one sentence.", "Are you sure? Explain your reasoning.",
    "What are the risks?", "Write it as a list.", "Now write it for a child.", "What about {topic}?",
    "And how does this apply to {someone}?", "Can you rewrite that in a more {tone} tone?",
    "Ask me three questions about this.", "What else should I know?", "Give it a title.", "Continue.", "Now do it for {thing}.",
    "How much would that cost?", "What is the most important part?", "Turn that into an email to {someone}.",
)  # fmt: skip
KINDS = (*ASKED, "multi-turn", "unprompted")
"""Of every kind of user turn. The last one is written by the target itself: what it thinks it is asked."""
REPORTED = KINDS[:6]
"""Those that results are reported on."""
TURNS = (
    "chat", "translation", "summarising", "question answering", "maths", "code",
    "rewriting", "chat", "translation", "summarising", "question answering", "maths", "code",
    "extraction", "stories", "multi-turn", "unprompted",
)  # fmt: skip
"""In which order the kinds take turns: the six reported ones twice in a round, the others once."""


@dataclass(frozen=True)
class Writer:
    """Fills templates. ``passage`` gives a text that the target wrote earlier, None while there is none.

    ``held_out`` writers take the words that others never take.
    """

    generator: random.Random
    held_out: bool
    passage: Callable[[], str | None]

    def turn(self, kind: str) -> str:
        """A user turn of this kind."""
        return self.fill(self.generator.choice(ASKED[kind]))

    def following(self) -> str:
        """What somebody says after an answer."""
        return self.fill(self.generator.choice(FOLLOWING))

    def fill(self, template: str) -> str:
        """The template with all its slots filled, and a capital where it begins."""
        text = self._filled(template)
        return text[:1].upper() + text[1:]

    def _filled(self, text: str) -> str:
        """Slots filled; doubled braces stand for themselves."""
        return _SLOT.sub(lambda match: self._slot(match[1], match[2]) if match[1] else match[0][0], text)

    def _slot(self, name: str, last: str | None) -> str:
        if last is not None:
            return str(self.generator.randint(int(name), int(last)))
        own = self.passage() if name == "passage" and self.generator.random() < 0.6 else None
        if own is not None:
            return own
        text = self.generator.choice(words(name, self.held_out))
        return self._filled(text)


def words(slot: str, held_out: bool) -> Sequence[str]:
    """What may fill a slot. Templates of texts and sums are everybody's: it is their words that differ."""
    if slot in TEXTS:
        return TEXTS[slot]
    choices = WORDS[slot]
    if len(choices) < SHORT_LIST:
        return choices
    return [word for place, word in enumerate(choices) if (place % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == held_out]
