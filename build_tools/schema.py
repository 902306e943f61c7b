# SPDX-License-Identifier: Apache-2.0
"""Generation of a header from specdec_kernels/arguments.py: the op schemas that csrc/schema.cpp registers.

arguments.py is loaded by its path, because importing the package needs the library that is being built.
"""

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from itertools import takewhile
from pathlib import Path

_SPEC = spec_from_file_location("arguments", Path(__file__).parent.parent / "specdec_kernels" / "arguments.py")
arguments = module_from_spec(_SPEC)
_SPEC.loader.exec_module(arguments)

MOST = (
    64  # arguments and outputs of an op together: torch has one bit for each, and aborts at loading if there are more
)


def listed(rows) -> str:
    """Return the arguments as text of a schema. Those at the end get a default if no required one comes after them."""
    last = len(rows) - len(list(takewhile(lambda x: x.may_be_left_out, reversed(rows))))
    letters = iter("abcdefgh")
    kinds = (arguments.TYPES[x.type][0] + (f"({next(letters)}!)" if x.is_written else "?" * x.optional) for x in rows)
    each = (f"{kind} {x.name}" for kind, x in zip(kinds, rows))
    return ", ".join(text + f"={x.default}" * (i >= last) for i, (x, text) in enumerate(zip(rows, each)))


def schemas(op: str) -> Iterator[str]:
    """Yield the schemas of an op's overloads. "views" and "views_out" take views too. "out" and "views_out" write into
    given tensors, and exist only if the public function takes `out`."""
    made, plain, every = arguments.results(op), arguments.plain(op), arguments.taken(op)
    if len(every) + len(made) > MOST:
        raise ValueError(f"{op}: torch allows {MOST} arguments of an op, got {len(every)} and {len(made)} outputs")
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
    """Write the header only if its text has changed, so that files which include it are not compiled in vain."""
    path, text = folder / "schemas.h", header()
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
