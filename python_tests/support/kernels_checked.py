# SPDX-License-Identifier: Apache-2.0
"""Calls of the ops on their checked build, for a process of its own: loading it replaces the ops of the process."""

import torch
from support import tree_cases

from tools.cuda_on_cpu.build import load
from tools.cuda_on_cpu.control import BLOCK_ORDERS, SCHEDULES, counting, order

TREE_METHODS = ("kseq", "recursive", "recursive_without_replacement", "target_only", "greedy", "traversal")


def tree_step(method, B=4, kinds=("near", "dirichlet")):
    """Trees of which some nodes are accepted and some are not; three chunks, the last one ragged, the rows
    unaligned."""
    return tree_cases.tree(17, B, 2 * 1024 + 77, method, K=3, L=2, dirty=False, kinds=kinds)


def row_stats_cases(csrc, ops):
    """What goes wrong with row_stats: error texts, "outside" for reads between the rows, "wrong" for results."""
    import specdec_kernels as sk

    module, found = load("checked", csrc, ops), []
    generator = torch.Generator().manual_seed(5)
    # 9 chunks make two blocks, the last chunk has 3 entries less than a group of 8; 3,001 is in one block, its rows
    # unaligned
    for V, pad, dtype in (9 * 1024 - 3, 11, torch.float32), (9 * 1024 - 8, 8, torch.bfloat16), (3001, 0, torch.float16):
        logits = (3 * torch.randn(3, V + pad, generator=generator)).to(dtype)[:, :V]
        for settings, *turns in zip(
            [{}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9}, {"temperature": 0.0}], SCHEDULES, BLOCK_ORDERS
        ):
            try:
                with order(module, *turns), counting(module, logits=logits) as counts:
                    got = sk.row_stats(logits, **settings)
            except RuntimeError as error:
                found.append(str(error))
                continue
            if counts["logits"].outside:
                found.append("outside")
            if not torch.allclose(got.double(), sk.reference.row_stats(logits, **settings), rtol=1e-5, atol=1e-5):
                found.append("wrong")
    return found


def verify_chain_cases(csrc, ops):
    """As row_stats_cases, where drafts are rejected at the first position, at the second, and not at all."""
    import specdec_kernels as sk

    module, found = load("checked", csrc, ops), []
    generator = torch.Generator().manual_seed(7)
    B, G, V = 3, 2, 9 * 1024 - 3
    target = torch.randn(B, G + 1, V, generator=generator)
    draft = target[:, :G].clone()
    tokens = torch.full((B, G), 17)
    for b in range(2):  # far likelier for the draft than for the target
        draft[b, b, 17] += 12
    u = torch.full((B, G + 1), 0.5, dtype=torch.float64)
    want = sk.reference.verify_chain(target, tokens, draft, uniforms=u)
    for turns in zip(SCHEDULES, BLOCK_ORDERS):
        try:
            with order(module, *turns):
                got = sk.verify_chain(target, tokens, draft, uniforms=u)
        except RuntimeError as error:
            found.append(str(error))
            continue
        assert want.num_accepted.tolist() == [0, 1, 2]
        if not got.tokens.equal(want.tokens):
            found.append("wrong")
    return found


def verify_tree_cases(csrc, ops):
    """As row_stats_cases, of each method: rows of which a drafted token is a large part, so that what is left of them
    tells."""
    import specdec_kernels as sk

    module, found = load("checked", csrc, ops), []
    for method, turns in zip(TREE_METHODS, zip(2 * SCHEDULES, 2 * BLOCK_ORDERS)):
        args = tree_step(method, 48, ["sharp"])
        want = sk.reference.verify_tree(**args)
        try:
            with order(module, *turns):
                got = sk.verify_tree(**args)
        except RuntimeError as error:
            found.append(str(error))
            continue
        same = (got.tokens == want.tokens).all(-1) & (got.status == want.status)
        if not same[want.margin > 1].all():
            found.append("wrong")
    return found


