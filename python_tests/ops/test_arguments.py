# SPDX-License-Identifier: Apache-2.0
"""Every argument of every public function, given values of many wrong kinds. The call returns a result or raises an
error that names the op and the argument. The arguments are read from the functions' signatures."""

import inspect
import itertools
import re
import warnings

import numpy as np
import pytest
import torch
from support import backends, flat, surface, worker

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.registry import FUNCTIONS, OPS
from specdec_kernels.rows import Rows

CALLS = {name: [example_calls.flat(call.arguments) for call in example_calls.few(name, V=11)] for name in FUNCTIONS}
# other names that an error may give: a part of a tuple, seed (needed by a temperature or a rule), or alpha (whose
# values depend on the rule)
PARTS = {
    "tree": "tree|parents|tokens|draft_nodes",
    "links": "links|first_child|next_sibling",
    "temperature": "temperature|seed",
    "target": "target|seed",
    "rule": "rule|alpha|seed",
}
PLAIN = {
    "None": None, "str": "x", "list": [], "words": ["x", 1], "dict": {}, "set": {1}, "object": object(),
    "type": torch.int64, "complex": 1j, "-1": -1, "2^63": 2**63, "-2^63-1": -(2**63) - 1, "10^400": 10**400,
    "10^5000": 10**5000, "nan": float("nan"), "inf": float("inf"), "-inf": -float("inf"), "1e39": 1e39, "1e-60": 1e-60,
    "0.5": 0.5, "True": True, "array": np.zeros(3), "objects": np.array([object()]), "2": torch.tensor(2),
    "int64(2)": np.int64(2), "float32": np.float32(0.5), "float64": np.float64(0.5), "bool_": np.bool_(True),
}  # fmt: skip
DTYPES = (torch.bool, torch.complex64, torch.float64, torch.float32, torch.int64, torch.int32, torch.int8, torch.uint64)
MADE = {
    **{str(dtype).removeprefix("torch."): lambda t, dtype=dtype: t.to(dtype) for dtype in DTYPES},
    "rank + 1": lambda t: t[None].contiguous(),
    "flat": torch.Tensor.flatten,
    "none": lambda t: t[:0],
    "meta": lambda t: t.to("meta"),
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
    "jagged": lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
    "sparse": torch.Tensor.to_sparse,
    "compressed": lambda t: t.expand(2, *t.shape).flatten(1).to_sparse_csr(),
    "opaque": lambda t: t.float().to_mkldnn(),
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.quint8),
    "requires grad": lambda t: t.detach().requires_grad_(t.is_floating_point()),
}


def values(good):
    """Yield (name, function that makes the value) for every value that an argument is tried with. In a tuple, each
    tensor is replaced in turn."""
    tensor = good if isinstance(good, torch.Tensor) else torch.zeros(3)
    yield from ((name, lambda x=x: x) for name, x in PLAIN.items())
    yield from ((name, lambda make=make: make(tensor)) for name, make in MADE.items())
    if isinstance(good, tuple) and isinstance(good[0], torch.Tensor):
        for i, part in enumerate(good):
            for name, make in values(part):
                yield f"[{i}] {name}", lambda i=i, make=make: good[:i] + (make(),) + good[i + 1 :]


def same_type(x, good):
    """Return whether a value has a type that the argument accepts. The error may then name another argument, which does
    not go with this value."""
    if isinstance(x, tuple):
        return any(same_type(part, good[0]) for part in x if not (part is good[0] or part is good[1]))
    if isinstance(x, torch.Tensor) and x.layout is torch.strided and not x.is_nested:
        return (
            x.dtype == good.dtype
            if isinstance(good, torch.Tensor)
            else x.dtype in (torch.float32, torch.int32, torch.int64)
        )
    return x is None or isinstance(x, np.integer)


def blames(error, op, names):
    """Return whether the first line of an error names the op and the wrong argument."""
    first, *_ = str(error).split("\n")
    return (
        isinstance(error, (TypeError, ValueError, RuntimeError))
        and first.startswith(op + ": ")
        and re.search(rf"\b({names})\b", first)
    )


def sweep(op, step=1):
    """Make every `step`-th call. Return the number of calls, and a dict of the calls that raised: its value is None, or
    the error if it does not name the argument."""
    warnings.simplefilter("ignore")  # torch warns that some layouts are prototypes
    calls, errors, counted = 0, {}, itertools.count()
    function = getattr(sk, op)
    parameters = list(inspect.signature(function).parameters)
    every = "|".join((*parameters, *PARTS.values(), *Rows._fields))
    for i, call in enumerate(worker.here(CALLS[op])):
        fields = [name for name in call if "." in name]  # the fields of Rows, each tried by itself
        for argument in (*parameters, *fields):
            for name, make in values(call.get(argument)):
                if next(counted) % step:
                    continue
                key = f"{op}({argument} = {name}) of example {i}"
                calls += 1
                try:
                    x = make()
                except RuntimeError:
                    assert worker.device != "cpu", name  # a GPU does not support this layout
                    continue
                try:
                    whole = {other: y for other, y in call.items() if not other.startswith(f"{argument}.")}
                    function(**example_calls.folded(whole | {argument: x}))
                except Exception as error:
                    own = argument.rpartition(".")[2]
                    names = every if same_type(x, call.get(argument)) else PARTS.get(own, argument)
                    errors[key] = None if blames(error, op, names) else f"{type(error).__name__}: {str(error)[:200]}"
    return calls, errors


