# SPDX-License-Identifier: Apache-2.0
"""Comparison of the places that repeat an op's arguments with the table of arguments, specdec_kernels/arguments.py.

Each reader (of_schema, of_cpp and so on, see READERS) yields the differences of one place, as "place: difference".
"""

import ast
import functools
import inspect
import math
import random
import re

import torch
from support import flat
from support.paths import ROOT

import specdec_kernels as sk
from build_tools import schema
from specdec_kernels import arguments, example_calls, reference
from specdec_kernels.arguments import TYPES, Argument
from specdec_kernels.rows import Rows

HOSTILE_CALLS = 300
ARRAYS = re.compile(r"\[([A-Z0-9][^][]*)\](?!\()")


def roots(op):
    """Return the parameters of the public function."""
    return {place.partition(".")[0] for place in arguments.places(op)}


def tensors(op):
    return {place: x for place, x in arguments.places(op).items() if x.shapes}


def differences(where, wanted, got):
    yield from (f"{where}: lacks {x}" for x in wanted if x not in got)
    yield from (f"{where}: has {x}, which is not in the table" for x in got if x not in wanted)
    if set(wanted) == set(got) and list(wanted) != list(got):
        yield f"{where}: another order: {', '.join(got)}"


# ---- signatures -----------------------------------------------------------------------------------------------------


def of_schema(op):
    for overload in getattr(torch.ops.specdec, op).overloads():
        rows = arguments.taken(op) if overload.startswith("views") else arguments.plain(op)
        text = str(getattr(getattr(torch.ops.specdec, op), overload)._schema)
        got = text[text.index("(") + 1 : text.index(") ->")].split(", *, ")[0]
        yield from differences(
            f"_C.so, built before, {op}.{overload}", schema.listed(rows).split(", "), got.split(", ")
        )


def parameters_in(text, named):
    """Yield the parameter lists of C++ functions whose names contain `named`, with macros of parameters expanded."""
    macros = {}
    for path in sorted((ROOT / "csrc" / "binding").glob("*.h")):
        joined = path.read_text().replace("\\\n", " ")
        macros |= {name: (takes, body) for name, takes, body in
                   re.findall(r"#define (SPECDEC_\w*ARGUMENTS)\(([^)]*)\)([^\n]*)", joined)}  # fmt: skip
    while uses := re.search(r"(SPECDEC_\w*ARGUMENTS)\(([^()]*)\)", text):
        takes, body = macros[uses[1]]
        for name, given in zip(takes.split(","), uses[2].split(",")):
            body = re.sub(rf"\b{name.strip()}\b", given.strip(), body)
        text = text.replace(uses[0], body.replace("##", ""))
    for found in re.finditer(rf"\w*{named}\w*\(([^()]*)\)\s*{{", text):
        yield [re.split(r"[\s&*]+", part.strip())[-1] for part in found[1].split(",")]


def of_cpp(op):
    path = ROOT / "csrc" / "ops" / op / f"{op}_op.h"
    wanted = [x.name for x in arguments.taken(op)]
    got = max(parameters_in(path.read_text(), op), key=lambda names: len({*names} & {*wanted}), default=[])
    yield from differences(str(path.relative_to(ROOT)), wanted, got)


@functools.cache
def parsed(text):
    return ast.parse(text)


def in_triton(path, kind, name):
    """Return the syntax tree of a class or function, which works where Triton is not installed."""
    text = (ROOT / "specdec_kernels" / "triton" / path).read_text()
    [found] = [x for x in parsed(text).body if isinstance(x, kind) and x.name == name]
    return found


def triton_takes(op):
    """Yield the arguments of Triton's function, with sides and views as their fields."""
    of_rows, of_views = (
        [x.target.id for x in in_triton("core/arguments.py", ast.ClassDef, name).body if hasattr(x, "target")]
        for name in ("GivenRows", "GivenViews")
    )
    known = [x.name for x in arguments.taken(op)]
    for x in in_triton(f"{op}.py", ast.FunctionDef, op).args.args[1:]:
        if x.arg.endswith("views"):
            yield from (x.arg.removesuffix("views") + field for field in of_views)
        elif x.arg in arguments.sides(op) and x.arg not in known:
            yield from (f"{x.arg}_{field}" for field in of_rows)
        else:
            yield x.arg


