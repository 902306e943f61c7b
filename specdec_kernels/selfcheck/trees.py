# SPDX-License-Identifier: Apache-2.0
"""selfcheck's part on trees: drafted, merged and verified by the ops, the tokens completed by the target's own
draws."""

import torch

from ..registry import TREE_METHODS
from .chi_square import P_VALUE, Row, chi_square, law_row, outcomes

TREE_STEPS = 250_000
V, K, L = 6, 3, 2  # drafts A, B, A are common, and a second rejection still has something to be wrong about
SHAPE = torch.tensor([-1, 0, 0, 1, 1, 2, 2])  # two distinct children at each node


def rows(seed):
    """Logits [V, V] of a level: row t is the law behind token t."""
    generator = torch.Generator().manual_seed(seed)
    return 1.2 * torch.randn(V, V, generator=generator)


P, Q = [rows(i) for i in (1, 2, 3)], [rows(i) for i in (4, 5)]


def draws(sk, table, tokens, **options):
    """One draw of sk.sample (k of them) behind each of `tokens` [n, m] -> [n, m, k]; seeds and offsets are per n."""
    m = tokens.shape[1]
    options |= {name: options[name].repeat_interleave(m) for name in ("seed", "offset")}
    return sk.sample(table.to(tokens.device)[tokens.flatten()], **options).tokens.view(len(tokens), m, -1)


def independent(sk, rng):
    """K chains of length L, merged."""
    root = torch.zeros(len(rng["seed"]), 1, dtype=torch.int64, device=rng["seed"].device)
    first = draws(sk, Q[0], root, k=K, **rng)[:, 0]
    slot = torch.arange(K, 2 * K, device=root.device).repeat(len(root))
    return sk.build_tree(torch.stack((first, draws(sk, Q[1], first, slot=slot, **rng)[:, :, 0]), 2))


def distinct(sk, rng):
    """SHAPE, the children of each node drawn without replacement."""
    root = torch.zeros(len(rng["seed"]), 1, dtype=torch.int64, device=rng["seed"].device)
    first = draws(sk, Q[0], root, k=2, replacement=False, **rng)[:, 0]
    slot = torch.tensor([2, 4], device=root.device).repeat(len(root))
    second = draws(sk, Q[1], first, k=2, replacement=False, slot=slot, **rng).flatten(1)
    return SHAPE.to(root.device), torch.cat((root - 1, first, second), 1)


def likeliest(sk, rng):
    """SHAPE, filled with the draft's best tokens."""
    first = Q[0][0].topk(2).indices
    tokens = torch.cat((torch.tensor([-1]), first, Q[1][first].topk(2).indices.flatten()))
    device = rng["seed"].device
    return SHAPE.to(device), tokens.to(device).expand(len(rng["seed"]), -1)


def tree_law(sk, device, seed, method, drafted, steps):
    """Chi-square of the first three tokens against the target's joint law."""
    counts = {}
    for start in range(0, steps, 50_000):
        seeds = torch.arange(start, min(start + 50_000, steps), device=device) + seed
        rng = dict(seed=seeds, offset=seeds % 977)
        tree = drafted(sk, rng)
        parents, tokens = (x.expand(len(seeds), -1) for x in tree[:2])
        depth = sk.tree_mask(parents).depth.long()
        at = depth * V + tokens.clamp(min=0)  # the rows of all levels in one table
        p, q = torch.cat(P).to(device), torch.cat(Q + [torch.zeros(V, V)]).to(device)
        out = sk.verify_tree(tree, p[at], q[at], method=method, max_depth=L, **rng).tokens
        later = dict(rng, offset=rng["offset"] + 1000)
        for i in (1, 2):  # what the step did not reach, the target draws itself
            own = draws(sk, P[i], out[:, i - 1 : i], slot=i, **later)[:, 0, 0]
            out[:, i] = torch.where(out[:, i] < 0, own, out[:, i])
        for row, n in outcomes(out).items():
            counts[row] = counts.get(row, 0) + n
    p = [x.double().softmax(-1).tolist() for x in P]
    return chi_square(
        counts, {(a, b, c): p[0][0][a] * p[1][a][b] * p[2][b][c] for a in range(V) for b in range(V) for c in range(V)}
    )


def check_of(method, drafted):
    def check(sk, device, seed):
        return law_row(f"joint law, {method}", tree_law(sk, device, seed, method, drafted, TREE_STEPS))

    check.__name__ = f"joint_law_of_{method}"
    return check


def agreement_of_trees(sk, device, seed):
    """All methods and the float64 reference, uniforms given: equal tokens and paths wherever rounding cannot decide."""
    generator = torch.Generator().manual_seed(seed)
    requests = wrong = close = 0
    for method, known in TREE_METHODS.items():
        B, wide = 40, 60
        p, q = (2 * torch.randn(B, K * L + 1, wide, generator=generator) for _ in range(2))
        tree = sk.reference.build_tree(q[:, 0].softmax(-1).multinomial(K * L, True, generator=generator).view(B, K, L))
        columns = K * L + (not known.tests_drafts)
        args = dict(method=method, uniforms=torch.rand(B, columns + 1, generator=generator, dtype=torch.float64))
        ref = sk.reference.verify_tree(tree, p, q, **args)
        out = sk.verify_tree(
            tuple(x.to(device) for x in tree),
            p.to(device),
            q.to(device),
            method=method,
            uniforms=args["uniforms"].to(device),
        )
        differs = (
            (out.tokens.cpu() != ref.tokens).any(-1)
            | (out.path.cpu() != ref.path).any(-1)
            | (out.status.cpu() != ref.status)
        )
        requests, wrong, close = (
            requests + B,
            wrong + int((differs & (ref.margin > 1)).sum()),
            close + int((ref.margin <= 1).sum()),
        )
    statistic = f"{wrong} of {requests} trees differ ({close} too close to call)"
    return Row(
        "float64 reference, trees",
        "a wrong token, path or status in one tree",
        statistic,
        wrong == 0 and close < requests / 10,
    )


def control_of_trees(sk, device, seed):
    """The same chi-square must notice distinct children that are verified as independent ones."""
    result = tree_law(sk, device, seed, "recursive", distinct, TREE_STEPS // 5)
    statistic = f"chi-square {result.statistic:.1f}, p = {result.p_value:.2g}"
    return Row(
        "control: a tree verified by another's rule", "a test that cannot fail", statistic, result.p_value < P_VALUE
    )


TREE_CHECKS = (
    agreement_of_trees,
    check_of("kseq", independent),
    check_of("recursive", independent),
    check_of("recursive_without_replacement", distinct),
    check_of("traversal", distinct),
    check_of("target_only", likeliest),
    control_of_trees,
)
