# SPDX-License-Identifier: Apache-2.0
"""Calls with one row in memory under several sets of penalties, and the same calls on rows with penalties applied."""

import torch
from support import races, worker
from support.viewed import differ

import specdec_kernels as sk
from specdec_kernels.reference.views import written_out
from specdec_kernels.registry import BY_LAW, CHUNK
from specdec_kernels.rows import Rows

LEFT, RIGHT = 5, CHUNK + 5  # tokens at the same place of two chunks, which are otherwise equal
REQUESTS = 8  # their final uniforms are spread evenly over (0, 1)


def memory(left, right, dtype):
    half = torch.randn(CHUNK, generator=torch.Generator().manual_seed(3)) - 2
    z = half.repeat(2)
    z[LEFT], z[RIGHT] = left, right
    return z.to(dtype)


def penalties(prompt=(), output=(), **amounts):
    """Return the penalties of every request, which share one list."""
    ids, counts = sk.history([list(prompt)], [list(output)], size=2)
    return sk.Penalties(**amounts, ids=ids, counts=counts, row=torch.zeros(REQUESTS, dtype=torch.int64))


SWAP = {"prompt": [LEFT], "output": [RIGHT], "repetition": 0.5, "presence": 12.0}  # logits (4, 8) become (8, 4)
# Sides with penalties: logits of LEFT and RIGHT, penalties of target and draft, and a draft after which the target's
# row is the same as before.
MIRRORED = {
    "target": (4, 8, SWAP, None, RIGHT),
    "draft": (4, 8, None, SWAP, RIGHT),
    "both": (4, 4, {"prompt": [LEFT], "repetition": 0.5}, {"prompt": [RIGHT], "repetition": 0.5}, LEFT),
}


def side(z, view, drafts):
    """Return one side's rows after 0, 1, ... drafts, twice.

    The first are unchanged, all in the memory of z. The second have the penalties applied, each in its own memory.
    """
    view = None if view is None else penalties(**view)
    windows = [drafts[:i] for i in range(len(drafts) + 1)]
    stored = z.expand(REQUESTS, len(windows), len(z))
    out = written_out(stored[0], Rows(stored, penalties=view), windows, [0] * len(windows), REQUESTS).float().clone()
    return Rows(stored, penalties=view), Rows(out.expand(REQUESTS, *out.shape))


def with_stats(rows, plain, temperatures):
    """Return the same rows with the stats of those with penalties applied, and a temperature for each position."""
    stats = sk.row_stats(Rows(plain.logits[0], temperature=torch.tensor(temperatures)))
    stats = stats.expand(REQUESTS, *stats.shape)
    return rows._replace(stats=stats), plain._replace(stats=stats)


def uniforms(tests):
    """Return uniforms that accept every draft with any mass."""
    final = (torch.arange(REQUESTS, dtype=torch.float64)[:, None] + 0.5) / REQUESTS
    return torch.cat([torch.zeros(REQUESTS, tests, dtype=torch.float64), final], 1)


def mirrored_call(op, method, sides, dtype=torch.float32):
    """Return a call, and the same on rows with penalties applied.

    The draft's row has the same four stats as the target's, but the mass of the two chunks is exchanged. The target's
    stats are given, so the sums that an executor holds when it draws the bonus token are the draft's.
    """
    left, right, on_target, on_draft, d = MIRRORED[sides]
    z = memory(left, right, dtype)
    target, draft = with_stats(*side(z, on_target, [d]), [1.0, 1.0]), side(z, on_draft, [d])
    drafts = torch.full((REQUESTS, 1), d)
    if op == "verify_chain":
        call = {"draft_tokens": drafts, "method": method, "uniforms": uniforms(1)}
    else:
        tree = torch.tensor([[-1, 0]]).expand(REQUESTS, 2), drafts.expand(REQUESTS, 2)
        call = {"tree": tree, "method": method, "uniforms": uniforms(2)}
    return [{"target": t, "draft": q} | call for t, q in zip(target, draft)]


def relaxed_call(dtype=torch.float32):
    """Return a call under the rule `relaxed`, and the same on rows with penalties applied.

    At the first position the stats are of another temperature, so the executor must read the row; at the second it need
    not. There the penalties have raised the first draft's logit, so the second draft is no longer the largest entry and
    is rejected. An executor that took the first position's chunk maxima for the second one's would accept it.
    """
    z = memory(4, 4, dtype)
    rows = with_stats(*side(z, {"frequency": -2.0}, [LEFT, RIGHT]), [0.7, 1.0, 1.0])
    drafts = torch.tensor([[LEFT, RIGHT]]).expand(REQUESTS, 2)
    call = {"draft_tokens": drafts, "rule": "relaxed", "alpha": (1.0, 1.0), "uniforms": uniforms(2)}
    return [{"target": x} | call for x in rows]


def calls(fewer=False):
    """Yield (name, op, the call on rows in one memory, the call on rows with penalties applied). fewer: each dtype and
    each side with each method, but not both in every pair."""
    for i, dtype in enumerate((torch.float32, torch.bfloat16)):
        for j, sides in enumerate(MIRRORED):
            if fewer and (i + j) % 2:
                continue
            for op, methods in (("verify_chain", races.OTHERS), ("verify_tree", BY_LAW)):
                for method in methods:
                    yield f"{op} {method} {sides} {dtype}", op, *mirrored_call(op, method, sides, dtype)
        yield f"relaxed {dtype}", "verify_chain", *relaxed_call(dtype)


def compared(fewer=False):
    """Return the names of calls that differ from those on rows with penalties applied."""
    found = []
    for name, op, *both in calls(fewer):
        seen, plain = (getattr(sk, op)(**call) for call in worker.here(both))
        if differ(seen, plain):
            found.append(name)
    return found
