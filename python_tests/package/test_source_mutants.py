# SPDX-License-Identifier: Apache-2.0
"""The text that a mutant of a source replaces occurs exactly once. This quick test finds edits that lose one, long
before the mutants are compiled."""

import importlib
import re

import pytest
from support.mutant_packages import PACKAGE
from support.odd_views import VIEWS
from support.paths import ROOT, TESTS

from tools.mutate import places

FOLDERS = ROOT / "csrc", PACKAGE / "triton", ROOT
MODULES = [f"support.{path.stem}" for path in sorted((TESTS / "support").glob("*_mutants.py"))]
LISTS = {
    f"{module}.{name}": mutants
    for module in (*MODULES, "tools.cuda_on_cpu.mutants")
    for name, mutants in vars(importlib.import_module(module)).items()
    if isinstance(mutants, dict) and name.isupper()
}


def changes(x):
    """Yield every (file, its text, the mutant's text) in an entry of a list."""
    if isinstance(x, (tuple, list)):
        first = x[:3]
        if all(isinstance(y, str) for y in first) and re.fullmatch(r"[\w/]+\.(h|cuh|cu|cpp|py)", first[0]):
            yield first
        else:
            for y in x:
                yield from changes(y)


def lost(mutants):
    """Return the mutants whose text is not in the sources exactly once, or that change nothing."""
    found = {}
    for name, entry in mutants.items():
        made = [*changes(entry)]
        for file, old, new in made:
            text = next((path.read_text() for folder in FOLDERS if (path := folder / file).is_file()), "")
            n = len(places(text, old))
            if n != 1 or old.strip() == new.strip():
                found[name] = f"{file} says this {n} times: {old}"
        if not made:
            found[name] = "no file, what it says and what the mutant says"
    return found


def test_the_lists_are_found():
    assert len(LISTS) >= 8 and sum(map(len, LISTS.values())) > 200


@pytest.mark.parametrize("name", LISTS)
def test_every_mutant_finds_its_line(name):
    assert lost(LISTS[name]) == {}


@pytest.mark.parametrize("backend", VIEWS)
def test_the_throw_away_view_finds_its_lines(backend):
    text = (ROOT / VIEWS[backend].place).read_text()
    assert {line: text.count(line) for line in VIEWS[backend].lines if text.count(line) != 1} == {}


def test_a_lost_mutant_is_noticed():
    right = "rules/cascade.h", "return confidence_gap <= alpha;", "return confidence_gap < alpha;", None
    wrong = {
        "renamed": ("rules/cascade.h", "return the_gap <= alpha;", "return the_gap < alpha;", None),
        "in many places": ("rules/cascade.h", "return", "", None),
        "no such file": ("rules/cascades.h", *right[1:]),
        "no change": (right[0], right[1], right[1]),
        "of two changes one": (["base"], [right[:3], (right[0], "not there", "")]),
        "no file": right[1:],
    }
    assert lost({"right": right}) == {} and lost(wrong).keys() == wrong.keys()
