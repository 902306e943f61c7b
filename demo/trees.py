# SPDX-License-Identifier: Apache-2.0
"""Measure the gain from trees of K drafts of length L on the demo's models.

It measures tokens per target call of a chain and of five methods for several K and L. It also measures the acceptance
of K drafts at one node on the same rows, by four of the methods, beside the optimum.

    python -m demo.trees                   # about an hour of one core in all; finished parts are kept in trees.json
    python -m demo.trees --seconds 500     # begin no part after 500 s; the next call goes on
    python -m demo.trees --seconds 0       # only show what was measured: the table, and the picture (matplotlib)

HumanEval prompts, temperature 1, SmolLM2-135M-Instruct and the demo's draft. Intervals are 95% confidence intervals
from resampling prompts, which are the independent units. A chain is the loop's ordinary draft of length L.
"""

import numpy as np
import torch
from rich import box
from rich.table import Table

import specdec_kernels as sk
from demo.parts import arguments, run
from demo.prompts import humaneval
from demo.reader import Reader
from specdec_kernels import decode, theory

METHODS = "kseq", "recursive", "recursive_without_replacement", "traversal", "target_only"
KS, LS = (1, 2, 4, 8), (1, 2, 4, 6)
FIELDS = "new_tokens", "rows", "accepted", "tested", "drafted"


def settings():
    """Yield (method, K, L) in order of importance.

    With K = 1 kseq, recursive and recursive_without_replacement are the chain, so they are left out.
    """
    yield from [("chain", 1, 4), *((m, 4, 4) for m in METHODS)]
    for L in LS:
        yield from [("chain", 1, L), *((m, 4, L) for m in METHODS)]
    for K in KS[1:]:
        yield from ((m, K, 4) for m in METHODS)
    yield from [("traversal", 1, 4), ("target_only", 1, 4)]


def key(method, K, L):
    return f"{method} K={K} L={L}"


def drafter_of(pair, method, K, L):
    return decode.ModelDrafter(pair.draft, L) if method == "chain" else decode.TreeDrafter(pair.draft, method, K, L)


def decoded(pair, prompts, tokens, batch, method, K, L) -> list[list[int]]:
    """Decode the prompts in one setting -> the counts of each prompt, as named by FIELDS."""
    requests = [decode.Request(p, tokens, 1.0, seed=i, eos=pair.eos) for i, p in enumerate(prompts)]
    output = decode.generate(pair.target, requests, drafter_of(pair, method, K, L), max_batch=batch).check()
    assert output.stats.status == 0, output.stats.status
    return [[int(getattr(r.stats, name)) for name in FIELDS] for r in output.results]


@torch.inference_mode()
def row_acceptance(pair, prompts, positions, draws=16) -> dict:
    """Return the chance that one of K drafts at one node is accepted: {rule: {K: [mean of each prompt]}}.

    The mean is over positions of text that the target wrote. The chance is computed by a closed form if there is one.
    For drafts without replacement it is estimated: they are drawn and verified `draws` times per position.
    """
    found = {}
    for prompt in prompts:
        read, tokens, start, rows = Reader(pair, len(prompt) + positions), prompt, 0, []
        for _ in range(positions):
            z, y = read(tokens, start, keep=[len(tokens) - 1])
            rows.append((z[0], y[0]))
            start += len(tokens)
            rng = dict(seed=torch.tensor([len(prompt)]), offset=torch.tensor([start]))
            tokens = sk.sample(z, **rng).tokens[:, 0].tolist()
        z, y = (torch.stack(x) for x in zip(*rows))
        for rule, values in one_prompt(z, y, draws).items():
            for K, value in zip(KS, values):
                found.setdefault(rule, {}).setdefault(str(K), []).append(round(value, 5))
    return found


def one_prompt(z, y, draws):
    p, q = z.double().softmax(-1), y.double().softmax(-1)
    top = p.gather(1, y.topk(max(KS)).indices)
    return {
        "optimum": [theory.optimal_acceptance(p, q, K).mean().item() for K in KS],
        "kseq": [sk.kseq_rho(z, y, K).p_acc.mean().item() for K in KS],
        "recursive": [theory.multi_draft_acceptance(p, q, K, "recursive").mean().item() for K in KS],
        "recursive_without_replacement": [without_replacement(z, y, K, draws) for K in KS],
        "target_only": [top[:, :K].sum(1).mean().item() for K in KS],
    }


def without_replacement(z, y, K, draws):
    n = len(z) * draws
    rng = dict(seed=torch.arange(n), offset=torch.zeros(n, dtype=torch.int64))
    z, y = (x.repeat_interleave(draws, 0) for x in (z, y))
    tokens = torch.cat((torch.full((n, 1), -1), sk.sample(y, k=K, replacement=False, **rng).tokens), 1)
    parents = torch.tensor([-1] + [0] * K)
    row = torch.zeros(n, K + 1, dtype=torch.int64)
    one = dict(method="recursive_without_replacement", max_depth=1, **rng)
    # Only the root's drafts are tested, so the children's own rows are not needed. The root's row stands in for them,
    # and the token that is drawn from it after an accepted child is dropped.
    target, draft = (sk.Rows(x[:, None], row=row) for x in (z, y))
    return sk.verify_tree((parents.expand(n, -1), tokens), target, draft, **one).num_accepted.double().mean().item()


