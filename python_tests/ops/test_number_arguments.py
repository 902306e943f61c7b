# SPDX-License-Identifier: Apache-2.0
"""Every argument that accepts a Python number accepts numpy's numbers too, and torch.compile does not recompile for
each value. The arguments are read from the functions' signatures."""

import re

import numpy as np
import pytest
import torch
from support import flat
from support import number_arguments as numbers
from support.surface import same, tensors
from torch._dynamo.testing import CompileCounterWithBackend

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.registry import CHAIN_METHODS, RULES, SAMPLING, TREE_METHODS

EVERY = numbers.every()
INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
FLOATS = (np.float16, np.float32, np.float64)
TIMES = 12  # more than torch.compile's limit of graphs per function


# ---- numpy's numbers ------------------------------------------------------------------------------------------------


def of_numpy(x):
    """Yield (numpy scalar, the Python number that it holds) for every numpy type that can hold x, rounded or not."""
    if isinstance(x, bool):
        kinds = (np.bool_,)
    elif isinstance(x, int):
        kinds = [kind for kind in INTEGERS if np.iinfo(kind).min <= x <= np.iinfo(kind).max]
    else:
        kinds = FLOATS
    for kind in kinds:
        yield kind(x), kind(x).item()
    yield np.array(x), x


@pytest.mark.parametrize("op, name", EVERY, ids=[f"{op}-{name}" for op, name in EVERY])
def test_numbers_of_numpy(op, name):
    call = numbers.call_with(op, name)
    for scalar, number in of_numpy(call[name]):
        got, want = (flat.call_dotted(op, call | {name: x}) for x in (scalar, number))
        assert numbers.same_result(op, got, want), type(scalar)


def rule_calls():
    """Yield (name, op, call, rule): each rule by name, for every op that takes one."""
    of_chain = dict(example_calls.calls("verify_chain", V=numbers.V))["a rule, one number"]
    of_tree = dict(example_calls.calls("verify_tree", V=numbers.V))
    for rule, of in RULES.items():
        if of.parameters:
            yield f"chain-{rule}", "verify_chain", of_chain, rule
        for method, known in TREE_METHODS.items():
            if of.parameters and rule in known.rules:
                yield f"{method}-{rule}", "verify_tree", of_tree[f"{method}, nodes"], rule


RULE_CALLS = {name: rest for name, *rest in rule_calls()}


@pytest.mark.parametrize("case", RULE_CALLS)
def test_alpha_of_numpy(case):
    op, call, rule = RULE_CALLS[case]
    alpha = numbers.of_rule(rule, 1, 3)
    pair = alpha if isinstance(alpha, tuple) else (alpha,)
    for kind in FLOATS:
        scalars, plain = tuple(map(kind, pair)), tuple(kind(x).item() for x in pair)
        if not isinstance(alpha, tuple):
            scalars, plain = scalars[0], plain[0]
        got, want = (getattr(sk, op)(**call | {"rule": rule, "alpha": x}) for x in (scalars, plain))
        assert same(tensors(got), tensors(want)), kind


def test_greedy_by_a_number_of_numpy():
    """A temperature of 0 needs no random numbers, also if it is a numpy 0."""
    z = torch.randn(3, 37, generator=torch.Generator().manual_seed(1))
    for zero in (np.float32(0), np.float64(0), np.int32(0), np.array(0.0)):
        assert torch.equal(sk.sample(sk.Rows(z, temperature=zero)).tokens[:, 0], z.argmax(1))


@pytest.mark.parametrize("op, name", [case for case in EVERY if case[1] in numbers.named(case[0], "int")
                                      and case[1] not in numbers.named(case[0], "float")])  # fmt: skip
@pytest.mark.parametrize("x", [np.float32(2.5), np.float64(2), np.bool_(True)], ids=["2.5", "2.0", "True"])
def test_an_integer_is_no_rounded_float(op, name, x):
    call = numbers.call_with(op, name)
    with pytest.raises(TypeError, match=rf"^{op}: {re.escape(name)} must be .*, got {type(x).__name__}$"):
        flat.call_dotted(op, call | {name: x})


