# SPDX-License-Identifier: Apache-2.0
"""One thing wrong in a source file, named by what stands there: how a formatter lays it out does not matter."""

import re


def places(text: str, old: str) -> list[re.Match]:
    """Where `old` occurs in a source, whatever white space lies between its tokens."""
    tokens = re.findall(r"\w+|[^\w\s]", old)
    pattern = r"\s*".join(map(re.escape, tokens))
    return list(
        re.finditer(
            rf"(?<!\w){pattern}(?!\w)" if tokens[0][0].isalnum() and tokens[-1][-1].isalnum() else pattern, text
        )
    )


def changed(text: str, old: str, new: str) -> str:
    """`text` with `new` in the place of `old`, which occurs once; the white space around it stays."""
    found = places(text, old)
    assert len(found) == 1, f"this stands there {len(found)} times: {old}"
    return text[: found[0].start()] + new.strip() + text[found[0].end() :]
