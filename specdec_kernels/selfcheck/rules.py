# SPDX-License-Identifier: Apache-2.0
"""Checks of rules and block verification: tokens drafted and verified by the ops follow the rule's distribution."""

from functools import partial

import torch
from torch.utils._pytree import tree_map_only

from ..registry import CHAIN_METHODS, INF, RULES
from ..rows import Rows
from ..testing import check_law
from .statistics import Agreement, Check, does_not_follow, follows
from .trees import P, Q, draws, row_after, rows, seeds

RULE_STEPS = 250_000
Q_ROWS = [*Q, rows(6)]  # the last is for the bonus position


def chain_law_of(sk, device, seed, method, rule, alpha, steps, claimed=None):
    """Return the chi-square of tokens emitted by steps of two drafts against the rule's distribution.

    The draft scores the bonus position too. claimed: the alpha passed to the op, by default `alpha`.
    """

    def draw(seeds):
        seeds = seeds.to(device)
        tokens, rng = torch.zeros(len(seeds), 1, dtype=torch.int64, device=device), dict(seed=seeds, offset=seeds % 977)
        for i in (0, 1):
            tokens = torch.cat((tokens, draws(sk, Q_ROWS[i], tokens[:, -1:], slot=i, **rng)[:, :, 0]), 1)
        p, q = (torch.stack([x.to(device)[tokens[:, i]] for i, x in enumerate(side)], 1) for side in (P, Q_ROWS))
        told = alpha if claimed is None else claimed
        return sk.verify_chain(p, tokens[:, 1:], q, method=method, rule=rule, alpha=told, **rng).tokens

    p, q = row_after(P), row_after(Q_ROWS)
    law = sk.reference.chain_law(p, q, 2, method=method, rule=rule, alpha=alpha, end_row=True)
    return check_law(draw, law, steps, batch=RULE_STEPS, seed=seed)


def joint_law(sk, device, seed, method, rule, alpha=None):
    return follows(chain_law_of(sk, device, seed, method, rule, alpha, RULE_STEPS))


def steps_by_rule(generator, names, B, G, V):
    """Return the arguments of requests that use the rules in turn, with random parameters; some are greedy."""
    p = 3 * torch.randn(B, G + 1, V, generator=generator, dtype=torch.float32, device="cpu")
    q = p + 0.8 * torch.randn(B, G + 1, V, generator=generator, dtype=torch.float32, device="cpu")
    drafts = q[:, :G].reshape(-1, V).softmax(-1).multinomial(1, generator=generator).view(B, G)
    rule = torch.tensor([RULES[name].code for name in names], dtype=torch.int64, device="cpu").repeat(
        -(-B // len(names))
    )[:B]
    alpha = 0.05 + 0.9 * torch.rand(B, 2, generator=generator, dtype=torch.float32, device="cpu")
    for name in names:  # unbounded parameters (bounds on entropies or counts, factors of TV) get larger values
        for parameter in RULES[name].parameters[:1]:
            if parameter.high == INF:
                alpha[rule == RULES[name].code, 0] = parameter.low + 2 * alpha[rule == RULES[name].code, 0]
    heat = torch.tensor([1.0, 0.7, 1.4, 0.0], dtype=torch.float32, device="cpu")
    target = Rows(p, temperature=heat[torch.randint(4, (B,), generator=generator, device="cpu")])
    return dict(target=target, draft_tokens=drafts, draft=q, rule=rule, alpha=alpha,
                uniforms=torch.rand(B, G + 1, generator=generator, dtype=torch.float64, device="cpu"))  # fmt: skip


def agreement(sk, device, seed):
    """Check all rules, block verification with all rules that define a distribution, and the race, by the reference."""
    generator, found = torch.Generator().manual_seed(seed), Agreement("tokens", "status")
    for method, (_, names, _) in CHAIN_METHODS.items():
        for each, G, V in ((10, 3, 40), (3, 2, 1030)):
            args = steps_by_rule(generator, names, each * len(names), G, V)
            if method == "race":
                args |= {"uniforms": None, **seeds(generator, len(args["draft_tokens"]))}
            ref = sk.reference.banded.verify_chain(**args, method=method)
            args = tree_map_only(torch.Tensor, lambda x: x.to(device), args)
            found.add(sk.verify_chain(**args, method=method), ref)
    return found.finding("request")


def control(sk, device, seed):
    """Control: a rule run with another alpha must be noticed."""
    return does_not_follow(chain_law_of(sk, device, seed, "block", "lossy", 0.3, RULE_STEPS // 5, claimed=0.4))


RULE_CHECKS: dict[str, Check] = {
    f"float64 reference, {len(RULES)} rules and blocks": agreement,
    "joint distribution, block": partial(joint_law, method="block", rule="exact"),
    "joint distribution, block by token_v3": partial(joint_law, method="block", rule="token_v3", alpha=0.5),
    "joint distribution, lossy": partial(joint_law, method="token", rule="lossy", alpha=0.3),
    "control: another alpha": control,
}