def reference_takes(op):
    names = inspect.signature(getattr(reference, op)).parameters
    return [name for name in names if name not in ("chance_type", "first")]


NEVER_IN_TRITON = {"verify_tree": ["rule", "alpha", "rule_numbers"]}  # Triton does not support rules on trees


def unserved(op):
    """Return the optional arguments that Triton or the reference do not support yet.

    Triton refuses them, and Python refuses them in a call of the reference. Once both support one, example calls and
    hostile calls must give it.
    """
    takes, places = {*triton_takes(op)}, {*reference_takes(op)}
    new = [x for x in arguments.taken(op) if x.may_be_left_out]
    return {
        "triton": [x.name for x in new if x.name not in takes and x.name not in NEVER_IN_TRITON.get(op, ())],
        "reference": [x.public for x in new if x.public and x.public.partition(".")[0] not in places],
    }


def not_everywhere(op):
    """Return the places in the public function of the arguments in unserved(op)."""
    lacks = unserved(op)
    return {x.public for x in arguments.taken(op) if x.name in lacks["triton"]} | {*lacks["reference"]}


def everywhere(op):
    """Return the tensors of the public function that the op takes unchanged on every backend."""
    return [place for place, x in tensors(op).items() if x.name and place not in not_everywhere(op)]


def of_triton(op):
    lacks = {*unserved(op)["triton"], *NEVER_IN_TRITON.get(op, ())}
    wanted = [x.name for x in arguments.taken(op) if x.name not in lacks]
    yield from differences(f"specdec_kernels/triton/{op}.py", wanted, [*triton_takes(op)])


def of_public(op):
    where, given = f"specdec_kernels/ops/{op}.py", inspect.signature(getattr(sk, op)).parameters
    yield from differences(where, sorted(roots(op)), sorted(given))
    for side in arguments.sides(op):
        has = [".".join(place.split(".")[:2]) for place in arguments.places(op) if place.startswith(f"{side}.")]
        has = [*dict.fromkeys(has)]
        yield from differences("specdec_kernels/rows.py", has, [f"{side}.{x}" for x in Rows._fields])
    for place in given.keys() & tensors(op).keys():
        needed = given[place].default is inspect.Parameter.empty
        if needed == tensors(op)[place].optional:
            yield f"{where}: {place} must have {'a' if needed else 'no'} default, as the table has it"


def of_reference(op):
    wanted = roots(op) - {"out", "require_exact", *unserved(op)["reference"]}
    yield from differences(f"specdec_kernels/reference/{op}.py", sorted(wanted), sorted(reference_takes(op)))


# ---- shapes in docstrings -------------------------------------------------------------------------------------------


def spaced(shape):
    return ", ".join(part.strip() for part in shape.split(","))


def is_shape(text):
    return all(re.fullmatch(r"[A-Z][a-z]?([+*]\w+)*|\d|[kmnw]", part.strip()) for part in text.split(","))


def paragraphs(op):
    """Yield (names, text) for each entry of a docstring's Args."""
    text = inspect.getdoc(getattr(sk, op)).split("\nArgs:\n")[1].split("\nReturns:\n")[0]
    for names, said in re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n     .*)*)", text, re.M):
        yield names.split(", "), " ".join(said.split())


def of_docstring(op):
    where = f"specdec_kernels/ops/{op}.py, docstring"
    for names, text in paragraphs(op):
        own = [x for place, x in tensors(op).items() if place.partition(".")[0] in names]
        said = {spaced(shape) for shape in ARRAYS.findall(text) if is_shape(shape)}
        known = {shape for x in own for shape in x.shapes}
        yield from (f"{where}: {', '.join(names)} [{x}], which is not in the table" for x in sorted(said - known))
        if own and "as in ``" not in text and "..." not in known and not said:
            yield f"{where}: no shape of {', '.join(names)}"
    told = {name for names, _ in paragraphs(op) for name in names}
    yield from (f"{where}: lacks {name}" for name in sorted(roots(op) - told))


