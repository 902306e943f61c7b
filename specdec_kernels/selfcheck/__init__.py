# SPDX-License-Identifier: Apache-2.0
"""Do the ops installed on this machine draw from the right law? `python -m specdec_kernels selfcheck` finds out in
under a minute."""

import secrets
import time

import torch

from .chi_square import P_VALUE, Row, chi_square, law_row, outcomes
from .rules import RULE_CHECKS
from .trees import TREE_CHECKS

STEPS = 1_000_000


def known_answers(sk, device, seed):
    """Random123's vector for counter 0 and key 0, and the layout (block, offset low, offset high, domain), (seed low,
    high)."""
    known = [  # seed, offset, slot, the two words
        (0, 0, 0, (0x6627E8D5, 0xE169C58D)),
        (1234, 7 << 32, 0, (0x56E604F4, 0x2107ACFD)),
        (1234, 7 << 32, 2, (0x324CBEBA, 0xACBA3CF8)),
        (1234, 7 << 32 | 1, 1, (0x3FE250AE, 0x588DB555)),
    ]
    right = 0
    for key, offset, slot, (high, low) in known:
        got = sk.uniforms(torch.tensor([key], device=device), torch.tensor([offset], device=device), slot + 1, 0)[
            0, slot
        ].item()
        right += got == ((high << 32 | low) >> 11) * 2.0**-53
    return Row(
        "random numbers", "any wrong bit of Philox", f"{right} of {len(known)} known answers", right == len(known)
    )


def random_steps(generator, B, G, V, dtype):
    p = 2 * torch.randn(B, G + 1, V, generator=generator)
    p[::5] *= 4
    q = p[:, :G] + 0.7 * torch.randn(B, G, V, generator=generator)
    choose = lambda *values: torch.tensor(values)[torch.randint(len(values), (B,), generator=generator)]  # noqa: E731
    target = {
        "temperature": choose(0.0, 0.7, 1.0, 1.5),
        "top_k": choose(0, 3, 8, 20),
        "top_p": choose(1.0, 0.9),
        "min_p": choose(0.0, 0.05),
    }
    draft = {
        "temperature": choose(0.5, 1.0, 1.2),
        "top_k": choose(0, 20),
        "top_p": choose(1.0, 0.95),
        "min_p": choose(0.0, 0.02),
    }
    return p.to(dtype), q.to(dtype), target, draft


def agreement(sk, device, seed):
    """The ops and the float64 reference, uniforms given: equal tokens wherever rounding cannot decide."""
    generator = torch.Generator().manual_seed(seed)
    requests = wrong = close = 0
    for B, G, V, dtype in ((160, 4, 50, torch.float32), (80, 3, 1025, torch.bfloat16), (60, 2, 3000, torch.float16)):
        p, q, target, draft = random_steps(generator, B, G, V, dtype)
        drawn = sk.reference.sample(
            q.flatten(0, 1),
            uniforms=torch.rand(B * G, 1, generator=generator, dtype=torch.float64),
            **{name: x.repeat_interleave(G) for name, x in draft.items()},
        )
        args = {
            "target_logits": p,
            "draft_tokens": drawn.tokens.reshape(B, G),
            "draft_logits": q,
            **target,
            **{"draft_" + name: x for name, x in draft.items()},
            "uniforms": torch.rand(B, G + 1, generator=generator, dtype=torch.float64),
        }
        ref = sk.reference.verify_chain(**args)
        out = sk.verify_chain(**{name: x.to(device) for name, x in args.items()})
        differs = (out.tokens.cpu() != ref.tokens).any(-1) | (out.status.cpu() != ref.status)
        requests, wrong, close = (
            requests + B,
            wrong + int((differs & (ref.margin > 1)).sum()),
            close + int((ref.margin <= 1).sum()),
        )
    statistic = f"{wrong} of {requests} requests differ ({close} too close to call)"
    return Row(
        "float64 reference", "a wrong token or status in one request", statistic, wrong == 0 and close < requests / 10
    )


def draw_steps(sk, device, seed, steps, p, q, target, draft, claimed):
    """Drafting and verification from seeds of their own -> [steps, G+1] tokens."""
    G, rows = len(p) - 1, []
    for start in range(0, steps, 250_000):
        seeds = torch.arange(start, min(start + 250_000, steps), device=device) + seed
        offsets = seeds % 977
        B = len(seeds)
        drafts = [sk.sample(q[i].expand(B, -1), seed=seeds, offset=offsets, slot=i, **draft).tokens for i in range(G)]
        out = sk.verify_chain(
            p.expand(B, -1, -1),
            torch.cat(drafts, 1),
            q.expand(B, -1, -1),
            seed=seeds,
            offset=offsets,
            **target,
            **{"draft_" + name: x for name, x in claimed.items()},
        )
        rows.append(out.tokens)
    return torch.cat(rows)


def law_rows(sk, logits, params):
    from ..reference.law import law_of_logits

    stats = sk.reference.row_stats(logits, **params).tolist()
    return [law_of_logits(z, s).p for z, s in zip(logits.double().numpy(), stats)]


