"""A toy programming language whose text is mostly determined: for proofs that need a drafter which can know what comes.

A question is a specification: the function's name, its two arguments and what it does, step by step, all drawn at random. The
answer is the program. What the specification leaves open is what each step calls its variable, drawn anew with lopsided
probabilities, as programmers do; once it is drawn, the rest of its statement follows, and the first one is returned in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

START, END, ASK, LINE, INDENT = "<start>", "<end>", "<ask>", "<line>", "<indent>"
NAMES = ("area", "blend", "count", "dist", "edge", "fold", "gain", "heap", "join", "keep", "load", "mean")
ARGUMENTS = ("a", "b", "c", "k", "m", "n", "p", "q", "s", "t", "u", "w")
VARIABLES = ("x", "y", "z", "v", "r", "d")
LOPSIDED = np.array([0.6, 0.2, 0.1, 0.05, 0.03, 0.02])
STEPS = {
    "SUM": "V = 0 | for i in A : | _ V += i",
    "FILTER": "V = [ ] | for i in A : | _ if i > B : | _ _ V . append ( i )",
    "CALL": "V = F ( B , A )",
    "REPEAT": "V = B | while V < A : | _ V = V * B | _ print ( V )",
    "GUARD": "if A == B : | _ return A | V = A - B",
    "PAIR": "V = [ A , B ] | print ( V [ 0 ] )",
}
"""What each step becomes: A, B, F and V stand for the arguments, the function and the step's variable."""
DONE = 3
"""Steps of a program."""
SIGNS = tuple(dict.fromkeys(sign for body in STEPS.values() for sign in body.split() if sign not in "ABFV|_"))
FIXED = (START, END, ASK, LINE, INDENT, "def", ",", "return", "#")
WORDS = tuple(dict.fromkeys((*FIXED, *NAMES, *ARGUMENTS, *VARIABLES, *STEPS, *SIGNS)))
IDS = {word: number for number, word in enumerate(WORDS)}


def program(generator: np.random.Generator) -> tuple[list[str], list[str]]:
    """A question and its answer, as words."""
    name = str(generator.choice(NAMES))
    first, second = (str(argument) for argument in generator.choice(ARGUMENTS, 2, replace=False))
    steps = [str(kind) for kind in generator.choice(list(STEPS), DONE, replace=False)]
    answer = ["def", name, "(", first, ",", second, ")", ":", LINE]
    variables: list[str] = []
    for step in steps:
        variables.append(str(generator.choice(VARIABLES, p=LOPSIDED)))
        substitutes = {"A": first, "B": second, "F": name, "V": variables[-1], "|": LINE, "_": INDENT}
        for line in (f"# {step}", *STEPS[step].split(" | ")):
            answer += [INDENT, *(substitutes.get(sign, sign) for sign in line.split()), LINE]
    answer += [INDENT, "return", variables[0], LINE]
    return [name, first, second, *steps, ASK], [*answer, END]


def programs(count: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """Questions and answers as token ids; all questions are equally long."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        question, answer = program(generator)
        yield [IDS[word] for word in question], [IDS[word] for word in answer]


def text(ids: Sequence[int]) -> str:
    """Token ids as a person reads them."""
    return " ".join(WORDS[token] for token in ids).replace(f" {LINE} ", "\n").replace(INDENT, "   ")