def turns(module, blocks):
    """Which turn each thread of the launch takes."""
    out, counter = torch.zeros(blocks * 256, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    module.run_sample("turns", 0, blocks, 0, 0, out.data_ptr(), counter.data_ptr())
    return out.tolist()


def turns_of_environment():
    return turns(load("fast", ops=()), 4)


CASES = {"row_stats": row_stats_cases, "verify_chain": verify_chain_cases, "verify_tree": verify_tree_cases}


def row_stats_bytes(N, V):
    import specdec_kernels

    logits = torch.randn(N, V)
    with counting(load("checked"), logits=logits) as counts:
        specdec_kernels.row_stats(logits)
    count = counts["logits"]
    return count.read.tolist(), count.distinct.tolist(), count.loads, count.outside


def every_op(schedule, blocks):
    """name -> bytes of the result, of each op in each of its forms."""
    import specdec_kernels as sk

    module = load("checked")
    generator = torch.Generator().manual_seed(6)
    B, G, V = 3, 2, 9 * 1024 - 3  # two blocks for each row, the rows unaligned
    target = 2 * torch.randn(B, G + 1, V, generator=generator)
    draft = target[:, :G] + 0.5 * torch.randn(B, G, V, generator=generator)
    p, q = target.softmax(-1), draft.softmax(-1)
    tokens = torch.multinomial(q.reshape(-1, V), 1, generator=generator).view(B, G)
    seed, offset = torch.arange(B), torch.arange(B) * 7
    rng = {"seed": seed, "offset": offset}
    settings = {
        "plain": {},
        "top-k": {"temperature": 0.8, "top_k": 40},
        "top-p": {"temperature": torch.tensor([0.7, 0.0, 1.3]), "top_p": 0.9},
        "min-p": {"min_p": 0.05, "top_k": 3000},
    }

    def calls():
        yield "uniforms", lambda: sk.uniforms(seed, offset, 300)
        yield (
            "accept",
            lambda: sk.accept(
                p[0, 0], q[0, 0], torch.rand(V, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            ),
        )
        yield "residual", lambda: sk.residual(p[:, 0], q[:, 0])
        yield "residual of ids", lambda: sk.residual(p[:, 0], tokens[:, 0])
        yield "kseq_rho", lambda: sk.kseq_rho(target[:, 0], draft[:, 0], 4)
        yield (
            "kseq_rho of probabilities",
            lambda: sk.kseq_rho(p[:, 0], q[:, 0].half(), torch.tensor([1, 2, 64]), kind="probs"),
        )
        trees = sk.build_tree(torch.randint(-1, 3, (B, 7, 5), generator=torch.Generator().manual_seed(2)))
        yield (
            "build_tree",
            lambda: sk.build_tree(torch.randint(-1, 3, (B, 70, 3), generator=torch.Generator().manual_seed(3))),
        )
        for format in ("bool", "additive", "uint8", "uint32", "uint64"):
            yield f"tree_mask {format}", lambda format=format: sk.tree_mask(trees.parents, seed * 5, format)
            yield (
                f"tree_mask {format} with a prefix",
                lambda format=format: sk.tree_mask(trees.parents, seed * 5, format, num_keys=61),
            )
        for name, s in settings.items():
            yield f"row_stats {name}", lambda s=s: sk.row_stats(target[:, 0], **s)
            yield f"sample {name}", lambda s=s: sk.sample(target[:, 0], k=2, **s, **rng)
            yield (
                f"sample without replacement {name}",
                lambda s=s: sk.sample(target[:, 0], k=3, replacement=False, **s, **rng),
            )
            yield f"verify_chain {name}", lambda s=s: sk.verify_chain(target, tokens, draft, **s, **rng)
        yield "verify_chain one-hot", lambda: sk.verify_chain(target, tokens, **rng)
        yield (
            "verify_chain probabilities",
            lambda: sk.verify_chain(p, tokens, q, target_kind="probs", draft_kind="probs", **rng),
        )
        yield "verify_chain half", lambda: sk.verify_chain(target.half(), tokens, draft.bfloat16(), **rng)
        for method, rules in (("token", ("opt_log", "relaxed", "lossy")), ("block", ("exact", "token_v3", "ensemble"))):
            mixed = torch.tensor([sk.RULES[name] for name in rules])
            args = dict(rule=mixed, alpha=torch.tensor([0.5, 1.0, 0.5]), method=method, **rng)
            yield f"verify_chain by rule, {method}", lambda args=args: sk.verify_chain(target, tokens, draft, **args)
        yield "row_gap", lambda: sk.row_gap(target[:, 0], draft[:, 0])
        for method in TREE_METHODS:
            yield f"verify_tree {method}", lambda method=method: sk.verify_tree(**tree_step(method))
        by_rule = {
            "rule": torch.tensor([sk.RULES[name] for name in ("token_v3", "exact", "opt_log", "lossy")]),
            "alpha": torch.full((4,), 0.5),
        }
        for method in ("kseq", "recursive", "recursive_without_replacement", "traversal"):
            yield f"verify_tree by rule, {method}", lambda method=method: sk.verify_tree(**tree_step(method), **by_rule)
        yield (
            "verify_tree by thresholds",
            lambda: sk.verify_tree(**tree_step("target_only"), rule="thresholds", alpha=(0.5, 0.8)),
        )

    results = {}
    with order(module, schedule, blocks):
        for name, call in calls():
            result = call()
            for i, x in enumerate(result if isinstance(result, tuple) else (result,)):
                results[f"{name} {i}"] = x.contiguous().view(torch.uint8).numpy().tobytes()
    return results
