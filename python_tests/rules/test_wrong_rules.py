# SPDX-License-Identifier: Apache-2.0
"""docs/wrong_rules.md: its numbers equal an enumeration, and specdec_kernels.testing finds its wrong rules, except
those that change almost nothing."""

import re
from collections import defaultdict
from functools import partial

import pytest
from support import wrong_rule_mutants
from support import wrong_rules as wrong
from support.paths import ROOT
from support.tree_laws import error
from support.wrong_rule_cases import RULES, alone

from specdec_kernels import testing
from specdec_kernels.registry import OPS

PAGE = {  # heading: text
    part.partition("\n")[0]: part for part in (ROOT / "docs/wrong_rules.md").read_text().split("\n## ")[1:]
}
DRAWS = 40_000
SEEN = 0.03  # larger than the shift in total variation that so many draws detect


def shift(law, other):
    return sum(abs(law.get(t, 0.0) - other.get(t, 0.0)) for t in {*law, *other}) / 2


def columns(full):
    """Return (heading, sequences) of each column. Many ids are grouped by their probabilities."""
    every = sorted({tokens for law in full.values() for tokens in law})
    if len(every) <= 9:
        return [(" ".join(map(str, tokens)), [tokens]) for tokens in every]
    groups = defaultdict(list)
    for tokens in every:
        groups[tuple(round(law.get(tokens, 0.0), 9) for law in full.values())].append(tokens)
    names = [f"{len(group)} ids" if len(group) > 1 else f"id {group[0][0]}" for group in groups.values()]
    return [*zip(names, groups.values())]


def number(x):
    return f"{x:.4g}" if x > 1e-12 else "0"


def table(entry):
    p, _ = entry.sides()
    laws = entry.laws()
    full = {name: testing.complete_law(law, p, entry.length) for name, law in laws.items()}
    names, groups = zip(*columns(full))
    blocks = entry.length > 1
    head = ["tokens", *names, "total variation", *["tokens per step"] * blocks]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, law in full.items():
        length = sum(len(tokens) * mass for tokens, mass in laws[name].items())
        numbers = (*(law.get(group[0], 0.0) for group in groups), shift(law, full["right"]), *[length] * blocks)
        lines.append(f"| {' | '.join([name, *map(number, numbers)])} |")
    return "\n".join(lines)


def test_the_page_has_every_rule():
    assert [title for title in PAGE if title in RULES] == [*RULES]


@pytest.mark.parametrize("title", RULES)
def test_the_page_shows_the_numbers(title):
    entry = RULES[title]
    assert table(entry) in PAGE[title], f"docs/wrong_rules.md, {title}:\n\n{table(entry)}"
    text, _, right = " ".join(PAGE[title].split()).partition("**Right:**")
    for name, side in ("p", entry.p), ("q", entry.q):
        if not isinstance(side, int) and len(side) < 10:
            assert f"{name} = ({', '.join(map(number, side))})" in text
    assert {*re.findall(r"`(?:sk\.)?(\w+)", right)} & {*OPS}


def compared(entry, sampler):
    """Compare the first tokens of a function of seeds with plain decoding."""
    p, _ = entry.sides()

    def draw(seeds):
        return testing.complete_tokens(sampler(seeds), p, entry.length)

    return testing.check_law(draw, testing.enumerate_law(p, entry.length), DRAWS)


@pytest.mark.parametrize("title", RULES)
def test_right_rules_pass(title):
    """The right rule has the target's distribution by enumeration, and the op's draws pass."""
    entry = RULES[title]
    p, q = entry.sides()
    assert error(entry.right(p, q), p, entry.length) < 1e-12
    assert compared(entry, lambda seeds: entry.verify(entry.step(seeds)))


@pytest.mark.parametrize(("title", "name"), [(title, name) for title, entry in RULES.items() for name in entry.rules])
def test_wrong_rules_are_found(title, name):
    """All wrong rules are found, except those that shift the distribution by less than 1e-3."""
    entry = RULES[title]
    p, q = entry.sides()
    size = shift(*(testing.complete_law(entry.laws()[x], p, entry.length) for x in (name, "right")))
    report = compared(entry, lambda seeds: wrong.drawn(lambda draw: entry.rules[name](draw, p, q), seeds))
    assert report.detects < max(size, SEEN) and (size < 1e-3 or SEEN < size)
    assert bool(report) == (size < 1e-3)


def test_an_impossible_token_is_found_at_once():
    """A uniform of 24 bits is 0 too seldom to be found. With 10 bits, the impossible token is found."""
    entry = RULES["A coin of 0 accepts an impossible token"]
    rule = alone(partial(wrong.zero_accepted, bits=10))
    report = compared(entry, lambda seeds: wrong.drawn(lambda draw: rule(draw, *entry.sides()), seeds))
    assert [cell.outcome for cell in report.impossible] == [(0,)]


@pytest.mark.parametrize("check", wrong_rule_mutants.CHECKS)
def test_every_backend_passes_what_mutants_fail(backend, check):
    check(backend)
