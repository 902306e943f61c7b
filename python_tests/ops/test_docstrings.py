# SPDX-License-Identifier: Apache-2.0
"""The docstrings of all public functions have one form, and every example in the package prints what it shows."""

import ast
import doctest
import functools
import importlib
import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import specdec_kernels as sk
from specdec_kernels import testing
from specdec_kernels.integrations import flashinfer
from specdec_kernels.registry import FUNCTIONS

PACKAGE = Path(sk.__file__).parent

SECTIONS = ["Args", "Returns", "Raises", "Example", "Source"]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_form(function):
    text = inspect.getdoc(getattr(sk, function))
    assert re.findall(r"^(Args|Arguments|Returns|Raises|Errors|Examples?|Notes?|Sources?):", text, re.M) == SECTIONS
    arguments = text.split("\nArgs:\n")[1].split("\nReturns:\n")[0]
    parameters = list(inspect.signature(getattr(sk, function)).parameters)
    said = {name for name in parameters if re.search(rf"\b{name}\b", arguments)}
    assert said == set(parameters)


def places():
    """Return module -> [name of what has an example], "" for the module itself, read from the package's files."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names = [
            name for name, node in documented(ast.parse(path.read_text())) if ">>> " in (ast.get_docstring(node) or "")
        ]
        if names:
            found[module] = names
    return found


def documented(node, name=""):
    yield name, node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from documented(child, f"{name}.{child.name}".lstrip("."))


PLACES = places()
LEFT_OUT = {
    ("specdec_kernels.decode.beams", "beam_search"): "prints a text that depends on the models",
    ("specdec_kernels.distributed.shards", "Shards"): "shows one of four ranks",
}


@pytest.mark.parametrize("module, name", [(m, name) for m in PLACES for name in PLACES[m] if (m, name) not in LEFT_OUT])
def test_example_prints_what_it_says(module, name):
    """An example may use the public names of the package, of the subpackage it is in, and of its module."""
    modules = [importlib.import_module(m) for m in ("specdec_kernels", ".".join(module.split(".")[:2]), module)]
    known = {n: getattr(m, n) for m in modules for n in getattr(m, "__all__", ())}
    known |= {"specdec_kernels": sk, "torch": torch, "np": np, "math": math}
    shown = functools.reduce(getattr, name.split("."), modules[-1]) if name else modules[-1]
    known[name.rpartition(".")[2]] = shown
    [test] = doctest.DocTestFinder(recurse=False).find(shown, name or module, globs=known)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(test).failed == 0


def test_examples_are_found():
    """Every public function of the package and of `theory` has an example. So do these, in other places."""
    found = {(m, name) for m in PLACES for name in PLACES[m]}
    public = [getattr(sk, f) for f in FUNCTIONS] + [getattr(sk.theory, f) for f in sk.theory.__all__]
    others = [sk.Rows, sk.Bias, flashinfer.chain_speculative_sampling, testing.Case]
    assert {(x.__module__, x.__qualname__) for x in public + others} <= found
    assert ("specdec_kernels.example_calls", "") in found and found > LEFT_OUT.keys()
