# SPDX-License-Identifier: Apache-2.0
"""Checks of random numbers, sampling and chains: tokens drafted and verified by the ops follow the target."""

import torch
from torch.utils._pytree import tree_map_only

from ..registry import DOMAIN_ACCEPT
from ..rows import Rows
from ..testing import check_law
from .statistics import Agreement, Check, Finding, does_not_follow, follows

STEPS = 1_000_000


def known_answers(sk, device, seed):
    """Check Philox against known answers.

    They are Random123's vector for counter 0 and key 0, and vectors for the layout of the counter (block, offset low,
    offset high, domain) and the key (seed low, seed high).
    """
    known = [  # seed, offset, slot, the two words
        (0, 0, 0, (0x6627E8D5, 0xE169C58D)),
        (1234, 7 << 32, 0, (0x56E604F4, 0x2107ACFD)),
        (1234, 7 << 32, 2, (0x324CBEBA, 0xACBA3CF8)),
        (1234, 7 << 32 | 1, 1, (0x3FE250AE, 0x588DB555)),
    ]
    right = 0
    for key, offset, slot, (high, low) in known:
        key, offset = (torch.tensor([x], device=device, dtype=torch.int64) for x in (key, offset))
        got = sk.uniforms(key, offset, slot + 1, DOMAIN_ACCEPT)[0, slot].item()
        right += got == ((high << 32 | low) >> 11) * 2.0**-53
    return Finding(
        "would detect any wrong bit of Philox", f"{right} of {len(known)} known answers", right == len(known)
    )


def random_steps(generator, B, G, V, dtype):
    p = 2 * torch.randn(B, G + 1, V, generator=generator, dtype=torch.float32, device="cpu")
    p[::5] *= 4
    q = p[:, :G] + 0.7 * torch.randn(B, G, V, generator=generator, dtype=torch.float32, device="cpu")

    def choose(*values):
        kind = torch.float32 if isinstance(values[0], float) else torch.int64
        some = torch.randint(len(values), (B,), generator=generator, device="cpu")
        return torch.tensor(values, dtype=kind, device="cpu")[some]

    target = {
        "temperature": choose(0.0, 0.7, 1.0, 1.5),
        "top_k": choose(0, 3, 8, 20),
        "top_p": choose(1.0, 0.9),
        "min_p": choose(0.0, 0.05),
        "top_n_sigma": choose(0.0, 1.5),
    }
    draft = {
        "temperature": choose(0.5, 1.0, 1.2),
        "top_k": choose(0, 20),
        "top_p": choose(1.0, 0.95),
        "min_p": choose(0.0, 0.02),
        "top_n_sigma": choose(0.0, 2.0),
    }
    return p.to(dtype), q.to(dtype), target, draft


def agreement(sk, device, seed):
    generator, found = torch.Generator().manual_seed(seed), Agreement("tokens", "status")
    for B, G, V, dtype in ((160, 4, 50, torch.float32), (80, 3, 1025, torch.bfloat16), (60, 2, 3000, torch.float16)):
        p, q, target, draft = random_steps(generator, B, G, V, dtype)
        drawn = sk.reference.sample(
            Rows(q.flatten(0, 1), **{name: x.repeat_interleave(G) for name, x in draft.items()}),
            uniforms=torch.rand(B * G, 1, generator=generator, dtype=torch.float64, device="cpu"),
        )
        args = step_of(p, drawn.tokens.reshape(B, G), q, target, draft)
        args["uniforms"] = torch.rand(B, G + 1, generator=generator, dtype=torch.float64, device="cpu")
        ref = sk.reference.banded.verify_chain(**args)
        found.add(sk.verify_chain(**tree_map_only(torch.Tensor, lambda x: x.to(device), args)), ref)
    return found.finding("request")


def step_of(p, tokens, q, target, draft) -> dict:
    """Return verify_chain's arguments. target, draft: sampling parameters."""
    return dict(target=Rows(p, **target), draft_tokens=tokens, draft=Rows(q, **draft))


