# SPDX-License-Identifier: Apache-2.0
"""Calls of the ops in the checked build of the simulated device.

They run in their own process, because loading that build replaces the process's ops.
"""

import os
from itertools import product

import torch
from support import flat, races, tree_cases
from support.surface import tensors

from specdec_kernels import example_calls
from specdec_kernels.registry import OPS, TREE_METHODS
from tools.cuda_on_cpu.build import load
from tools.cuda_on_cpu.control import BLOCK_ORDERS, SCHEDULES, counting, order


def tree_step(method, B=4, kinds=("near", "dirichlet")):
    """Return trees with some nodes accepted, some not. Rows are unaligned, and the last of three chunks is not full."""
    return tree_cases.tree(17, B, 2 * 1024 + 77, method, K=3, L=2, dirty=False, kinds=kinds)


def row_stats_cases(csrc, ops):
    """Return [the first error of row_stats], or [].

    The error is the text of an exception, "outside" for reads between the rows, or "wrong" for a wrong result. No
    further call is made after an error, since it might never end.
    """
    import specdec_kernels as sk

    module = load("checked", csrc, ops)
    generator = torch.Generator().manual_seed(5)
    # 9 chunks make two blocks. Rows of 9 * 1024 - 3 end in a group of 8 entries that lacks 3. Rows of 3,001 are in one
    # block, and unaligned.
    for V, pad, dtype in (9 * 1024 - 3, 11, torch.float32), (9 * 1024 - 8, 8, torch.bfloat16), (3001, 0, torch.float16):
        logits = (3 * torch.randn(3, V + pad, generator=generator)).to(dtype)[:, :V]
        filters = {"temperature": 0.7, "top_k": 5, "top_p": 0.9}, {"top_p": 0.9}
        for settings, *turns in zip([{}, *filters, {"temperature": 0.0}], SCHEDULES, 2 * BLOCK_ORDERS):
            try:
                with order(module, *turns), counting(module, logits=logits) as counts:
                    got = sk.row_stats(sk.Rows(logits, **settings))
            except RuntimeError as error:
                return [str(error)]
            if counts["logits"].outside:
                return ["outside"]
            if not torch.allclose(
                got.double(), sk.reference.row_stats(sk.Rows(logits, **settings)), rtol=1e-5, atol=1e-5
            ):
                return ["wrong"]
    return []


def verify_chain_cases(csrc, ops):
    """Return the first error of verify_chain, as row_stats_cases does.

    Drafts are rejected at the first position, at the second, or not at all, on the path of small batches and on the
    other one.
    """
    import specdec_kernels as sk

    module = load("checked", csrc, ops)
    generator = torch.Generator().manual_seed(7)
    B, G, V = 3, 2, 9 * 1024 - 3
    target = torch.randn(B, G + 1, V, generator=generator)
    draft = target[:, :G].clone()
    tokens = torch.full((B, G), 17)
    for b in range(2):  # far likelier under the draft than under the target
        draft[b, b, 17] += 12
    u = torch.full((B, G + 1), 0.5, dtype=torch.float64)
    u[2, G] = 1 - 1e-6  # the last id of a ragged chunk
    want = sk.reference.verify_chain(target, tokens, draft, uniforms=u)
    assert want.tokens[2, G] == V - 1
    for path, turns in product(("", "streaming"), zip(SCHEDULES, BLOCK_ORDERS)):
        os.environ["SPECDEC_CUDA_PATH"] = path
        try:
            with order(module, *turns):
                got = sk.verify_chain(target, tokens, draft, uniforms=u)
        except RuntimeError as error:
            return [str(error)]
        finally:
            os.environ["SPECDEC_CUDA_PATH"] = ""
        assert want.num_accepted.tolist() == [0, 1, 2]
        if not got.tokens.equal(want.tokens):
            return ["wrong"]
    return rule_cases(module)


