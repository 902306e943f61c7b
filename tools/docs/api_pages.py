# SPDX-License-Identifier: Apache-2.0
"""The API pages that are made from the code: one for each op, one for `Rows`, three for the decode loop, an index."""

from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
OPS = "api/ops"  # the entry in the navigation of mkdocs.yml that the ops' pages replace
FIRST = ("generate", "load_pair", "stream", "Session", "Request", "Output", "Result", "Event", "Stats", "Pair")
HAND_WRITTEN = {
    "rules": "names of the rules, bits of `status`, domains of the random numbers",
    "distributed": "the ops on rows that are split over ranks",
    "engines": "FlashInfer's, SGLang's and transformers' calls on these ops",
    "backends": "what runs where, and why",
    "reference": "the same rules in float64, row by row",
    "testing": "test any engine's verification against exact joint distributions",
    "theory": "formulas for the gain of speculation",
}
LOOP = {
    "decode": ("Decode loop", "Decode requests with a target and a drafter. Needs the extra `decode`."),
    "drafters": ("Drafters", "Where draft tokens come from. Give one to `generate`, `stream` or `Session`."),
    "models": ("Models", "How the loop sees a model: `adapt` serves a model of your own."),
}


@cache
def source():
    """Return the package, parsed by griffe without importing it."""
    return griffe.load("specdec_kernels", search_paths=[ROOT], allow_inspection=False)


def exported(module=""):
    """Return name -> where it is defined, for the names that a package's __init__ imports from its modules."""
    package = source()[module] if module else source()
    return {
        name: member.target_path
        for name, member in package.members.items()
        if member.is_alias and member.target_path.startswith("specdec_kernels.") and not name.startswith("_")
    }


def ops():
    """Return page -> the public names on it. An op's page has those of its file, the function first."""
    found = {"Rows": ["Rows", "Allowed", "Bias", "Penalties", "VocabMap", "history", "stack_rows", "vocab_map"]}
    for name, path in exported().items():
        parts = path.split(".")
        if parts[1] == "ops" and name != "stack_rows":
            found.setdefault(parts[2], []).append(name)
    return {op: sorted(names, key=lambda name: name not in (op, "Rows")) for op, names in sorted(found.items())}


def loop():
    """Return page -> names of specdec_kernels.decode. Those in FIRST are on the first, most others by their folder."""
    found = {page: [] for page in LOOP}
    for name, path in exported("decode").items():
        folder = path.split(".")[2]
        page = folder if folder in found and name not in FIRST else "decode"
        found["drafters" if page == "decode" and folder == "proposal" else page].append(name)
    rank = {name: i for i, name in enumerate(FIRST)}
    return {page: sorted(names, key=lambda name: rank.get(name, len(rank))) for page, names in found.items()}


def address(op):
    return f"api/ops/{op.lower()}.md"


def body(title, text, module, names):
    return f"# {title}\n\n{text}\n\n" + "\n\n".join(f"::: {module}.{name}" for name in names) + "\n"


def first_line(name):
    docstring = source()[exported()[name].removeprefix("specdec_kernels.")].docstring
    return docstring.value.split("\n\n")[0].replace("\n", " ").strip() if docstring else ""


def index():
    rows = [f"| [`{op}`](ops/{op.lower()}.md) | {first_line(names[0])} |" for op, names in ops().items()]
    pages = [
        f"| [{title}]({page}.md) | {', '.join(f'`{n}`' for n in loop()[page])} |" for page, (title, _) in LOOP.items()
    ]
    pages += [f"| [{page.capitalize()}]({page}.md) | {text} |" for page, text in HAND_WRITTEN.items()]
    return (
        "# API\n\nEvery public name, from its docstring. Each op is also `torch.ops.specdec.<name>`.\n\n"
        "| op | |\n|---|---|\n" + "\n".join(rows) + "\n\n| page | names |\n|---|---|\n" + "\n".join(pages) + "\n"
    )


def generated():
    """Return address -> Markdown of every generated page."""
    pages = {"api/index.md": index()}
    for op, names in ops().items():
        pages[address(op)] = body(op, "", "specdec_kernels", names)
    for page, names in loop().items():
        pages[f"api/{page}.md"] = body(*LOOP[page], "specdec_kernels.decode", names)
    return pages


def with_ops(nav):
    """Return the navigation with the ops' pages in place of OPS."""
    if isinstance(nav, list):
        return [with_ops(item) for item in nav]
    if isinstance(nav, dict):
        return {name: with_ops(item) for name, item in nav.items()}
    return [{op: address(op)} for op in ops()] if nav == OPS else nav
