"""The counting suffix tree knows of every run of tokens exactly what a naive count of substrings knows."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz.drafting.memory.output_store import OutputStore
from specviz.drafting.memory.suffix_guess import LengthRule, best_guess, matches
from specviz.drafting.memory.suffix_tree import SuffixTree

# Few different tokens and runs that come again make the matches that random text lacks.
RUNS = st.lists(st.sampled_from([[0], [1], [2], [0, 1, 2, 3], [3, 3], [1, 1, 0, 2, 1], [4, 0, 1, 2, 3, 4]]), max_size=14)
TEXT = RUNS.map(lambda runs: [token for run in runs for token in run])
DEPTHS = st.sampled_from([1, 2, 3, 5, 9, 64])


def counted(texts, depth):
    """How often every run of at most ``depth`` tokens occurs."""
    found = Counter()
    for text in texts:
        for start in range(len(text)):
            found.update(tuple(text[start:end]) for end in range(start + 1, min(start + depth, len(text)) + 1))
    return found


def test_an_emptied_tree_is_empty():
    tree = SuffixTree()
    text = tree.start()
    tree.extend([1, 2, 1, 2, 3] * 30)
    assert tree.root.children
    tree.remove(text)
    assert (tree.root.children, tree.root.count) == ({}, 0)


class Naive:
    """The published rule read off plain substring counts; ``last`` is where a run occurs last, over all texts."""

    def __init__(self, texts, depth, rule):
        self.counts, self.rule, self.depth = counted(texts, depth), rule, depth
        self.last = {}
        base = 0
        for text in texts:
            for start in range(len(text)):
                for end in range(start + 1, min(start + depth, len(text)) + 1):
                    self.last[tuple(text[start:end])] = base + start
            base += len(text)
        self.tokens = sorted({token for text in texts for token in text})

    def following(self, run):
        seen = [token for token in self.tokens if (*run, token) in self.counts]
        seen.sort(key=lambda token: (-self.counts[*run, token], -self.last[*run, token]))
        return [(token, self.counts[*run, token] / self.counts[run]) for token in seen]

    def drafts(self, text):
        """(score, match length, drafted runs with their probabilities) of the best match length."""
        best = (0.0, 0, [])
        for length in range(1, min(len(text) - 1, self.depth) + 1):
            run = tuple(text[-length:])
            if run not in self.counts:
                break
            limit = min(self.rule.most, int(length * self.rule.factor + self.rule.offset + 1e-6))
            nodes = self.tree(run, limit) if self.rule.tree else self.path(run, limit)
            score = sum(probability for _, probability in nodes)
            if nodes and score >= best[0]:
                best = (score, length, nodes)
        return best

    def path(self, run, limit):
        found, probability, now = [], 1.0, run
        while len(found) < limit and self.following(now):
            token, share = self.following(now)[0]
            probability *= share
            if probability < self.rule.floor:
                break
            now = (*now, token)
            found.append((now[len(run) :], probability))
        return found

    def tree(self, run, limit):
        found = []
        waiting = []

        def offer(below, probability):
            for token, share in self.following((*run, *below)):
                if probability * share >= self.rule.floor:
                    waiting.append((probability * share, len(met), (*below, token)))
                    met.append(token)

        met = []
        offer((), 1.0)
        while waiting and len(found) < limit:
            probability, place, below = max(waiting, key=lambda one: (one[0], -one[1]))
            waiting.remove((probability, place, below))
            found.append((below, probability))
            offer(below, probability)
        return found


RULES = st.builds(
    LengthRule,
    most=st.sampled_from([3, 8, 64]),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    offset=st.sampled_from([0.0, 2.0, -1.0]),
    floor=st.sampled_from([0.1, 0.3, 0.01]),
    tree=st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(TEXT, DEPTHS)
def test_the_present_end_of_the_text_stands_where_a_search_finds_it(text, depth):
    tree = SuffixTree(depth)
    tree.start()
    for size in range(1, len(text) + 1):
        tree.extend(text[size - 1 : size])
        assert tree.present() == matches(tree, text[:size])


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=3), DEPTHS, RULES)
def test_drafts_equal_those_of_a_naive_substring_counter(texts, depth, rule):
    tree = SuffixTree(depth)
    for text in texts:
        tree.start()
        tree.extend(text)
    for text in (texts[-1], texts[0]):
        guess, _ = best_guess(matches(tree, text), depth, rule)
        assert guess == best_guess(matches(tree, text), depth, rule, all_lengths=True)[0], "what is not tried cannot win"
        score, length, nodes = Naive(texts, depth, rule).drafts(text)
        assert guess.score == pytest.approx(score)
        runs = [()]
        for token, parent in zip(guess.tokens, guess.parents, strict=True):
            runs.append((*runs[parent], token))
        assert runs[1:] == [run for run, _ in nodes]
        assert guess.probability == pytest.approx([probability for _, probability in nodes])
        assert guess.matched == length


def test_the_store_forgets_its_oldest_outputs():
    store = OutputStore(most_outputs=3, most_tokens=50)
    for number in range(6):
        store.add([number, 100, number, 101])
    assert (store.outputs, store.tokens) == (3, 12)
    assert store.ask(lambda tree: tree.find([2, 100])) is None
    assert store.ask(lambda tree: tree.find([5, 100])) is not None
    store.add(list(range(60)))
    assert (store.outputs, store.tokens) == (1, 50), "of an output that is too long its end stays"
    assert store.ask(lambda tree: tree.find([9])) is None
    assert store.ask(lambda tree: tree.find([58, 59])) is not None


def test_a_limit_that_shrinks_forgets_at_once():
    store = OutputStore()
    for number in range(6):
        store.add([number, 100])
    store.most_outputs = 2
    store.add(())
    assert store.outputs == 2 and store.ask(lambda tree: tree.find([3, 100])) is None


def test_an_empty_output_is_nothing_to_remember():
    store = OutputStore()
    store.add([])
    assert (store.outputs, store.tokens) == (0, 0)