def rule_cases(module):
    """Return the first error under a rule that needs both entropies and TV at each position, and keeps every draft.

    One pass over a pair of rows follows another, and no block waits for the others in between.
    """
    import specdec_kernels as sk

    generator = torch.Generator().manual_seed(12)
    B, G, V = 2, 3, 9 * 1024 - 3
    target = torch.randn(B, G + 1, V, generator=generator)
    draft = target[:, :G] + 0.1 * torch.randn(B, G, V, generator=generator)
    tokens = draft.argmax(-1)
    args = {"rule": "opt_log", "alpha": 1.0, "uniforms": torch.full((B, G + 1), 0.5, dtype=torch.float64)}
    want = sk.reference.verify_chain(target, tokens, draft, **args)
    assert want.num_accepted.tolist() == [G] * B
    for turns in zip(SCHEDULES, BLOCK_ORDERS):
        try:
            with order(module, *turns):
                got = sk.verify_chain(target, tokens, draft, **args)
        except RuntimeError as error:
            return [str(error)]
        if not got.tokens.equal(want.tokens):
            return ["wrong"]
    return one_hot_cases(module)


def one_hot_cases(module):
    """Return the first error with one-hot drafts, or ["read twice"] if a chunk is read again.

    If the op computes the target's stats, it then has all chunk sums except one. If the stats are given, it reads each
    chunk once.
    """
    import specdec_kernels as sk

    generator = torch.Generator().manual_seed(8)
    B, G, V, hot = 3, 2, 9 * 1024, 3 * 1024 + 17
    target = torch.randn(B, G + 1, V, generator=generator)
    target[..., hot] = 10  # weighs .6
    tokens, u = torch.full((B, G), hot), torch.full((B, G + 1), 0.5, dtype=torch.float64)
    u[0, 0] = u[1, 1] = 0.9
    want = sk.reference.verify_chain(target, tokens, None, uniforms=u)
    stats = sk.reference.row_stats(target.flatten(0, 1)).float().view(B, G + 1, 4)
    assert want.num_accepted.tolist() == [0, 1, 2]
    chunk, rescan = 4 * 1024, 4 * (1024 + 2 * 256)
    for path, given, turns in product(("", "streaming"), (None, stats), list(zip(SCHEDULES, BLOCK_ORDERS))[:2]):
        os.environ["SPECDEC_CUDA_PATH"] = path
        try:
            with order(module, *turns), counting(module, target=target.flatten(0, 1)) as counts:
                got = sk.verify_chain(sk.Rows(target, stats=given), tokens, uniforms=u)
        except RuntimeError as error:
            return [str(error)]
        finally:
            os.environ["SPECDEC_CUDA_PATH"] = ""
        if not got.tokens.equal(want.tokens):
            return ["wrong"]
        at_stop = counts["target"].read.reshape(B, G + 1)[[0, 1], [0, 1]]
        if (at_stop > 4 * V + (chunk if given is None else 0) + rescan).any():
            return ["read twice"]
    return plain_cases(module)


def plain_cases(module):
    """Return the first error with 16-bit rows, whose loop compares with no cutoff, against the same rows in float32.

    Some rows are ordinary. Others have NaN, infinities, or draft entries that weigh 1 or more.
    """
    import specdec_kernels as sk

    generator = torch.Generator().manual_seed(11)
    V, d = 2 * 1024, 5
    defects, draws = ["none", "p nan", "p inf", "q nan", "q inf", "q 1.0005", "q 2", "q 1"], 6
    target, draft = torch.randn(2, len(defects), V, generator=generator).bfloat16().unbind()
    draft[:, d] = 6  # rejected
    stats = [sk.reference.row_stats(x).float() for x in (target, draft)]
    for i, name in enumerate(defects):
        side, _, value = name.partition(" ")
        if value in ("nan", "inf"):
            (target if side == "p" else draft)[i, 1500] = float(value)
        elif value:  # the likeliest of the second chunk, also for the target
            draft[i, 1500], target[i, 1500] = 8, 7
            stats[0][i] = sk.reference.row_stats(target[i : i + 1]).float()
            stats[1][i, 2] = 8 - stats[1][i, 3] - torch.tensor(float(value)).log()
    u = torch.stack([torch.full((draws,), 1 - 1e-9), (torch.arange(draws) + 0.5) / draws], 1).double()
    many = lambda x: x.repeat_interleave(draws, 0)
    rows = [many(target)[:, None].repeat(1, 2, 1), many(draft)[:, None].contiguous()]
    args = {"draft_tokens": torch.full((len(rows[0]), 1), d), "uniforms": u.repeat(len(defects), 1)}
    args |= {
        "target_stats": many(stats[0])[:, None].repeat(1, 2, 1),
        "draft_stats": many(stats[1])[:, None].contiguous(),
    }
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        try:
            got = flat.call(sk.verify_chain, rows[0].to(dtype), draft=rows[1].to(dtype), **args)
        except RuntimeError as error:
            return [str(error)]
        found.append([got.tokens, got.status])
    assert (found[2][0][:, 1] < 0).all() and found[2][0].unique().numel() > 3 * draws
    same = all(torch.equal(x, y) for answers in found[:2] for x, y in zip(answers, found[2]))
    return [] if same else ["wrong"]