def interval(counts, numerator, denominator, resamples=4000, fields=FIELDS):
    """Return a ratio of sums over prompts and its 95% confidence interval, from resampling prompts."""
    x = np.array(counts, dtype=float)
    a, b = x[:, fields.index(numerator)], x[:, fields.index(denominator)]
    drawn = np.random.default_rng(0).integers(0, len(x), (resamples, len(x)))
    low, high = np.quantile(a[drawn].sum(1) / b[drawn].sum(1), (0.025, 0.975))
    return a.sum() / b.sum(), low, high


def mean_interval(values, resamples=4000):
    x = np.array(values)
    drawn = np.random.default_rng(0).integers(0, len(x), (resamples, len(x)))
    return x.mean(), *np.quantile(x[drawn].mean(1), (0.025, 0.975))


def columns(counts) -> list[str]:
    """Return a row of the table: tokens per call with their interval, accepted length, acceptance, nodes scored."""
    rate = "{:.2f} ({:.2f}-{:.2f})".format(*interval(counts, "new_tokens", "rows"))
    length, level, drafted = (
        interval(counts, *pair)[0] for pair in (("accepted", "rows"), ("accepted", "tested"), ("drafted", "rows"))
    )
    return [rate, f"{length:.2f}", f"{level:.2f}", f"{1 + drafted:.1f}"]


def show(console, data):
    table = Table(title="temperature 1, 95% intervals", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in (
        "method",
        "K",
        "L",
        "tokens per\ntarget call",
        "accepted\nlength",
        "acceptance\nat a node",
        "nodes\nscored",
        "prompts",
    ):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for method, K, L in dict.fromkeys(settings()):
        counts = data["decode"].get(key(method, K, L))
        if counts:
            table.add_row(method, str(K), str(L), *columns(counts), str(len(counts)))
    console.print(table)
    if data["rows"]:
        table = Table(
            title="one of K drafts at a node is accepted, same rows",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        table.add_column("")
        for K in KS:
            table.add_column(f"K = {K}", justify="right", no_wrap=True)
        for rule, found in data["rows"].items():
            table.add_row(rule, *("{:.3f}\n({:.3f}-{:.3f})".format(*mean_interval(found[str(K)])) for K in KS))
        console.print(table)


def curve(axis, method, xs, points):
    """Plot a method. points: (value, low, high) at each of xs."""
    colours = dict(zip(("chain", *METHODS, "optimum"), ("0.4", "C0", "C1", "C2", "C4", "C5", "k")))
    value, low, high = np.array(points).T
    label, line = ("optimum of i.i.d. drafts", "--") if method == "optimum" else (method, "-")
    style = dict(color=colours[method], marker="o", ms=3, lw=1.3, capsize=2, ls=line)
    axis.errorbar(xs, value, (value - low, high - value), label=label, **style)


def rates(data, method, settings) -> tuple[list, list]:
    """Return the measured settings (K, L) and their tokens per target call. In some methods K = 1 is the chain."""
    chain = METHODS[:3]
    names = {kl: key("chain", 1, kl[1]) if kl[0] == 1 and method in chain else key(method, *kl) for kl in settings}
    known = {kl: data["decode"][name] for kl, name in names.items() if name in data["decode"]}
    return list(known), [interval(counts, "new_tokens", "rows") for counts in known.values()]


def draw(data, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(12, 3.6))
    for rule, found in data["rows"].items():
        curve(left, rule, KS, [mean_interval(found[str(K)]) for K in KS])
    for method in METHODS:
        for axis, vary, settings in ((middle, 0, [(K, 4) for K in KS]), (right, 1, [(4, L) for L in LS])):
            known, points = rates(data, method, settings)
            if known:
                curve(axis, method, [kl[vary] for kl in known], points)
    known, points = rates(data, "chain", [(1, L) for L in LS])
    if known:
        curve(right, "chain", [L for _, L in known], points)
    for axis, title, label, ticks in (
        (left, "one of K drafts at a node is accepted", "K", KS),
        (middle, "tokens per target call, L = 4", "K", KS),
        (right, "tokens per target call, K = 4", "L", LS),
    ):
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(label)
        axis.set_xticks(ticks)
        axis.grid(alpha=0.3)
    left.set_ylim(top=1)
    right.set_ylim(top=3.5)
    for axis in (left, right):
        if axis.has_data():
            axis.legend(fontsize=5.5, loc="upper left", ncols=2)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main():
    options = {
        "prompts": (40, "of the sweeps and of the rows"),
        "main-prompts": (164, "of the settings with K = 4 and L = 4, and of their chain"),
        "tokens": (64, None),
        "batch": (8, None),
        "positions": (16, "rows of each prompt, the first that follow it"),
    }
    args = arguments(__doc__, "trees.json", options)

    def step(pair, method, K, L):
        main_one = L == 4 and K == (1 if method == "chain" else 4)
        prompts = humaneval(args.main_prompts if main_one else args.prompts, pair.tokenizer)
        return decoded(pair, prompts, args.tokens, args.batch, method, K, L)

    def parts(data):
        todo = [s for s in dict.fromkeys(settings()) if key(*s) not in data["decode"]]
        found = [(data["decode"], key(*s), lambda pair, s=s: step(pair, *s)) for s in todo]
        rows = (
            []
            if data["rows"]
            else [
                (
                    data,
                    "rows",
                    lambda pair: row_acceptance(pair, humaneval(args.prompts, pair.tokenizer), args.positions),
                )
            ]
        )
        return [*found[:6], *rows, *found[6:]]

    run(args, {"decode": {}, "rows": {}}, parts, lambda pair: pair, show, draw)


if __name__ == "__main__":
    main()