def emitted(sk, device, seeds, p, q, target, draft, claimed):
    """Draft and verify one step for each seed -> tokens [steps, G+1]."""
    seeds = seeds.to(device)
    offsets, B = seeds % 977, len(seeds)
    drawn_from = [Rows(z.expand(B, -1), **draft) for z in q]
    drafts = [sk.sample(z, seed=seeds, offset=offsets, slot=i).tokens for i, z in enumerate(drawn_from)]
    args = step_of(p.expand(B, -1, -1), torch.cat(drafts, 1), q.expand(B, -1, -1), target, claimed)
    return sk.verify_chain(**args, seed=seeds, offset=offsets).tokens


def law_rows(sk, logits, params):
    from ..reference.law import law_of_logits

    stats = sk.reference.row_stats(Rows(logits, **params)).tolist()
    return [law_of_logits(z, s).p for z, s in zip(logits.double().numpy(), stats)]


def joint_law(sk, device, seed, target, draft, claimed=None, steps=None):
    generator = torch.Generator().manual_seed(5)
    p, q = (
        1.5 * torch.randn(3, 8, generator=generator, dtype=torch.float32, device="cpu"),
        1.5 * torch.randn(2, 8, generator=generator, dtype=torch.float32, device="cpu"),
    )
    P, Q = law_rows(sk, p, target), law_rows(sk, q, draft)
    law = sk.reference.chain_law(lambda prefix: P[len(prefix)], lambda prefix: Q[len(prefix)], 2)
    p, q = p.to(device), q.to(device)
    args = p, q, target, draft, draft if claimed is None else claimed
    return check_law(lambda x: emitted(sk, device, x, *args), law, steps or STEPS, batch=250_000, seed=seed)


def plain_law(sk, device, seed):
    return follows(joint_law(sk, device, seed, {}, {}))


def filtered_law(sk, device, seed):
    target, draft = {"temperature": 1.3, "top_p": 0.95}, {"temperature": 0.8, "top_k": 6}
    return follows(joint_law(sk, device, seed + STEPS, target, draft))


def without_replacement(sk, device, seed):
    z = torch.tensor([0.35, 0.3, 0.2, 0.1, 0.05], dtype=torch.float32, device="cpu").log()
    (p,) = law_rows(sk, z[None], {})
    law = {(a, b): p[a] * p[b] / (1 - p[a]) for a in range(5) for b in range(5) if a != b}

    def draw(seeds):
        rng = dict(seed=seeds.to(device), offset=seeds.to(device) % 13)
        return sk.sample(z.to(device).expand(len(seeds), -1), k=2, replacement=False, **rng).tokens

    return follows(check_law(draw, law, STEPS // 2, batch=250_000, seed=seed + 2 * STEPS))


def invariance(sk, device, seed):
    generator = torch.Generator().manual_seed(seed)
    p, q, target, draft = random_steps(generator, 64, 4, 2500, torch.bfloat16)
    args = step_of(p, q.argmax(-1), q, target, draft)
    args |= dict(seed=torch.arange(64, device="cpu") + seed, offset=torch.arange(64, device="cpu"))
    args = tree_map_only(torch.Tensor, lambda x: x.to(device), args)

    def tokens(change):
        return sk.verify_chain(**tree_map_only(torch.Tensor, change, args)).tokens

    whole, back = tokens(lambda x: x), tokens(lambda x: x.flip(0)).flip(0)
    alone = torch.cat([tokens(lambda x, i=i: x[i : i + 1]) for i in range(64)])
    same = int(((whole == back) & (whole == alone)).all(-1).sum())
    return Finding("would detect a request that depends on its batch", f"{same} of 64 requests equal", same == 64)


def control(sk, device, seed):
    """Control: drafts drawn at T = 1 but declared as T = 0.9 must be noticed."""
    return does_not_follow(joint_law(sk, device, seed + 3 * STEPS, {}, {}, {"temperature": 0.9}, STEPS // 4))


CHAIN_CHECKS: dict[str, Check] = {
    "random numbers": known_answers,
    "float64 reference": agreement,
    "joint distribution, T = 1": plain_law,
    "joint distribution, temperature, top-k, top-p": filtered_law,
    "joint distribution, draws without replacement": without_replacement,
    "alone, in a batch, reversed": invariance,
    "control: a misdeclared draft temperature": control,
}
