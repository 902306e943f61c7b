# SPDX-License-Identifier: Apache-2.0
"""selfcheck's part on rules and blocks: drafted and verified by the ops, the law that of the rule."""

import torch

from ..rules import INF, LAWS, TABLE
from .chi_square import P_VALUE, Row, chi_square, law_row, outcomes
from .trees import P, Q, draws, rows

RULE_STEPS = 250_000
Q_ROWS = [*Q, rows(6)]  # of the bonus position too


def chain_law_of(sk, device, seed, method, rule, alpha, steps, claimed=None):
    """Chi-square of what steps of two drafts emit against the law of the rule, the bonus scored by the draft. claimed:
    the alpha that the op is told."""
    seeds = torch.arange(steps, device=device) + seed
    rng = dict(seed=seeds, offset=seeds % 977)
    tokens = torch.zeros(steps, 1, dtype=torch.int64, device=device)
    for i in (0, 1):
        tokens = torch.cat((tokens, draws(sk, Q_ROWS[i], tokens[:, -1:], slot=i, **rng)[:, :, 0]), 1)
    p, q = (torch.stack([table.to(device)[tokens[:, i]] for i, table in enumerate(side)], 1) for side in (P, Q_ROWS))
    out = sk.verify_chain(
        p, tokens[:, 1:], q, method=method, rule=rule, alpha=alpha if claimed is None else claimed, **rng
    )
    p, q = ([table.double().softmax(-1).numpy() for table in side] for side in (P, Q_ROWS))
    law = sk.reference.chain_law(lambda t: p[len(t)][t[-1] if t else 0], lambda t: q[len(t)][t[-1] if t else 0], 2,
                                 method=method, rule=rule, alpha=alpha, end_row=True)  # fmt: skip
    return chi_square(outcomes(out.tokens), law)


def check_of(title, method, rule, alpha=None):
    def check(sk, device, seed):
        return law_row(f"joint law, {title}", chain_law_of(sk, device, seed, method, rule, alpha, RULE_STEPS))

    check.__name__ = f"joint_law_of_{method}_{rule}"
    return check


def steps_by_rule(generator, names, B, G, V):
    """Requests that take turns in the rules, each with parameters of its own, some of them greedy."""
    p = 3 * torch.randn(B, G + 1, V, generator=generator)
    q = p + 0.8 * torch.randn(B, G + 1, V, generator=generator)
    drafts = q[:, :G].reshape(-1, V).softmax(-1).multinomial(1, generator=generator).view(B, G)
    rule = torch.tensor([TABLE[name].code for name in names]).repeat(-(-B // len(names)))[:B]
    alpha = 0.05 + 0.9 * torch.rand(B, 2, generator=generator)
    for name in names:  # without a bound entropies decide, or how many ids are more probable
        for parameter in TABLE[name].parameters[:1]:
            if parameter.high == INF:
                alpha[rule == TABLE[name].code, 0] = parameter.low + 2 * alpha[rule == TABLE[name].code, 0]
    return dict(target_logits=p, draft_tokens=drafts, draft_logits=q, rule=rule, alpha=alpha,
                temperature=torch.tensor([1.0, 0.7, 1.4, 0.0])[torch.randint(4, (B,), generator=generator)],
                uniforms=torch.rand(B, G + 1, generator=generator, dtype=torch.float64))  # fmt: skip


def agreement_of_rules(sk, device, seed):
    """All rules, and all laws as a block, beside the float64 reference, uniforms given: equal tokens wherever rounding
    cannot decide."""
    generator = torch.Generator().manual_seed(seed)
    requests = wrong = close = 0
    for method, names in (("token", [*TABLE]), ("block", LAWS)):
        for each, G, V in ((10, 3, 40), (3, 2, 1030)):
            args = steps_by_rule(generator, names, each * len(names), G, V)
            ref = sk.reference.verify_chain(**args, method=method)
            out = sk.verify_chain(**{name: x.to(device) for name, x in args.items()}, method=method)
            differs = (out.tokens.cpu() != ref.tokens).any(-1) | (out.status.cpu() != ref.status)
            requests, close = requests + len(differs), close + int((ref.margin <= 1).sum())
            wrong += int((differs & (ref.margin > 1)).sum())
    statistic = f"{wrong} of {requests} requests differ ({close} too close to call)"
    return Row(
        f"float64 reference, {len(TABLE)} rules and blocks",
        "a wrong token or status in one request",
        statistic,
        wrong == 0 and close < requests / 10,
    )


def control_of_rules(sk, device, seed):
    """The same chi-square must notice a rule whose alpha is another."""
    result = chain_law_of(sk, device, seed, "block", "lossy", 0.3, RULE_STEPS // 5, claimed=0.4)
    statistic = f"chi-square {result.statistic:.1f}, p = {result.p_value:.2g}"
    return Row("control: another alpha", "a test that cannot fail", statistic, result.p_value < P_VALUE)


RULE_CHECKS = (
    agreement_of_rules,
    check_of("block", "block", "exact"),
    check_of("block by token_v3", "block", "token_v3", 0.5),
    check_of("lossy", "token", "lossy", 0.3),
    control_of_rules,
)