# ---- calls ----------------------------------------------------------------------------------------------------------


def size_of(symbol, size, known):
    """Return the known sizes if a dimension with this symbol has this size; None if it cannot."""
    base, _, more = symbol.partition("+")
    if symbol.isdigit():
        return known if int(symbol) == size else None
    if "*" in base or "(" in base:
        return known if size == eval(symbol, {"ceil": math.ceil}, known) else None
    size -= int(more or 0)
    return known | {base: size} if known.get(base, size) == size else None


def fits(x, tensor, known):
    """Yield, for every way in which a tensor has one of an argument's shapes, the sizes that are then known."""
    for shape in x.shapes:
        symbols = shape.split(", ")
        if shape == "...":
            yield known
        elif len(symbols) == tensor.dim():
            found = known
            for symbol, size in zip(symbols, tensor.shape):
                found = None if found is None else size_of(symbol, size, found)
            if found is not None:
                yield found


def of_calls(op):
    """Yield arguments that no example call gives, and values passed to the op that do not fit the table."""
    where, given = f"specdec_kernels/example_calls/{op}.py", set()
    for name, call in example_calls.calls(op, V=77):
        given |= {x.public for x in arguments.TABLE[op] if of_call(call, x.public) is not None}
        direct = example_calls.op_arguments(op, getattr(sk, op), **call)
        ways = [{}]
        for x, value in zip(arguments.taken(op), direct):
            if not isinstance(value, torch.Tensor):
                continue
            if str(value.dtype).removeprefix("torch.") not in TYPES[x.type][1]:
                yield f"{where}, {name}: {x.name} is {value.dtype}, in the table {x.type}"
            ways = [dict(way) for way in {tuple(way.items()) for known in ways for way in fits(x, value, known)}]
            if not ways:
                yield f"{where}, {name}: {x.name} has shape {list(value.shape)}, in the table {x.shape}"
                break
    yield from (f"{where}: none gives {place}" for place in everywhere(op) if place not in given)


def of_call(call, place):
    name, _, part = place.partition(".")
    x = call.get(name)
    if "." in part:  # a field of a view
        group, _, field = part.partition(".")
        return getattr(getattr(x, group, None), field, None)
    if not part or x is None:
        return x
    if part.isdigit():
        return x[int(part)] if int(part) < len(x) else None
    return getattr(x, part) if isinstance(x, Rows) else x if part == "logits" else None


def of_results(op):
    """Yield a result of the first example call whose dtype or shape is not that in the table of results."""
    call = example_calls.calls(op, V=77)[0].arguments
    given = example_calls.op_arguments(op, getattr(sk, op), **call)
    made = getattr(torch.ops.specdec, op)(*given)
    made = [made] if isinstance(made, torch.Tensor) else made
    ways = [{x.name: value for x, value in zip(arguments.taken(op), given) if isinstance(value, int)}]
    for x, value in zip(arguments.taken(op), given):
        if isinstance(value, torch.Tensor):
            ways = [way for known in ways for way in fits(x, value, known)]
    for (name, dtype, shape), value in zip(arguments.results(op), made, strict=True):
        ways = [way for known in ways for way in fits(Argument(name, dtype, shape.strip("[]")), value, known)]
        if dtype not in ("-", str(value.dtype).removeprefix("torch.")) or not ways:
            yield f"results of {op}: {name} is {value.dtype} {list(value.shape)}, in the table {dtype} {shape}"
            break


def of_hostile(op):
    """Yield arguments that no hostile call gives."""
    from gates import hostile

    missing = {*everywhere(op)} - {hostile.PADDED.get(op)}
    for seed in range(HOSTILE_CALLS):
        if missing:
            _, call = flat.folded(op, (), hostile.call(op, random.Random(seed)))
            missing -= {place for place in missing if of_call(call, place) is not None}
    yield from (f"python_tests/gates/hostile.py: none gives {place}" for place in sorted(missing))


READERS = (of_schema, of_cpp, of_triton, of_public, of_reference, of_docstring, of_results, of_calls, of_hostile)
