# SPDX-License-Identifier: Apache-2.0
"""Mutation of a source file: replacement of a piece of text, whatever its white space."""

import re


def places(text: str, old: str) -> list[re.Match]:
    """Find all occurrences of `old` in a source, with any white space between its tokens."""
    tokens = re.findall(r"\w+|[^\w\s]", old)
    pattern = r"\s*".join(map(re.escape, tokens))
    return list(
        re.finditer(
            rf"(?<!\w){pattern}(?!\w)" if tokens[0][0].isalnum() and tokens[-1][-1].isalnum() else pattern, text
        )
    )


def changed(text: str, old: str, new: str) -> str:
    """Replace `old`, which must occur once in `text`, by `new`; white space around it is kept."""
    found = places(text, old)
    assert len(found) == 1, f"this stands there {len(found)} times: {old}"
    return text[: found[0].start()] + new.strip() + text[found[0].end() :]
