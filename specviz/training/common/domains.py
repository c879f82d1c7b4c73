"""What the target is asked, domain by domain, so that it writes the text a drafter for that domain learns from.

Every prompt is put together from parts; none of them is a prompt that numbers are reported on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_LANGUAGES = ("Python", "JavaScript", "Java", "C++", "Go", "Ruby")
_TASKS = (
    "reverses a string", "counts the words in a text", "finds the largest number in a list", "sorts a list of names",
    "merges two sorted lists", "computes the factorial of a number", "returns the first n Fibonacci numbers",
    "tells whether a word is a palindrome", "counts how often each letter occurs in a text", "adds two matrices",
    "finds the second smallest number in a list", "computes the greatest common divisor of two numbers",
    "turns a list of pairs into a dictionary", "removes all spaces from a string", "rounds a price to two decimals",
    "reads a file line by line", "searches a sorted list by halving it", "flattens a nested list",
    "sums the digits of a number", "returns every even number below a limit", "turns seconds into hours and minutes",
    "rotates a list by k places", "splits a list into pieces of equal size", "finds the common elements of two lists",
    "tells whether a year is a leap year", "implements a stack with push and pop", "counts down from ten to one",
    "converts a binary number to decimal", "draws a triangle of stars", "returns the median of a list of numbers",
)  # fmt: skip
_CODE = (
    "Write a {language} function that {task}.", "Show me {language} code that {task}, with comments.",
    "How would you write a {language} program that {task}?", "Give me a short {language} example that {task}.",
)  # fmt: skip

_NAMES = ("Sara", "Paul", "Mira", "Jonas", "Aisha", "Peter", "Nina", "Omar", "Ella", "David")
_THINGS = ("notebooks", "apples", "tickets", "stickers", "cups", "books", "candles", "balls")
_MATHS = (
    "{name} buys {a} {things} for {b} dollars each. How much does {name} pay? Show the steps.",
    "{name} has {a} {things} and gets {b} more every week. How many are there after {c} weeks? Explain.",
    "Calculate {a} times {b} plus {c}. Show each step.", "What is {a} percent of {d}? Show the work.",
    "Solve the equation {c}x + {a} = {d}. Show each step.",
    "A car drives {d} miles in {c} hours. What is its average speed? Explain.",
    "A garden is {a} meters long and {b} meters wide. What are its area and its perimeter?",
    "{name} shares {d} {things} among {c} friends. How many does each of them get, and how many are left?",
    "What is the sum of {a}, {b}, {c} and {d}? Write down the calculation.",
    "Find the value of {a} squared minus {b} times {c}. Explain each step.",
)  # fmt: skip

_HEROES = (
    "a brave little mouse", "an old fisherman", "a girl who talks to trees", "a robot with a broken arm", "two brothers",
    "a dragon that is afraid of fire", "a young queen", "a lonely cat", "a boy with a magic pencil", "a retired pirate",
    "a clockmaker", "a shy ghost",
)  # fmt: skip
_PLACES = (
    "in a forest that never sleeps", "on a small island", "in a city under the sea", "high up in the mountains",
    "in a village without children", "on the moon", "in an abandoned theatre", "during a long winter", "in the desert",
    "on a night train",
)  # fmt: skip
_STORIES = (
    "Write a short story about {hero} {place}.", "Tell me a bedtime story about {hero} {place}.",
    "Once upon a time there was {hero} {place}. Continue the story.", "Write a tale in which {hero} finds a friend {place}.",
)  # fmt: skip

_TONGUES = ("French", "Spanish", "German", "Italian", "Portuguese")
_SENTENCES = (
    "Good morning, how are you today?", "The book is on the table.", "I would like a cup of coffee with milk, please.",
    "Where is the nearest train station?", "My sister lives in a small house near the river.",
    "We are going to the market to buy vegetables.", "The children are playing football in the park.",
    "He has been working in this company for ten years.", "It is very cold today, so take your coat.",
    "Thank you very much for your help.", "The film starts at eight o'clock in the evening.",
    "My favourite season is spring, because everything is green.", "Can you help me find my keys?",
    "They travelled around the world for a year.", "The doctor told him to rest for a week.",
    "I have two dogs and a cat.", "The school is closed on Saturday and Sunday.", "She speaks three languages fluently.",
    "The old man told us a story about the war.", "I forgot my umbrella at the office.",
    "What time does the library open?", "We had dinner in a restaurant by the sea.",
    "The bus was late because of the snow.", "My father cooks very well.", "There is a big tree in front of my window.",
    "I am learning to play the guitar.", "The water in the lake is clear and cold.", "Please close the door behind you.",
    "The birds were singing early in the morning.", "You can pay with cash or by card.",
)  # fmt: skip
_TRANSLATION = (
    "Translate to {tongue}: {sentence}", "Translate this sentence into {tongue}: {sentence}",
    "How do you say in {tongue}: {sentence}", "Translate to {tongue}: {sentence} {other}",
)  # fmt: skip

Generator = np.random.Generator


def _choice(generator: Generator, parts: tuple[str, ...]) -> str:
    return parts[int(generator.integers(len(parts)))]


def _code(generator: Generator) -> str:
    return _choice(generator, _CODE).format(language=_choice(generator, _LANGUAGES), task=_choice(generator, _TASKS))


def _maths(generator: Generator) -> str:
    a, b, c, d = (int(generator.integers(low, high)) for low, high in ((3, 60), (2, 20), (2, 9), (60, 400)))
    return _choice(generator, _MATHS).format(
        name=_choice(generator, _NAMES), things=_choice(generator, _THINGS), a=a, b=b, c=c, d=d
    )


def _story(generator: Generator) -> str:
    return _choice(generator, _STORIES).format(hero=_choice(generator, _HEROES), place=_choice(generator, _PLACES))


def _translation(generator: Generator) -> str:
    parts = {"sentence": _choice(generator, _SENTENCES), "other": _choice(generator, _SENTENCES)}
    return _choice(generator, _TRANSLATION).format(tongue=_choice(generator, _TONGUES), **parts)


DOMAINS: dict[str, Callable[[Generator], str]] = {
    "code": _code,
    "maths": _maths,
    "stories": _story,
    "translation": _translation,
}
"""Each domain, and how a prompt of it is made up."""


def prompts(domain: str, count: int, seed: int = 0) -> list[str]:
    """``count`` different prompts of a domain, the same ones for the same seed."""
    generator = np.random.default_rng([seed, sorted(DOMAINS).index(domain)])
    distinct: dict[str, None] = {}
    while len(distinct) < count:
        distinct[DOMAINS[domain](generator)] = None
    return list(distinct)