def verify_tree_cases(csrc, ops):
    """Return the first error of verify_tree with each method, as row_stats_cases does.

    The draft tokens have much of the rows' mass, so errors in the residual show.
    """
    import specdec_kernels as sk

    module = load("checked", csrc, ops)
    for method, turns in zip(TREE_METHODS, zip(2 * SCHEDULES, 3 * BLOCK_ORDERS)):
        args = races.raced(tree_step(method, 48, ["sharp"]))
        want = flat.call(sk.reference.banded.verify_tree, **args)
        try:
            with order(module, *turns):
                got = flat.call(sk.verify_tree, **args)
        except RuntimeError as error:
            return [str(error)]
        same = (got.tokens == want.tokens).all(-1) & (got.status == want.status)
        if not same[want.margin > 1].all():
            return ["wrong"]
    return []


def kseq_rho_cases(csrc, ops):
    """Return the first error of kseq_rho on a pair in a cluster of four blocks, as row_stats_cases does."""
    import specdec_kernels as sk

    module = load("checked", csrc, ops)
    generator = torch.Generator().manual_seed(9)
    p, q = torch.randn(2, 1, 9 * 1024 - 3, generator=generator).softmax(-1).unbind()
    want = sk.reference.kseq_rho(sk.Rows(p, kind="probs"), sk.Rows(q, kind="probs"), 4)
    for turns in zip(SCHEDULES, 2 * BLOCK_ORDERS):
        module.reset()
        try:
            with order(module, *turns):
                got = sk.kseq_rho(sk.Rows(p, kind="probs"), sk.Rows(q, kind="probs"), 4)
        except RuntimeError as error:
            return [str(error)]
        assert module.launches() == [("search", 4)]
        if not torch.allclose(got[0].double(), want[0].double(), rtol=1e-3):
            return ["wrong"]
    return []


def turns(module, blocks):
    """Return the turn that each thread of the launch takes."""
    out, counter = torch.zeros(blocks * 256, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    module.run_sample("turns", 0, blocks, 0, 0, out.data_ptr(), counter.data_ptr())
    return out.tolist()


def turns_of_environment():
    return turns(load("fast", ops=()), 4)


CASES = {
    "row_stats": row_stats_cases,
    "kseq_rho": kseq_rho_cases,
    "verify_chain": verify_chain_cases,
    "verify_tree": verify_tree_cases,
}


def row_stats_bytes(N, V):
    import specdec_kernels

    logits = torch.randn(N, V)
    with counting(load("checked"), logits=logits) as counts:
        specdec_kernels.row_stats(logits)
    count = counts["logits"]
    return count.read.tolist(), count.distinct.tolist(), count.loads, count.outside


def every_op(schedule, blocks):
    """Return name -> bytes of the result, for each op's example calls.

    Rows are unaligned. Those of verify_tree have three chunks; the others have nine, in two blocks.
    """
    import specdec_kernels as sk

    module, results = load("checked"), {}
    with order(module, schedule, blocks):
        for op in OPS:
            for call in example_calls.few(op, V=2 * 1024 + 77 if op == "verify_tree" else 9 * 1024 - 3):
                for i, x in enumerate(tensors(getattr(sk, op)(**call.arguments))):
                    results[f"{op}, {call.name} {i}"] = x.contiguous().view(torch.uint8).numpy().tobytes()
    return results
