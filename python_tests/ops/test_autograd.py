# SPDX-License-Identifier: Apache-2.0
"""No op is differentiable, and no result requires grad, even if arguments do. torch.func's derivatives and forward-mode
AD raise, and vmap works."""

import re

import pytest
import torch
from support import backends, flat, surface
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.registry import OPS


def leaf(x):
    if isinstance(x, (tuple, list)):
        parts = [leaf(part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def with_grad(op, call, how):
    """Return the results of a call whose arguments require grad, the results of a plain call, and whether each of the
    first results requires grad."""
    function = surface.outcome_of(op)
    wanted = surface.tensors(function(**call))
    if how == "public":
        got = function(**leaf_call(call))
    elif how == "direct":
        _, (direct, args, _) = surface.recorded_call(op, getattr(sk, op), **call)
        got = example_calls.outcome(op, lambda *each, **named: direct(*each, *named.values()), *leaf(tuple(args)))
    else:
        torch._dynamo.reset()
        got = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=False)(**leaf_call(call))
    got = surface.tensors(got)
    return [x.detach() for x in got], wanted, [x.requires_grad for x in got]


def leaf_call(call):
    return {name: leaf(x) for name, x in call.items()}


@pytest.mark.parametrize("how", ["public", "direct", "compiled"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.one_backend
@pytest.mark.slow
def test_results_require_no_grad(op_backend, op, how):
    few = example_calls.few(op)[: 1 if op_backend == "triton-interpret" or how == "compiled" else None]
    for call in few:
        got, wanted, grads = backends.there(op_backend, with_grad, op, call.arguments, how)
        assert grads == [False] * len(wanted), call.name
        assert surface.same(got, wanted), call.name


# ---- torch.func and forward-mode AD ---------------------------------------------------------------------------------


def floats_of(op):
    """Return (name, call) for each floating-point argument in the op's examples, once each."""
    found = {}
    for call in flat.dotted_calls(op, few=True, V=11):
        for name, x in call.arguments.items():
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                found.setdefault(name, call.arguments)
    return found.items()


def total(op, call, name, x):
    """Return the sum of the results of a call with x for one argument."""
    found = surface.tensors(flat.call_dotted(op, call | {name: x}))
    return sum(one.double().nan_to_num(0, 0, 0).sum() for one in found if one.dtype.is_floating_point) + x.sum() * 0


def in_dual_level(f, x):
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
        return torch.zeros_like(x) if tangent is None else tangent


TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(f)(x),
    "vjp": lambda f, x: torch.func.vjp(f, x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "hessian": lambda f, x: torch.func.hessian(f)(x),
    "grad of vmap": lambda f, x: torch.func.grad(lambda x: torch.func.vmap(f)(x).sum())(x.expand(2, *x.shape)),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(f))(x.expand(2, *x.shape)),
    "grad of grad": lambda f, x: torch.func.grad(lambda x: torch.func.grad(f)(x).sum())(x),
    "dual_level": lambda f, x: in_dual_level(f, x),
    "vmap in dual_level": lambda f, x: in_dual_level(lambda x: torch.func.vmap(f)(x).sum(), torch.stack((x, x))),
    "forward-mode jacobian": lambda f, x: jacobian(f, x, strategy="forward-mode", vectorize=True),
    "grad in compile": lambda f, x: torch.compile(torch.func.grad(f), fullgraph=True, backend="eager")(x),
}
WITH_FLOATS = [op for op in OPS if floats_of(op)]


def raised(op, how, call, name, direct):
    """Return the error text of a transform, or None."""
    x = call[name]
    f = (lambda x: total(op, call, name, x.detach())) if direct == "detached" else (lambda x: total(op, call, name, x))
    try:
        TRANSFORMS[how](f, x)
    except Exception as error:
        return str(error)
    return None


@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("op", WITH_FLOATS)
@pytest.mark.one_backend
@pytest.mark.slow
def test_transforms_raise(op_backend, op, how):
    torch._dynamo.reset()
    few = list(floats_of(op))[: 1 if "compile" in how else None]
    for name, call in few:
        error = backends.there(op_backend, raised, op, how, call, name, "tracked")
        # The op's error names an argument of its schema, the public function's error names a field. If the call makes
        # the stats itself, row_stats raises.
        names = {name, name.replace(".", "_"), name.removeprefix("rows."), name.removesuffix(".logits")}
        by = "|".join((*(f"{op}: {re.escape(x)}" for x in names), "row_stats: [a-z_.]+"))
        wanted = f"({by}) must be detached, got one to differentiate by"
        assert error and re.search(wanted, error), (name, error)


def test_every_op_but_those_of_ids_has_floats():
    assert set(OPS) - set(WITH_FLOATS) == {"uniforms", "build_tree", "tree_mask", "count_tokens_"}


@pytest.mark.parametrize(
    "how", ["grad", "vjp", "jvp", "jacrev", "jacfwd", "grad of vmap", "vmap of grad", "dual_level"]
)
@pytest.mark.parametrize("op", WITH_FLOATS)
@pytest.mark.one_backend
@pytest.mark.slow
def test_detached_arguments_are_constants_of_a_transform(op_backend, op, how):
    torch._dynamo.reset()
    name, call = next(iter(floats_of(op)))
    assert backends.there(op_backend, raised, op, how, call, name, "detached") is None


def each_and_vmapped(op, call, dim):
    """Return an op's results for two calls, and under vmap for both at once."""
    call = flat.dotted(op, call)
    names = [name for name, x in call.items() if isinstance(x, torch.Tensor)]
    other = {name: call[name].flip(0) if call[name].dim() else call[name] for name in names}
    other = call if op in ("verify_chain", "build_tree", "tree_mask") else call | other
    both = [torch.stack([call[name], other[name]], dim) for name in names]
    run = lambda *given: tuple(surface.tensors(flat.call_dotted(op, call | dict(zip(names, given)))))  # noqa: E731
    got = torch.func.vmap(run, in_dims=dim)(*both)
    return got, [torch.stack(pair) for pair in zip(run(*(call[n] for n in names)), run(*(other[n] for n in names)))]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.one_backend
def test_vmap_calls_the_op_for_each(op_backend, op):
    for call in backends.served(op_backend, op, example_calls.few(op, V=11)):
        if "num_rows" not in call.arguments:
            got, want = backends.there(op_backend, each_and_vmapped, op, call.arguments, 0)
            assert surface.same(got, want), call.name


def test_vmap_writes_to_what_has_an_entry_for_each():
    call = dict(example_calls.calls("verify_chain", V=11))["seeds"]
    want = flat.call(sk.verify_chain, **call)
    rows = call["target"].expand(2, *call["target"].shape)

    def written(rows, out):
        return flat.call(sk.verify_chain, **call | {"target": rows, "out": out}).tokens

    both = tuple(torch.empty_like(x.expand(2, *x.shape)) for x in want)
    torch.func.vmap(written)(rows, both)
    assert surface.same([x[1] for x in both], want)
    with pytest.raises(ValueError, match="verify_chain: out.tokens must have an entry for each of vmap's, got one"):
        torch.func.vmap(lambda rows: written(rows, tuple(map(torch.empty_like, want))))(rows)
    with pytest.raises(ValueError, match="row_stats: vmap must have at least one entry, got none"):
        torch.func.vmap(sk.row_stats)(rows[:0, 0])
