# SPDX-License-Identifier: Apache-2.0
"""A Python number in place of a tensor gives the same bits, in a single call of the op. Any further call would be a
kernel launch on a GPU."""

import pytest
import torch
from support import backends, flat, tiers, worker
from support.surface import same, tensors
from torch.utils._python_dispatch import TorchDispatchMode

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.registry import RULES, SAMPLING

OPS = ("row_stats", "sample", "verify_chain", "verify_tree")
NAMES = {f"{side}.{name}" for side in ("rows", "target", "draft") for name in SAMPLING} | {"slot"}


class Calls(TorchDispatchMode):
    """Records the ops that reach the dispatcher."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def is_number(x):
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def with_numbers(op):
    """Yield (name, arguments) of the example calls that give a parameter as a Python number, or a rule by name.
    Arguments are named by field."""
    for call in flat.dotted_calls(op, V=37):
        given = {name for name in NAMES & call.arguments.keys() if is_number(call.arguments[name])}
        if given or isinstance(call.arguments.get("rule"), str):
            yield call.name, call.arguments


def as_tensors(op, arguments):
    """Return the call with each number in a tensor of one entry or, if that is not allowed, of one entry per row."""
    out = dict(arguments)
    for name in NAMES & arguments.keys():
        if is_number(arguments[name]) and name != "slot":
            of = torch.int64 if name.endswith("top_k") else torch.float32
            out[name] = torch.tensor([arguments[name]], dtype=of)
    if is_number(arguments.get("slot")):
        out["slot"] = torch.full((len(arguments["rows.logits"]),), arguments["slot"])
    if isinstance(arguments.get("rule"), str):
        out["rule"] = torch.tensor([RULES[arguments["rule"]].code])
        alpha = arguments.get("alpha")
        rates = isinstance(alpha, tuple) and arguments["rule"] == "synthetic"
        if rates:
            out["alpha"] = torch.tensor(alpha).view(1, -1, 1)
        elif alpha is not None and not isinstance(alpha, torch.Tensor):
            out["alpha"] = torch.tensor([alpha], dtype=torch.float32)
    # a temperature of 0 as a number shows that no random numbers are needed; a tensor does not
    if op != "row_stats" and "uniforms" not in out and "seed" not in out:
        zero = torch.zeros(1, dtype=torch.int64)
        out |= {"seed": zero, "offset": zero}
    return out


def numbers_and_tensors(op, arguments):
    return [tensors(flat.call_dotted(op, x)) for x in (arguments, worker.here(as_tensors(op, arguments)))]


def test_the_examples_hold_every_number():
    """The examples give a number for every sampling parameter, and alpha as one number and as a tuple."""
    seen = [(name, arguments[name]) for op in OPS for _, arguments in with_numbers(op) for name in arguments]
    assert NAMES - {"slot"} <= {name for name, x in seen if is_number(x)}
    alphas = [x for name, x in seen if name == "alpha"]
    assert any(map(is_number, alphas)) and any(isinstance(x, tuple) for x in alphas)


@pytest.mark.parametrize("op", OPS)
def test_a_number_is_a_tensor_of_one(op_backend, op):
    found = list(with_numbers(op))
    if op_backend == "triton-interpret" and tiers.TIER != "all":
        found = found[::3] + [call for call in found[1:] if isinstance(call[1].get("alpha"), tuple)]
    for name, arguments in found:
        if not backends.serves(op_backend, op, arguments):
            continue
        number, tensor = backends.there(op_backend, numbers_and_tensors, op, arguments)
        assert same(number, tensor), name


@pytest.mark.parametrize("slot", [1, 7, (1 << 33) - 2])
def test_a_slot(op_backend, slot):
    z = torch.randn(3, 37, generator=torch.Generator().manual_seed(slot % 101))
    arguments = {"rows.logits": z, "k": 2, "slot": slot, "seed": torch.arange(3), "offset": torch.tensor([5])}
    number, tensor = backends.there(op_backend, numbers_and_tensors, "sample", arguments)
    assert same(number, tensor)


def calls_of(op, arguments):
    with Calls() as calls:
        flat.call_dotted(op, arguments)
    return calls.names


@pytest.mark.parametrize("op", OPS)
def test_nothing_is_called_for_a_number(op):
    for name, arguments in with_numbers(op):
        given = as_tensors(op, arguments)
        if isinstance(arguments.get("alpha"), tuple) and arguments["rule"] == "synthetic":
            arguments = arguments | {"alpha": given["alpha"]}  # the wrapper makes a tensor of the rates of positions
        calls = calls_of(op, arguments)
        assert calls == calls_of(op, given) and any(x.startswith(f"specdec.{op}.") for x in calls), name


def test_nothing_but_the_op_is_called():
    z = torch.randn(4, 37)
    assert calls_of("row_stats", {"rows.logits": z, "rows.temperature": 0.7, "rows.top_k": 5}) == [
        "specdec.row_stats.default"
    ]
    given = {
        "target.logits": z[None],
        "draft_tokens": torch.zeros(1, 3, dtype=torch.int64),
        "draft.logits": z[None, :3],
    }
    given |= {
        "target.temperature": 0.7,
        "target.top_p": 0.9,
        "draft.top_k": 5,
        "rule": "thresholds",
        "alpha": (0.5, 0.4),
    }
    given |= {"seed": torch.zeros(1, dtype=torch.int64), "offset": torch.zeros(1, dtype=torch.int64)}
    assert calls_of("verify_chain", given) == ["specdec.verify_chain.default"]


OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "top_n_sigma": 0.0}


def test_filters_that_are_off(op_backend):
    """Numbers that switch a filter off are not passed as filters."""
    z = torch.randn(3, 2100, generator=torch.Generator().manual_seed(1))
    want = backends.run("row_stats", op_backend, z, temperature=0.7)
    assert same([backends.run("row_stats", op_backend, z, temperature=0.7, **OFF)], [want])
    assert same([backends.run("row_stats", op_backend, z, temperature=0.7, top_k=-1, top_p=1)], [want])
    assert same([backends.run("row_stats", op_backend, z, temperature=0.7, top_k=(1 << 63) - 1)], [want])


NAN = float("nan")
NANS = [NAN] * 5
WRONG = [
    ("row_stats", {"numbers": [1.0]}, r"row_stats: rows.numbers must hold 5 numbers or none, got 1"),
    ("row_stats", {"numbers": [-1.0, *NANS[1:]]}, r"row_stats: rows.temperature must be finite and >= 0, got -1$"),
    ("row_stats", {"numbers": [NAN, -2, *NANS[2:]]},
     r"row_stats: rows.top_k must be >= 1, or 0 or -1 for off, got -2$"),
    ("row_stats", {"numbers": [NAN, NAN, 1.5, *NANS[3:]]}, r"row_stats: rows.top_p must be in \(0, 1\], got 1.5$"),
    ("row_stats", {"numbers": [*NANS[:3], 2.0, NAN]}, r"row_stats: rows.min_p must be in \[0, 1\], got 2$"),
    ("row_stats", {"numbers": [*NANS[:4], -0.5]},
     r"row_stats: rows.top_n_sigma must be finite and >= 0, got -0.5$"),
    ("row_stats", {"temperature": torch.ones(1), "numbers": [1.0, *NANS[1:]]},
     r"row_stats: rows.temperature must be a tensor or a number, got both"),
    ("sample", {"first_slot": -1}, r"sample: slot must be in \[0, 2\^33\), got -1"),
    ("sample", {"slot": torch.ones(1, dtype=torch.int64), "first_slot": 2},
     r"sample: slot must be a tensor or a number, got both"),
    ("verify_chain", {"target_numbers": [1.0] * 3}, r"verify_chain: target.numbers must hold 5 numbers or none, got 3"),
    ("verify_chain", {"draft_numbers": [*NANS[:3], -1.0, NAN]},
     r"verify_chain: draft.min_p must be in \[0, 1\], got -1$"),
    ("verify_chain", {"rule_numbers": [1.0]}, r"verify_chain: rule_numbers must hold 3 numbers or none, got 1"),
    ("verify_chain", {"rule_numbers": [99.0, NAN, NAN]},
     r"verify_chain: rule must be a code from 0 to 16, got 99"),
    ("verify_chain", {"rule_numbers": [NAN, 0.5, NAN]}, r"verify_chain: alpha needs a rule, got none"),
    ("verify_chain", {"rule_numbers": [11.0, 1.0, NAN]},
     r"verify_chain: alpha of rule 'lossy' must be in \[0, 1\), got 1$"),
    ("verify_chain", {"rule_numbers": [16.0, 0.5, 2.0]},
     r"verify_chain: the second alpha of rule 'thresholds' must be in \(0, 1\], got 2$"),
    ("verify_chain", {"rule": torch.zeros(1, dtype=torch.int64), "rule_numbers": [1.0, NAN, NAN]},
     r"verify_chain: rule must be a tensor or a number, got both"),
    ("verify_chain", {"method": 1, "rule_numbers": [13.0, NAN, NAN]},
     r"verify_chain: rule 'typical' defines no distribution, so method must be 'token', got 'block'$"),
    ("verify_tree", {"rule_numbers": [13.0, NAN, NAN]},
     r"verify_tree: rule 'typical' is not defined for method '\w+', got it$"),
]  # fmt: skip


def direct(op, changes):
    """Call torch.ops.specdec.<op> as the wrapper does for an example, with other arguments given by name."""
    arguments = example_calls.op_arguments(
        op, getattr(sk, op), **worker.here(example_calls.calls(op, V=11)[0].arguments)
    )
    overload = getattr(torch.ops.specdec, op).default
    named = dict(zip((argument.name for argument in overload._schema.arguments), arguments))
    return overload(**(named | changes))


@pytest.mark.one_backend
@pytest.mark.slow_in_triton
@pytest.mark.parametrize("op, changes, message", WRONG, ids=[f"{i}-{w[0]}" for i, w in enumerate(WRONG)])
def test_the_op_checks_numbers(op_backend, op, changes, message):
    """Numbers are checked on every device, because they are on the host."""
    with pytest.raises(RuntimeError, match=message):
        backends.there(op_backend, direct, op, changes)
