# SPDX-License-Identifier: Apache-2.0
"""The example calls that ship with the package: what they cover, that they agree with the reference, and torch's checks
of an op."""

import inspect

import pytest
import torch
from gates.wheel_check import disagreement
from support import argument_copies, backends, flat, surface

import specdec_kernels as sk
from specdec_kernels import example_calls, registry

SLOW = ("cuda-on-cpu", "cuda-on-cpu-checked", "triton-interpret")


OF_THE_CALL = {"out", "require_exact"}  # they do not change the result; tested in test_out.py and test_require_exact.py


def test_every_parameter_is_given_and_left_out():
    for function in registry.FUNCTIONS:
        given = [set(call.arguments) for call in example_calls.calls(function)]
        parameters = inspect.signature(getattr(sk, function)).parameters
        new = argument_copies.not_everywhere(function) if function in registry.OPS else set()
        assert set.union(*given) == set(parameters) - OF_THE_CALL - new, function
        optional = {name for name, x in parameters.items() if x.default is not x.empty}
        assert set.intersection(*given) <= set(parameters) - optional | {"prefix_len"}, function


@pytest.mark.parametrize(
    "op, argument, choices",
    [
        ("verify_chain", "method", set(registry.CHAIN_METHODS) - {"token"}),
        ("verify_tree", "method", registry.TREE_METHODS),
        ("tree_mask", "format", {"bool", "additive", "uint8", "uint32", "uint64"}),
        *((op, f"{side}.kind", {"probs"}) for op in ("verify_chain", "verify_tree") for side in ("target", "draft")),
        *((op, f"{side}.kind", {"probs"}) for op in ("kseq_rho", "row_gap") for side in ("p", "q")),
    ],
)
def test_every_choice_is_taken(op, argument, choices):
    assert set(choices) <= {call.arguments.get(argument) for call in flat.dotted_calls(op)}


def test_every_rule_of_every_method_is_asked_for():
    for op, methods in (
        ("verify_chain", registry.CHAIN_METHODS),
        ("verify_tree", {"target_only": registry.TREE_METHODS["target_only"]}),
    ):
        for method, known in methods.items():
            rules = [
                call.arguments.get("rule", "exact")
                for call in example_calls.calls(op)
                if call.arguments.get("method", "token") == method
            ]
            codes = [[registry.RULES[rule].code] if isinstance(rule, str) else rule.tolist() for rule in rules]
            assert set(sum(codes, [])) == {registry.RULES[rule].code for rule in known.rules}, method


def test_calls_differ_by_seed_and_not_by_device():
    for function in registry.OPS:
        for one, again, other, meta in zip(
            *(example_calls.calls(function, **x) for x in ({}, {}, {"seed": 1}, {"device": "meta"})), strict=True
        ):
            leaves, same, others, shapes = (
                torch.utils._pytree.tree_leaves(call.arguments) for call in (one, again, other, meta)
            )
            pairs = [(a, b) for a, b in zip(leaves, same, strict=True) if isinstance(a, torch.Tensor)]
            assert all(torch.equal(a, b) for a, b in pairs), (function, one.name)
            assert not all(torch.equal(a, b) for a, b in zip(leaves, others) if isinstance(a, torch.Tensor))
            assert [getattr(x, "shape", x) for x in leaves] == [getattr(x, "shape", x) for x in shapes]
            assert {x.device.type for x in shapes if isinstance(x, torch.Tensor)} == {"meta"}


@pytest.mark.parametrize("function", registry.OPS)
def test_examples_agree_with_the_reference(op_backend, function):
    for inputs in ({"V": 77}, {"V": 1100, "dtype": torch.bfloat16, "pad": 1}, {"V": 1}):
        calls = example_calls.few(function, **inputs) if op_backend in SLOW else example_calls.calls(function, **inputs)
        calls = backends.served(op_backend, function, calls)
        for call in calls[: 1 if op_backend in SLOW and inputs["V"] != 77 else None]:
            got = backends.run(function, op_backend, **call.arguments)
            assert disagreement(function, call, got) is None, (inputs, call.name)


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.parametrize("op", registry.OPS)
def test_what_torch_wants(op_backend, op):
    """torch's checks of an op pass. One call has all of them. On the CPU, calls with every kind of argument also have
    those of the schema and the fake, which are the same for all backends."""
    backends.there(op_backend, surface.check_examples, op, None if op_backend == "cpu" else 1)
