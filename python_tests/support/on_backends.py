# SPDX-License-Identifier: Apache-2.0
"""Print the test files with a test that runs on every backend, for bench/gpu_check.sh.

Such a test takes a fixture of conftest.py that is parametrised by backends, or one made from it. This program parses
the tests' sources, since importing them all takes long.
"""

import ast
from pathlib import Path

HERE = Path(__file__).parents[1]


def functions(path):
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]


def arguments(function):
    return {argument.arg for argument in function.args.args}


def fixtures():
    """Return the fixtures in conftest.py whose params are _params(...), and those that use one of these."""
    found = {
        f.name for f in functions(HERE / "conftest.py") for d in f.decorator_list if "params=_params(" in ast.unparse(d)
    }
    assert found, "conftest.py parametrizes no fixture by backends"
    while (
        more := {f.name for f in functions(HERE / "conftest.py") if f.decorator_list and arguments(f) & found} - found
    ):
        found |= more
    return found


def files():
    taken = fixtures()
    return [
        path
        for path in sorted(HERE.glob("*/test_*.py"))
        if any(arguments(f) & taken for f in functions(path) if f.name.startswith("test_"))
    ]


if __name__ == "__main__":
    print(*(path.relative_to(HERE.parent) for path in files()))
