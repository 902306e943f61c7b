# SPDX-License-Identifier: Apache-2.0
"""The docstrings of all public functions have one form, and their examples print what they show."""

import doctest
import inspect
import re

import pytest
import torch

import specdec_kernels as sk
from specdec_kernels.registry import FUNCTIONS

SECTIONS = ["Args", "Returns", "Raises", "Example", "Source"]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_form(function):
    text = inspect.getdoc(getattr(sk, function))
    assert re.findall(r"^(Args|Arguments|Returns|Raises|Errors|Examples?|Notes?|Sources?):", text, re.M) == SECTIONS
    arguments = text.split("\nArgs:\n")[1].split("\nReturns:\n")[0]
    parameters = list(inspect.signature(getattr(sk, function)).parameters)
    said = {name for name in parameters if re.search(rf"\b{name}\b", arguments)}
    assert said == set(parameters)


@pytest.mark.parametrize("function", [*FUNCTIONS, "Rows", "stack_rows", "vocab_map"])
def test_example_prints_what_it_says(function):
    known = {function: getattr(sk, function), "torch": torch, "Rows": sk.Rows, "specdec_kernels": sk}
    [test] = doctest.DocTestFinder(recurse=False).find(known[function], function, globs=known)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test).failed == 0
