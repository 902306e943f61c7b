# SPDX-License-Identifier: Apache-2.0
"""Conversion of docstrings for the site's API pages.

In the sources docstrings have the form that reads best in help(): sections Example and Source, tables in columns, and
fields and constants documented by the comment on their line.
"""

import html
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


COMMENT = re.compile(r"^\s*# (.*)$")
TRAILING = re.compile(r"  # (?!noqa|type:|fmt:)(.*)$")


def said_of(lines, first, last):
    """Return the comment of a field or constant in these lines, which are numbered from 1.

    It is the comment at the end of its last line and in the comment lines below. If a field without such a comment
    follows, the lines below belong to that one. Without a comment at the end, it is the comment lines above.
    """
    if found := TRAILING.search(lines[last - 1]):
        more = []
        while last < len(lines) and (line := COMMENT.match(lines[last])):
            more.append(line[1])
            last += 1
        follows_field = last < len(lines) and re.match(r"    \w+: ", lines[last]) and not TRAILING.search(lines[last])
        return " ".join([found[1], *([] if follows_field else more)])
    above = []
    while first > 1 and (line := COMMENT.match(lines[first - 2])):
        above.insert(0, line[1])
        first -= 1
    return " ".join(above)


def code(text):
    """Return code for a cell of a table, in which a plain | would end the cell."""
    return f"<code>{html.escape(str(text), quote=False).replace('|', '&#124;')}</code>"


def default(value):
    made = re.fullmatch(r"field\(default_factory=(\w+)\b.*\)", str(value))
    return "" if value is None else code(f"{made[1]}()" if made else value)


def fields_of(cls):
    """Return the annotated attributes of a dataclass, NamedTuple, Protocol or Proposal; none for other classes."""
    bases = {str(base).split(".")[-1] for base in cls.bases}
    made = {str(x.value).split("(")[0].split(".")[-1] for x in cls.decorators}
    if not bases & {"NamedTuple", "Protocol", "Proposal"} and "dataclass" not in made:
        return []
    plain = (member for member in cls.members.values() if member.is_attribute and "property" not in member.labels)
    return [member for member in plain if member.annotation is not None]


def field_table(fields):
    """Return fields as a Markdown table: name, type, default, and comment."""
    says = lambda field: field.docstring.value.replace("|", "&#124;") if field.docstring else ""
    rows = [f"| `{x.name}` | {code(x.annotation)} | {default(x.value)} | {says(x)} |" for x in fields]
    return "\n".join(["| field | type | default | |", "|---|---|---|---|", *rows])


def constructor(cls, fields):
    """Give a NamedTuple an __init__, for its signature and the types of its Args."""
    kind = griffe.ParameterKind.positional_or_keyword
    parameters = [griffe.Parameter(x.name, annotation=x.annotation, kind=kind, default=x.value) for x in fields]
    made = griffe.Function("__init__", parameters=griffe.Parameters(griffe.Parameter("self", kind=kind), *parameters))
    cls.set_member("__init__", made)


class OneForm(griffe.Extension):
    def on_instance(self, *, obj, **kwargs):
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)

    def on_attribute_instance(self, *, attr, **kwargs):
        """Use the comment on the line of a field or constant as its docstring."""
        if attr.docstring is None and attr.lineno and isinstance(attr.filepath, Path):
            lines = attr.filepath.read_text().splitlines()
            if comment := said_of(lines, attr.lineno, attr.endlineno or attr.lineno):
                attr.docstring = griffe.Docstring(comment, lineno=attr.lineno, parent=attr)

    def on_class_members(self, *, cls, **kwargs):
        """Add a table of fields to the docstring of their class, without those that its Args describe."""
        fields = fields_of(cls)
        if not fields:
            return
        text = cls.docstring.value if cls.docstring else ""
        if any("NamedTuple" in str(base) for base in cls.bases):
            constructor(cls, fields)
        args = re.search(r"^Args:\n((?: {4}.*\n|\n)+)", text + "\n", re.M)
        others = [x for x in fields if not args or not re.search(rf"^ {{4}}{x.name}:", args[1], re.M)]
        if others:
            head, *rest = text.split("\n\n")
            cls.docstring = cls.docstring or griffe.Docstring("", parent=cls)
            cls.docstring.value = "\n\n".join([head, field_table(others), *rest]).strip()
        for field in fields:
            field.docstring = None
