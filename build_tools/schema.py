# SPDX-License-Identifier: Apache-2.0
"""What csrc/schema.cpp defines, as a header: made from specdec_kernels/arguments.py, which is loaded by its path, since
the package needs the library that is being built."""

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from itertools import takewhile
from pathlib import Path

_SPEC = spec_from_file_location("arguments", Path(__file__).parent.parent / "specdec_kernels" / "arguments.py")
arguments = module_from_spec(_SPEC)
_SPEC.loader.exec_module(arguments)


def listed(rows) -> str:
    """Arguments as a schema writes them. The last may be left out, as far as nothing behind them must be given."""
    last = len(rows) - len(list(takewhile(lambda x: x.may_be_left_out, reversed(rows))))
    each = (f"{arguments.TYPES[x.type][0]}{'?' * x.optional} {x.name}" for x in rows)
    return ", ".join(text + f"={x.default}" * (i >= last) for i, (x, text) in enumerate(zip(rows, each)))


def schemas(op: str) -> Iterator[str]:
    """What torch is told of the op: "views" and "views_out" take views too; "out" and "views_out", where the public
    function takes `out`, write there."""
    made, plain, every = arguments.results(op), arguments.plain(op), arguments.taken(op)
    written = ", ".join(f"Tensor({letter}!) {name}" for letter, (name, *_) in zip("abcdefgh", made))
    returned = "Tensor" if len(made) == 1 else f"({', '.join(['Tensor'] * len(made))})"
    for views, rows in (("", plain), ("views", every))[: 1 + (plain != every)]:
        yield f"{op}{views and '.views'}({listed(rows)}) -> {returned}"
        if any(x.type == "results" for x in arguments.TABLE[op]):
            yield f"{op}.{views and 'views_'}out({listed(rows)}, *, {written}) -> ()"


def header() -> str:
    each = [f'    "{text}",\n' for op in arguments.TABLE for text in schemas(op)]
    return f"constexpr const char* kSchemas[] = {{\n{''.join(each)}}};\n"


def write(folder: Path) -> None:
    """Where it says something new: what includes it is compiled again."""
    path, text = folder / "schemas.h", header()
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
