# SPDX-License-Identifier: Apache-2.0
"""Conversion of docstrings for the site's API pages.

In the sources docstrings have the form that reads best in help(): sections Example and Source, tables in columns, and
fields and constants documented by the comment on their line.
"""

import re
from itertools import pairwise
from pathlib import Path

import griffe


def table(match):
    """Convert a table in columns to Markdown. A line that starts with white space continues the row above."""
    lines = match[0].splitlines()
    starts = [m.start() for m in re.finditer("=+", lines[0])]
    cut = lambda line: [line[a:b].strip() for a, b in pairwise([*starts, None])]
    rows = []
    for line in (line for line in lines if not line.startswith("=")):
        if line[0].isspace():
            rows[-1] = [f"{above} {below}".strip() for above, below in zip(rows[-1], cut(line), strict=True)]
        else:
            rows.append(cut(line))
    rows.insert(1, ["---"] * len(starts))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def hanging(match):
    """Indent continuation lines of entries of Raises that are not indented."""
    head, body = match.groups()
    return head + re.sub(r"\n {4}(?! |\w+(?:, \w+)*: )", "\n" + " " * 8, body)


def rewritten(text):
    rule = r"^=+(?: +=+)+$\n?"
    text = re.sub(f"{rule}.*?{rule}.*?{rule}", table, text, flags=re.S | re.M)
    text = re.sub(r"::$", ":", text, flags=re.M)
    text = re.sub(r"(^Raises:\n)((?: {4}.*\n?)+)", hanging, text, flags=re.M)
    text = re.sub(
        r"^>>> (?:.+\n?)+", lambda bare: "Example:\n" + re.sub(r"^", "    ", bare[0], flags=re.M), text, flags=re.M
    )
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.M)
    return re.sub(r"^Source: ", "**Source:** ", text, flags=re.M)


class OneForm(griffe.Extension):
    def on_instance(self, *, obj, **kwargs):
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)

    def on_attribute_instance(self, *, attr, **kwargs):
        """Use the comment on the line of a field or constant as its docstring."""
        if attr.docstring is None and attr.lineno and isinstance(attr.filepath, Path):
            line = attr.filepath.read_text().splitlines()[attr.lineno - 1]
            if comment := re.search(r"  # (?!noqa|type:|fmt:)(.*)$", line):
                attr.docstring = griffe.Docstring(comment[1], lineno=attr.lineno, parent=attr)
