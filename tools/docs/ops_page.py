# SPDX-License-Identifier: Apache-2.0
"""The sections of docs/ops.md, one per op, made from specdec_kernels/arguments.py.

`python -m tools.docs.ops_page` writes them.
"""

from pathlib import Path

from specdec_kernels import registry
from specdec_kernels.arguments import TABLE, TYPES, Argument, results, taken

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"
DOMAINS = {name.removeprefix("DOMAIN_").lower(): x for name, x in vars(registry).items() if name.startswith("DOMAIN_")}
NUMBERS = {
    "rule_numbers": "the rule's code, alpha, second alpha",
    "penalty_numbers": "repetition, frequency, presence",
    "numbers": ", ".join(registry.SAMPLING),
}


def codes(op: str, name: str) -> str:
    """Return the values of an int argument that is a code, each with its meaning."""
    methods = registry.CHAIN_METHODS if op == "verify_chain" else registry.TREE_METHODS
    known = {
        "kind": registry.ROW_KINDS,
        "format": registry.MASK_FORMATS,
        "domain": DOMAINS,
        "method": {word: x.code for word, x in methods.items()},
    }
    return ", ".join(f"{code} {word}" for word, code in known[name.rpartition("_")[2]].items())


def says(op: str, x: Argument) -> str:
    kind, dtypes = TYPES[x.type]
    if x.type == "code":
        return f"int: {codes(op, x.name)}"
    if x.type == "numbers":
        return f"float[]: {next(text for name, text in NUMBERS.items() if x.name.endswith(name))}; or None"
    text = " or ".join(filter(None, (", ".join(dtypes[:-1]), dtypes[-1]))) if dtypes else kind.replace("SymInt", "int")
    text += ", or None" * x.optional + ", written to" * x.is_written
    return text + (f", {x.default} by itself" if x.default is not None else "")


def section(op: str) -> str:
    lines = [f"\n## {op}\n", "| argument | public | type | shape |", "|---|---|---|---|"]
    for x in taken(op):
        shapes = " or ".join(f"[{shape}]" for shape in x.shapes)
        lines.append(f"| `{x.name}` | {f'`{x.public}`' * bool(x.public)} | {says(op, x)} | {shapes} |")
    lines += ["", "| result | type | shape |", "|---|---|---|"]
    for name, dtype, shape in results(op):
        lines.append(f"| `{name}` | {'by the format' if dtype == '-' else dtype} | {shape} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page. The part before the first op is written by hand and kept."""
    return PAGE.read_text().partition("\n## ")[0] + "".join(map(section, TABLE))


if __name__ == "__main__":
    PAGE.write_text(page())
