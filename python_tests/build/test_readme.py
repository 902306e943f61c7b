# SPDX-License-Identifier: Apache-2.0
"""The README is tested: its Python runs, its paths exist, its commands are the ones that exist."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

from specdec_kernels.registry import FUNCTIONS, OPS
from specdec_kernels.rules import TABLE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_python_blocks_print_what_they_say():
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert any(">>>" in block for block in blocks)
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    test = parser.get_doctest("\n".join(blocks), {}, "README", "README.md", 0)
    assert runner.run(test).failed == 0


@pytest.mark.parametrize(
    "path",
    sorted(
        set(
            re.findall(
                r"`((?:csrc|specdec_kernels|python_tests|bench|\.ci)/[^`\s*<>]*|[A-Za-z_.]+\.(?:py|toml|md)|Makefile|LICENSE)`",
                README,
            )
        )
    ),
)
def test_paths_exist(path):
    assert (ROOT / path).exists(), path


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make ([a-z]+)", README))))
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m ([\w.]+)", README))))
def test_modules_exist(module):
    assert importlib.util.find_spec(module)


def test_the_table_of_rules():
    """A row for each rule, in the words of specdec_kernels/rules.py."""
    section = README.split("## Rules")[1].split("\n## ")[0]
    wanted = []
    for name, rule in TABLE.items():
        alpha = "; ".join(f"{x.name} in {x.range}, {x.default:g}" for x in rule.parameters) or "-"
        wanted.append(f"| `{name}` | {alpha} | {'law' if rule.defines_distribution else 'test'} | {rule.says} |")
    assert re.findall(r"^\| `.*", section, re.M) == wanted
    ends = [f"`{name}` at {rule.exact_at:g}" for name, rule in TABLE.items() if rule.exact_at not in (None, 1)]
    ends.append(
        ", ".join(f"`{name}`" for name, rule in TABLE.items() if rule.exact_at == 1).replace(", ", " and ") + " at 1"
    )
    assert ", ".join(ends) + " are the exact rule" in section


def test_cli_commands_exist():
    from specdec_kernels.cli import COMMANDS

    assert set(re.findall(r"python -m specdec_kernels (\w+)", README)) <= set(COMMANDS)


def test_the_table_of_ops():
    """A row for each op, and a word of each public function."""
    table = README.split("\n| op (")[1].split("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(OPS)
    assert all(f"`{name}`" in table for name in FUNCTIONS)
