# SPDX-License-Identifier: Apache-2.0
"""Comparisons of verify_tree's results with each other and with the reference's."""

import importlib

import torch
from support import answers as reference
from support import backends, checks, flat

import specdec_kernels as sk

METHODS = ("kseq", "recursive", "recursive_without_replacement", "target_only", "greedy", "traversal")


def verify(backend):
    return backends.call("verify_tree", backend)


def agree_on(verify, args, what):
    out, ref = verify(**args), flat.call(reference.verify_tree, **args)
    same = checks.assert_same_tokens(out, ref, what)
    assert torch.equal(out.path[same], ref.path[same])
    fine = ref.logprobs[same].isfinite()
    assert torch.equal(fine, out.logprobs[same].isfinite())
    assert (out.logprobs[same] - ref.logprobs[same])[fine].abs().max() < 2e-5
    return out, ref


def equal(a, b):
    return all(torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in zip(a, b))


def differ(out, ref):
    """Return which requests differ from the reference, except where rounding may decide (margin <= 1)."""
    same = (
        (out.tokens == ref.tokens).all(-1)
        & (out.path == ref.path).all(-1)
        & (out.num_accepted == ref.num_accepted)
        & (out.status == ref.status)
    )
    return ~same & (ref.margin > 1)


def pick(args, at):
    """Return the same call for some of its requests."""
    out = {}
    for name, x in args.items():
        out[name] = (
            tuple(None if t is None else t[at] for t in x)
            if isinstance(x, tuple)
            else x[at]
            if torch.is_tensor(x) and x.dim()
            else x
        )
    return out


def visited_by_traversal(args):
    """Return, for each request, the nodes whose target rows the reference reads."""
    module = importlib.import_module("specdec_kernels.reference.verify_tree")
    seen, target_of = [], module.target_of

    def noted(*side):
        target = target_of(*side)
        return lambda node: seen[-1].append(node) or target(node)

    module.target_of = noted
    try:
        for b in range(len(args["target_logits"])):
            seen.append([])
            flat.call(sk.reference.verify_tree, **pick(args, slice(b, b + 1)))  # answers.py would not run it anew
    finally:
        module.target_of = target_of
    return seen


def in_range(out, N, V):
    """Check that path and tokens are possible, with padding after them."""
    live = torch.arange(out.path.shape[1])[None] <= out.num_accepted[:, None]
    assert ((out.tokens >= 0) & (out.tokens < V))[live].all() and (out.tokens[~live] == -1).all()
    assert ((out.path >= 0) & (out.path < N))[live].all() and (out.path[~live] == -1).all()