def test_every_public_function_is_in_the_registry():
    functions = {name for name, x in vars(sk).items() if inspect.isfunction(x) and not name.startswith("_")}
    assert functions == {*FUNCTIONS, "stack_rows", "history", "supports", "vocab_map"}  # the last four call no op


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.slow_in_triton
def test_an_error_names_the_argument(op_backend, op):
    # Values that the wrapper passes on must be accepted or refused by each backend itself.
    step = {"cpu": 1, "cuda-on-cpu": 21}.get(op_backend, 129)
    with warnings.catch_warnings():
        calls, errors = backends.there(op_backend, sweep, op, step)
    assert calls and {key: error for key, error in errors.items() if error} == {}
    assert len(errors) > calls / 3


# ---- no rows --------------------------------------------------------------------------------------------------------


def hollow(x):
    """Return an empty batch with the strides that numpy gives to empty arrays: all 0."""
    if isinstance(x, (sk.Penalties, sk.Bias, sk.Allowed)):
        return type(x)(*map(hollow, x))
    if isinstance(x, tuple):
        return x if getattr(x[0], "ndim", 1) == 1 else tuple(map(hollow, x))  # one tree shared by all requests
    return x[:0].as_strided((0, *x.shape[1:]), (0,) * x.dim()) if isinstance(x, torch.Tensor) else x


def on_nothing(op, call):
    call = example_calls.folded(call)
    result = getattr(sk, op)(**call)
    _, (direct, args, _) = surface.recorded_call(op, getattr(sk, op), **call)
    again = direct(*args)
    return [x.numel() for r in (result, again) for x in surface.tensors(r)]


# arguments about the whole batch, not one entry per request
WHOLE = ("cu_draft", "max_draft", "num_rows", "num_requests")
EMPTY = {f"{op}-{i}": (op, {name: x if name in WHOLE else hollow(x) for name, x in call.items()})
         for op, calls in CALLS.items() for i, call in enumerate(calls) if op in OPS}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_a_batch_of_nothing(op_backend, name):
    op, call = EMPTY[name]
    if not backends.serves(op_backend, op, call):
        pytest.skip("Triton takes no rule on a tree")
    if "cu_draft" in call:
        call["cu_draft"] = torch.zeros(1, dtype=torch.int64)
    if op == "tree_mask" and call["parents"].dim() == 1:
        call["prefix_len"] = torch.zeros(0, dtype=torch.int64)
    sizes = backends.there(op_backend, on_nothing, op, call)
    assert sizes and not any(sizes)


# ---- no room --------------------------------------------------------------------------------------------------------

MANY = 1 << 14
ROWS, IDS = torch.zeros(1, 8), torch.zeros(MANY, dtype=torch.int64)
ROOMLESS = {  # calls whose results need more bytes than the address space has
    "sample": {"logits": ROWS.expand(MANY, 8), "k": 1 << 33, "temperature": 0.0},
    "uniforms": {"seed": IDS, "offset": IDS, "n": 1 << 33},
    "support": {"logits": ROWS, "stats": torch.zeros(1, 4), "max_kept": 1 << 24, "row": IDS[:1].expand(1 << 30)},
    "tree_mask": {"parents": torch.full((MANY, 64), -1), "num_keys": 1 << 30},
    "verify_chain": {"target_logits": ROWS.expand(MANY, 8), "draft_tokens": IDS[:0], "max_draft": (1 << 31) - 1,
                     "cu_draft": torch.zeros(MANY + 1, dtype=torch.int64), "temperature": 0.0},
    "verify_tree": {"tree": (IDS[:, None] - 1, IDS[:, None]), "target_logits": ROWS.expand(MANY, 1, 8),
                    "max_depth": (1 << 31) - 2, "method": "greedy"},
}  # fmt: skip


def test_which_numbers_make_results_large():
    sizes = {"k", "n", "max_kept", "num_keys", "max_draft", "max_depth"}
    have = {op for op in OPS if sizes & inspect.signature(getattr(sk, op)).parameters.keys()}
    assert have == ROOMLESS.keys() | {"kseq_rho", "top_logprobs"}  # their k sizes no result, or is <= V


def roomless(op):  # made in the worker: tensors this large are not sent
    return flat.call(getattr(sk, op), **worker.here(ROOMLESS[op]))


@pytest.mark.parametrize("op", ROOMLESS)
def test_a_result_without_room(op_backend, op):
    """The error comes from the op, not from the allocator."""
    if op_backend == "triton-interpret" and op not in ("sample", "uniforms"):
        pytest.skip("where the others make their results interpreted kernels have run for long")
    with pytest.raises(RuntimeError, match=rf"^{op}: .*must fit into memory, got no room for"):
        backends.there(op_backend, roomless, op)


@pytest.mark.parametrize("op", [op for op in OPS if {"num_rows", "num_requests"} & CALLS[op][-1].keys()])
def test_a_number_of_rows_has_one_dimension(op_backend, op):
    """num_rows must have shape [1], as documented: the function and the op refuse tensors of 0 or 2 dimensions."""
    call = example_calls.folded(CALLS[op][-1])
    name = "num_rows" if "num_rows" in call else "num_requests"
    for x in (call[name][0], call[name][None]):
        wanted = re.escape(f"{op}: {name} must have shape [1], got {list(x.shape)}")
        with pytest.raises(ValueError, match=f"^{wanted}$"):
            getattr(sk, op)(**call | {name: x})
        with pytest.raises(RuntimeError, match=f"^{wanted}$"):
            backends.there(op_backend, surface_call, op, call, name, x)


def surface_call(op, call, name, x):
    _, (direct, args, _) = surface.recorded_call(op, getattr(sk, op), **call)
    names = [argument.name for argument in direct._schema.arguments]
    return direct(*(x if other == name else value for other, value in zip(names, args)))
