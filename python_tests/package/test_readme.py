# SPDX-License-Identifier: Apache-2.0
"""Paths, links and commands that README and the other pages name exist, and their tables are complete.
test_page_code.py runs their code."""

import importlib
import re

import pytest
from support.paths import ROOT

import specdec_kernels as sk
from specdec_kernels.registry import FUNCTIONS, OPS, RULES

PAGES = [
    "README.md",
    "HACKING.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
TEXT = {page: (ROOT / page).read_text() for page in PAGES}
FOLDERS = "csrc|specdec_kernels|python_tests|bench|demo|docs|examples|tools|build_tools|\\.ci|\\.github"
PATH = rf"`((?:{FOLDERS})/[^`\s*<>{{}}]*|[A-Za-z_.-]+\.(?:py|toml|md|yaml)|Makefile|LICENSE)`"


def found(pattern):
    return sorted({(page, match) for page, text in TEXT.items() for match in re.findall(pattern, text)})


ELSEWHERE = {
    "docs/papers.md": ["csrc", "specdec_kernels", "specdec_kernels/reference"],
    "docs/tours.md": ["specdec_kernels/decode"],
}  # other folders that a page's paths may start from


@pytest.mark.parametrize("page, path", found(PATH))
def test_paths_exist(page, path):
    assert any((ROOT / folder / path).exists() for folder in ["", *ELSEWHERE.get(page, [])]), path


@pytest.mark.parametrize("page, target", found(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)"))
def test_links_lead_somewhere(page, target):
    assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page, target", found(r"(?m)(?:^|`)make ([a-z][a-z0-9-]+)"))
def test_make_targets_exist(page, target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.parametrize("page, module", found(r"python -m ([\w.]+)"))
def test_modules_exist(page, module):
    assert importlib.util.find_spec(module)


def test_the_install_is_what_make_does():
    """README installs the versions of packages that make installs, extras that exist, and into make's environment
    folder."""
    makefile, project = (ROOT / "Makefile").read_text(), (ROOT / "pyproject.toml").read_text()
    block = re.search(r"```sh\n(.*?)```", TEXT["README.md"], re.S)[1]
    extras = re.search(r'-e "\.\[(.*?)\]"', block)[1].split(",")
    assert "decode" in extras and all(re.search(rf"(?m)^{extra} = \[", project) for extra in extras)
    assert re.search(r"(?m)^VENV := (.*)", makefile)[1] == re.search(r"-m venv (\S+)", block)[1]
    model, torch = (re.search(rf"(?m)^pip install {how}(\S+==\S+)", block)[1] for how in ("--no-deps ", ""))
    assert f'"{model}"' in makefile and f"\nTORCH ?= {torch}\n" in makefile
    built, named = (
        re.search(pattern, text)[1].replace('"', "").split()
        for pattern, text in ((r'"\$\(TORCH\)" (.*)\n', makefile), (r'(?m)^pip install ("setuptools.*)', block))
    )
    assert built == named


def test_the_hooks_of_a_commit_are_the_checks_of_make_lint():
    makefile, hooks = (ROOT / "Makefile").read_text(), (ROOT / ".pre-commit-config.yaml").read_text()
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.M)[1]
    check = r"(ruff \w+|check-jsonschema --builtin-schema \S+|[\w-]+)"
    wanted = re.findall(rf"^\t\$\(BIN\)/{check}", recipe, re.M)
    assert len(wanted) == recipe.count("\n") and sorted(wanted) == sorted(
        re.findall(rf"entry: \.venv/bin/{check}", hooks)
    )
    for schema, files in re.findall(r"--builtin-schema (\S+)\n.*\n +files: '(.*)'", hooks):
        named = re.search(rf"{schema} (.*)", recipe)[1]
        for path in re.findall(r"(?<![\w/])[\w./]+\.(?:yml|cff)", named.replace("*", "any")):
            assert re.search(files, path), f"the hook of {schema} leaves out {path}"


def test_the_table_of_ops():
    """README has a row for each op and names each public function. The page of numbers has a row for each op too."""
    row = r"^\| `(\w+)` \|"
    table = TEXT["README.md"].split("| op | does")[1].split("\n\n")[0]
    assert set(re.findall(row, table, re.M)) == set(OPS) and all(f"`{name}`" in table for name in FUNCTIONS)
    assert set(re.findall(row, TEXT["docs/numbers.md"].split("## Ops")[1].split("\n## ")[0], re.M)) == set(OPS)


def test_every_op_can_be_found():
    """docs/which_op.md names every public function, and docs/examples.md every program of examples/."""
    assert not [name for name in FUNCTIONS if f"`{name}`" not in TEXT["docs/which_op.md"]]
    programs = [path for path in (ROOT / "examples").rglob("*.*") if path.suffix in (".py", ".cpp")]
    assert programs and all(f"`{path.relative_to(ROOT)}`" in TEXT["docs/examples.md"] for path in programs)


def test_the_table_of_rules():
    """docs/choosing.md has a row for each rule, in the words of specdec_kernels/registry.py."""
    section = TEXT["docs/choosing.md"].split("## Rules")[1].split("\n## ")[0]
    wanted = []
    for name, rule in RULES.items():
        alpha = "; ".join(f"{x.name} in {x.range}, {x.default:g}" for x in rule.parameters) or "-"
        wanted.append(
            f"| `{name}` | {alpha} | {'distribution' if rule.defines_distribution else 'test'} | {rule.says} |"
        )
    assert re.findall(r"^\| `.*", section, re.M) == wanted
    ends = [f"`{name}` at {rule.exact_at:g}" for name, rule in RULES.items() if rule.exact_at not in (None, 1)]
    ends.append(" and ".join(f"`{name}`" for name, rule in RULES.items() if rule.exact_at == 1) + " at 1")
    assert ", ".join(ends) + " are the exact rule" in section


def test_the_table_of_status_bits():
    bits = re.findall(r"^\| (\d+) \| `(STATUS_\w+)` \|", TEXT["docs/guide.md"], re.M)
    assert [(int(bit), name) for bit, name in bits] == [
        (getattr(sk, name), name)
        for name in ("STATUS_INVALID_ROW", "STATUS_EMPTY_RESIDUAL", "STATUS_INVALID_DRAFT", "STATUS_INVALID_BONUS")
    ]


def test_papers_name_functions_that_exist():
    """The page of papers writes `file` `name`, `name`, `file` `name` ...: each file defines the names after it."""
    named = 0
    for line in TEXT["docs/papers.md"].splitlines():
        for path, names in re.findall(r"`([\w/]+\.(?:py|h))`((?:,? `\w+`)+)", line):
            file = next(f for folder in ELSEWHERE["docs/papers.md"] if (f := ROOT / folder / path).exists())
            for name in re.findall(r"`(\w+)`", names):
                pattern = rf"^def {name}\(" if file.suffix == ".py" else rf"\b{name}\([^;]*\{{"
                assert re.search(pattern, file.read_text(), re.M), f"{name} in {path}"
                named += 1
    assert named > 60


def test_cli_commands_exist():
    from specdec_kernels.cli import COMMANDS

    assert {command for _, command in found(r"python -m specdec_kernels (\w+)")} <= set(COMMANDS)