# ---- torch.compile --------------------------------------------------------------------------------------------------


def graphs(op, call, values, backend="aot_eager"):
    """Return how many graphs torch.compile makes for calls with these numbers. Results must equal those of eager
    calls."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    call = flat.dotted(op, call)
    function = lambda changes: flat.call_dotted(op, call | changes)  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for changes in values:
        assert same(tensors(compiled(changes)), tensors(function(changes))), changes
    return counter.frame_count


def sampling_names(op):
    return [name for name in numbers.named(op, "int|float") if numbers.base(name) in SAMPLING]


SAMPLED = [op for op in numbers.FUNCTIONS if sampling_names(op)]


def base_call(op, names):
    """Return an example call with random numbers, in which these arguments may be numbers."""
    call = numbers.call_with(op, names[-1])
    return {name: x for name, x in call.items() if name not in names}


def test_which_ops_take_sampling_parameters():
    assert {"row_stats", "sample", "verify_chain", "verify_tree"} <= set(SAMPLED)


@pytest.mark.slow
@pytest.mark.parametrize("op", SAMPLED)
def test_two_graphs_for_all_values_of_all_numbers(op):
    names = sampling_names(op)
    values = [{name: numbers.varied(name, i, TIMES) for name in names} for i in range(TIMES)]
    assert graphs(op, base_call(op, names), values) <= 2


@pytest.mark.thorough
@pytest.mark.parametrize("op, name", [(op, name) for op in SAMPLED for name in sampling_names(op)])
def test_two_graphs_for_all_values_of_a_number(op, name):
    values = [{name: numbers.varied(name, i, TIMES)} for i in range(TIMES)]
    call = base_call(op, [name])
    assert graphs(op, call, values) <= 2
    off = [] if name.endswith("temperature") else [{name: 1.0 if name.endswith("top_p") else 0}]
    assert graphs(op, call, values + off + [{name: None}]) <= 4


FEW_RULES = ("chain-lossy", "chain-thresholds", "target_only-thresholds")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in FEW_RULES else pytest.mark.thorough) for case in RULE_CALLS]
)
def test_two_graphs_for_all_values_of_alpha(case):
    op, call, rule = RULE_CALLS[case]
    values = [{"alpha": numbers.of_rule(rule, i, TIMES)} for i in range(TIMES)]
    assert graphs(op, call | {"rule": rule}, values) <= 2


@pytest.mark.slow
def test_two_graphs_for_a_rate_of_each_position():
    call = dict(example_calls.calls("verify_chain", V=numbers.V))["a rate of each position"]
    G = len(call["alpha"])
    values = [{"alpha": tuple(numbers.of_rule("synthetic", (i + g) % TIMES, TIMES) for g in range(G))}
              for i in range(TIMES)]  # fmt: skip
    assert graphs("verify_chain", call, values) <= 2


@pytest.mark.slow
def test_two_graphs_where_rules_are_tensors():
    """With rules in a tensor, one number is the alpha of all requests."""
    code = torch.tensor([RULES["lossy"].code])
    call = dict(example_calls.calls("verify_chain", V=numbers.V))["a rule, one number"] | {"rule": code}
    values = [{"alpha": numbers.of_rule("lossy", i, TIMES)} for i in range(TIMES)]
    assert graphs("verify_chain", call, values) <= 2


@pytest.mark.slow
def test_two_graphs_where_exactness_is_required():
    call = dict(example_calls.calls("verify_chain", V=numbers.V))["seeds"]
    assert set(CHAIN_METHODS) == {"token", "block", "race"}
    name = "target.temperature"
    values = [{name: numbers.varied(name, i, TIMES)} for i in range(TIMES)]
    assert graphs("verify_chain", call | {"require_exact": True, "rule": "lossy", "alpha": 0.0}, values) <= 2


@pytest.mark.thorough
def test_two_graphs_of_machine_code():
    call = dict(example_calls.calls("verify_chain", V=numbers.V))["filters"]
    names = sampling_names("verify_chain")
    values = [{name: numbers.varied(name, i, TIMES) for name in names} for i in range(TIMES)]
    assert graphs("verify_chain", call, values, "inductor") <= 2