def joint_law(sk, device, seed, target, draft, claimed=None, steps=STEPS):
    generator = torch.Generator().manual_seed(5)
    p, q = 1.5 * torch.randn(3, 8, generator=generator), 1.5 * torch.randn(2, 8, generator=generator)
    P, Q = law_rows(sk, p, target), law_rows(sk, q, draft)
    law = sk.reference.chain_law(lambda prefix: P[len(prefix)], lambda prefix: Q[len(prefix)], 2)
    rows = draw_steps(
        sk, device, seed, steps, p.to(device), q.to(device), target, draft, draft if claimed is None else claimed
    )
    return chi_square(outcomes(rows), law)


def plain_law(sk, device, seed):
    return law_row("joint law, T = 1", joint_law(sk, device, seed, {}, {}))


def filtered_law(sk, device, seed):
    target, draft = {"temperature": 1.3, "top_p": 0.95}, {"temperature": 0.8, "top_k": 6}
    return law_row("joint law, temperature, top-k, top-p", joint_law(sk, device, seed + STEPS, target, draft))


def without_replacement(sk, device, seed):
    z = torch.tensor([0.35, 0.3, 0.2, 0.1, 0.05]).log()
    (p,) = law_rows(sk, z[None], {})
    law = {(a, b): p[a] * p[b] / (1 - p[a]) for a in range(5) for b in range(5) if a != b}
    seeds = torch.arange(STEPS // 2, device=device) + seed + 2 * STEPS
    drawn = sk.sample(z.to(device).expand(len(seeds), -1), k=2, replacement=False, seed=seeds, offset=seeds % 13).tokens
    return law_row("joint law, draws without replacement", chi_square(outcomes(drawn), law))


def invariance(sk, device, seed):
    generator = torch.Generator().manual_seed(seed)
    p, q, target, draft = random_steps(generator, 64, 4, 2500, torch.bfloat16)
    args = {
        "target_logits": p,
        "draft_tokens": q.argmax(-1),
        "draft_logits": q,
        **target,
        **{"draft_" + k: x for k, x in draft.items()},
        "seed": torch.arange(64) + seed,
        "offset": torch.arange(64),
    }
    args = {name: x.to(device) for name, x in args.items()}
    whole = sk.verify_chain(**args).tokens
    back = sk.verify_chain(**{name: x.flip(0) for name, x in args.items()}).tokens.flip(0)
    alone = torch.cat([sk.verify_chain(**{name: x[i : i + 1] for name, x in args.items()}).tokens for i in range(64)])
    same = int(((whole == back) & (whole == alone)).all(-1).sum())
    return Row(
        "alone, in a batch, reversed", "a request that depends on its batch", f"{same} of 64 requests equal", same == 64
    )


def control(sk, device, seed):
    """The same chi-square must notice a draft that was drawn at T = 1 and is declared as T = 0.9."""
    result = joint_law(sk, device, seed + 3 * STEPS, {}, {}, {"temperature": 0.9}, STEPS // 4)
    statistic = f"chi-square {result.statistic:.1f}, p = {result.p_value:.2g}"
    return Row("control: a draft law misdeclared", "a test that cannot fail", statistic, result.p_value < P_VALUE)


CHECKS = (
    known_answers,
    agreement,
    plain_law,
    filtered_law,
    without_replacement,
    invariance,
    *TREE_CHECKS,
    *RULE_CHECKS,
    control,
)


def run(console=None, seed=None) -> bool:
    """Check every backend found; print a table and a verdict. True if all passed. The seed is fresh unless given."""
    from rich.console import Console
    from rich.table import Table

    import specdec_kernels as sk

    console = Console() if console is None else console
    seed = secrets.randbits(40) if seed is None else seed
    started, failed = time.perf_counter(), []
    for backend in sk.backends.available():
        device = "cpu" if backend == "cpu" else "cuda"
        name = f"{backend} ({sk.backends.cpu_isa()})" if backend == "cpu" else backend
        table = Table(title=f"specdec_kernels {sk.__version__} on {name}, seed {seed}")
        for heading in ("check", "it would find", "statistic", "verdict"):
            table.add_column(heading)
        with console.status("") as status:
            for i, check in enumerate(CHECKS):
                status.update(f"{name}: check {i + 1} of {len(CHECKS)}, {check.__name__.replace('_', ' ')}")
                row = check(sk, device, seed)
                table.add_row(*row[:3], "[green]pass[/green]" if row.passed else "[bold red]FAIL[/bold red]")
                failed += [] if row.passed else [f"{row.check} on {name}"]
        console.print(table)
    seconds = time.perf_counter() - started
    if failed:
        console.print(
            f"[bold red]FAILED[/bold red] after {seconds:.0f} s, with seed {seed}: {'; '.join(failed)}. Do not trust these ops here."
        )
    else:
        verdict = "what these ops emit follows the target's law (right ops fail this less than once in 100,000 runs)."
        console.print(f"[bold green]PASSED[/bold green] in {seconds:.0f} s: {verdict}")
    return not failed
