# SPDX-License-Identifier: Apache-2.0
"""Calls with the method `race`: random ones, and those of other generators with seeds in place of uniforms."""

import torch
from support import cases, tree_cases

import specdec_kernels as sk
from specdec_kernels.registry import CHAIN_METHODS, TREE_METHODS

# The methods that take uniforms, of verify_chain and of verify_tree
OTHERS, OTHER_TREES = (tuple(x for x in methods if x != "race") for methods in (CHAIN_METHODS, TREE_METHODS))


def requests(call):
    """Return how many requests, or rows, a call of a public function has."""
    if "cu_draft" in call:
        return len(call["cu_draft"]) - 1
    if "rows" in call:
        return len(call["rows"].logits)
    return len(call["tree"][0] if "tree" in call else call["draft_tokens"])


def raced(call):
    """Return the call. A race gets seeds made from its uniforms in their place, or noise keys in half of the calls."""
    if call.get("method") != "race" and not call.get("race"):
        return call
    call = dict(call)
    bits = (call.pop("uniforms") * 2.0**53).long()
    if bits.numel() == 0 or bits.flatten()[0] % 2:
        return call | {"seed": bits[:, :1].sum(1), "offset": bits[:, 1:].sum(1)}
    if "rows" in call or "logits" in call:
        return call | {"seed": bits[:, 0]}
    if "cu_draft" in call:
        return call | {"seed": bits.flatten()[0] + torch.arange(call["draft_tokens"].numel() + len(bits))}
    return call | {"seed": bits[:, : call["tree"][0].shape[-1]] if "tree" in call else bits}


def some(call, seed):
    """Return a call of verification, one in eight as a race."""
    if seed % 8 != 7:
        return call
    return raced({name: x for name, x in call.items() if name not in ("rule", "alpha")} | {"method": "race"})


def seeds(B, first=0):
    """Return seed and offset of B requests. Some are negative, and some offsets exceed 32 bits."""
    seed = torch.arange(B, dtype=torch.int64) * 7919 + first - 5
    return {"seed": seed, "offset": (torch.arange(B) % 7) * (1 << 33) + torch.arange(B) % 5 - 2}


def positions(offset, n):
    """Return the positions [B, n] of the tokens from `offset` [B] on."""
    return offset[:, None] + torch.arange(n)


def chain(seed, B, G, V, keyed=False, **how):
    """Return a flat call of verify_chain, a race. Drafts are the winners of the draft's rows in the same race."""
    args = cases.chain(seed, B, G, V, **how)
    q = args.pop("draft_logits")
    args.pop("uniforms")
    of_draft = {name: args.pop(name) for name in list(args) if name.startswith("draft_") and name != "draft_tokens"}
    args |= seeds(B, seed) | {"method": "race"}
    if q is not None and G:
        params = {name.removeprefix("draft_"): x.repeat_interleave(G) for name, x in of_draft.items()}
        at = {"seed": args["seed"].repeat_interleave(G), "offset": positions(args["offset"], G).flatten()}
        won = sk.sample(sk.Rows(q.flatten(0, 1), **params), race=True, **at).tokens.view(B, G)
        kept = (args["draft_tokens"] >= 0) & (args["draft_tokens"] < max(V, q.shape[-1]))  # ids outside stay
        args["draft_tokens"] = torch.where(kept, won, args["draft_tokens"])
    if keyed:
        args |= {"seed": args.pop("seed")[:, None] * 31 + positions(args.pop("offset"), G + 1)}
    return args


def tree(seed, B, V, keyed=False, **how):
    """Return a flat call of verify_tree, a race. One token in two is the winner of the target's row at its parent."""
    args = tree_cases.tree(seed, B, V, "race", **how)
    for name in [name for name in args if name.startswith("draft_")] + ["uniforms"]:
        args.pop(name)
    args |= seeds(B, seed)
    parents, tokens = args["tree"][:2]
    N = parents.shape[1]
    depth = torch.zeros(B, N, dtype=torch.int64)
    for i in range(1, N):
        depth[:, i] = torch.where(
            parents[:, i] >= 0, depth.gather(1, parents[:, i : i + 1].long().clamp(0))[:, 0] + 1, 0
        )
    if keyed:
        args |= {"seed": args.pop("seed")[:, None] * 31 + torch.arange(N)}
        at = {"seed": args["seed"].flatten()}
        args.pop("offset")
    else:
        at = {"seed": args["seed"].repeat_interleave(N), "offset": (args["offset"][:, None] + depth).flatten()}
    p = args["target_logits"]
    row = args.get("target_row", torch.arange(N).expand(B, N)).long()
    own = p.gather(1, row[:, :, None].expand(B, N, p.shape[2])).flatten(0, 1)
    if args.get("target_kind") == "probs":
        own = own.float().log()
    params = {name: args[name].repeat_interleave(N) for name in sk.registry.SAMPLING if name in args}
    won = sk.sample(sk.Rows(own, **params), race=True, **at).tokens.view(B, N)
    won = won.gather(1, parents.long().clamp(0))
    matched = torch.rand(B, N, generator=torch.Generator().manual_seed(seed)) < 0.5
    args["tree"] = (parents, torch.where(matched & (parents >= 0), won, tokens))
    return args
