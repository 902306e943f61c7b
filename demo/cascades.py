# SPDX-License-Identifier: Apache-2.0
"""Measure quality and cost of speculative cascades on the demo's models.

They are compared with plain cascades and with exact speculative decoding.

    python -m demo.cascades                # about 15 minutes of a core; finished settings are kept in cascades.json
    python -m demo.cascades --seconds 120  # begin no setting after 120 s; the next call goes on
    python -m demo.cascades --seconds 0    # only show what was measured: the table, and the picture (matplotlib)

HumanEval prompts, temperature 1, SmolLM2-135M-Instruct and the demo's draft, drafts of four tokens. Cost: calls of the
target per token. Quality: the target's mean log-probability of the emitted tokens. Deferral: the chance, at the
positions of the emitted text, that the rule defers the token to the target. Intervals are 95% confidence intervals from
resampling prompts. A plain cascade by diff or opt calls the target at every token, and its output has the same
distribution as that of the speculative cascade, so the table has no row for it.

The draft does not read the target's states here. If it did, its row for a token would depend on how many tokens ago the
target's last state was computed. Under exact rules this does not change the output distribution. A cascade's output
distribution depends on the draft's rows, so it would change. And in a plain cascade the target has not read the draft's
tokens, so it has no states for them.
"""

import torch
from rich import box
from rich.table import Table

import specdec_kernels as sk
from demo.parts import arguments, run
from demo.prompts import humaneval
from demo.reader import Reader
from demo.trees import interval
from specdec_kernels import decode

FIELDS = "new_tokens", "calls", "accepted", "tested", "deferred", "logprob"
SWEEPS = {  # (cascade, rule): alphas, which the loop takes in turns
    ("speculative", "exact"): (None,),
    ("plain", "chow"): (0.6, 0.2, 0.8, 0.4, 1.0),
    ("speculative", "chow"): (0.6, 0.2, 0.8, 0.4, 1.0),
    ("speculative", "opt"): (0.5, 0.2, 0.8, 0.1),
    ("speculative", "token_v3"): (0.8, 0.5, 0.95, 0.2),
    ("speculative", "diff"): (0.3, 0.1, 0.6, 0.03),
}


def settings():
    """Yield (cascade, rule, alpha) in order of importance."""
    for turn in range(max(map(len, SWEEPS.values()))):
        yield from ((*sweep, alphas[turn]) for sweep, alphas in SWEEPS.items() if turn < len(alphas))


def key(cascade, rule, alpha):
    return f"{cascade} {rule}" if alpha is None else f"{cascade} {rule} {alpha:g}"


def deferral(rule, alpha, z, y):
    """Return the chance [N] that the rule defers a drafted token to the target.

    z, y: logits [N, V] of the target and of the draft.
    """
    if rule == "exact":
        return torch.ones(len(z))
    tv, _, _, _, p, q = sk.row_gap(z, y).T  # p, q: the largest probabilities
    if rule == "token_v3":
        kept = z >= z.amax(1, keepdim=True) + torch.tensor(1 - alpha).log()
        return 1 - (y.float().softmax(1) * kept).sum(1)
    least = {"chow": 1 - alpha, "diff": p - alpha, "opt": p - alpha * tv}[rule]
    return 1 - (q >= least).float()


class Scorer:
    """Scorer of emitted texts with both models. Each prompt is read once, so a pass reads only the text after it."""

    def __init__(self, pair, prompts, tokens):
        self.prompts, self.readers = prompts, [Reader(pair, len(p) + tokens) for p in prompts]
        for prompt, read in zip(prompts, self.readers):
            read(prompt[:-1], 0, keep=None)

    def __call__(self, i, tokens, rule, alpha):
        """Return (expected deferrals, log-probability), summed over `tokens`, the text after prompt i."""
        prompt = self.prompts[i]
        z, y = self.readers[i](prompt[-1:] + tokens[:-1], len(prompt) - 1)
        logprob = z.log_softmax(1).gather(1, torch.tensor(tokens)[:, None])
        return deferral(rule, alpha, z, y).sum().item(), logprob.sum().item()


def decoded(pair, scorer, tokens, batch, gamma, cascade, rule, alpha) -> list[list]:
    """Decode all prompts in one setting -> the counts of each, as named by FIELDS."""
    drafter = decode.TokenCascade(pair.draft) if cascade == "plain" else decode.ModelDrafter(pair.draft, gamma)
    requests = [
        decode.Request(p, tokens, 1.0, rule=rule, alpha=alpha, seed=i, eos=pair.eos)
        for i, p in enumerate(scorer.prompts)
    ]
    output = decode.generate(pair.target, requests, drafter, max_batch=batch).check()
    assert output.stats.status == 0, output.stats.status
    out = []
    for i, result in enumerate(output.results):
        s, more = result.stats, scorer(i, result.tokens, rule, alpha)
        out.append([s.new_tokens, s.rows, s.accepted, s.tested, *(round(x, 3) for x in more)])
    return out


def numbers(counts) -> dict:
    """Return {name: (value, low, high)} of the measured quantities per token."""
    pairs = dict(deferral=("deferred", "new_tokens"), calls=("calls", "new_tokens"), logprob=("logprob", "new_tokens"))
    return {name: interval(counts, *pair, fields=FIELDS) for name, pair in pairs.items()}


def columns(counts) -> list[str]:
    found = numbers(counts)
    calls, logprob = (
        "{:.2f} ({:.2f}-{:.2f})".format(*found["calls"]),
        "{:.2f} ({:.2f} to {:.2f})".format(*found["logprob"]),
    )
    return [f"{found['deferral'][0]:.2f}", calls, logprob]


def show(console, data):
    table = Table(title="temperature 1, 95% intervals", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in (
        "cascade",
        "rule",
        "alpha",
        "deferral\nrate",
        "target calls\nper token",
        "target's mean\nlog-probability",
        "prompts",
    ):
        table.add_column(name, justify="left" if name in ("cascade", "rule") else "right", no_wrap=True)
    for sweep, alphas in SWEEPS.items():
        for alpha in sorted(alphas, key=lambda a: a or 0):
            counts = data["decode"].get(key(*sweep, alpha))
            if counts:
                table.add_row(*sweep, "" if alpha is None else f"{alpha:g}", *columns(counts), str(len(counts)))
    console.print(table)


def draw(data, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(13, 3.4))
    titles = "deferral rate", "target calls per token", "target's mean log-probability"
    for colour, (sweep, alphas) in enumerate(SWEEPS.items()):
        done = [a for a in sorted(alphas, key=lambda a: a or 0) if key(*sweep, a) in data["decode"]]
        known = [(a, numbers(data["decode"][key(*sweep, a)])) for a in done]
        if not known:
            continue
        style = dict(color=f"C{colour}", marker="o", ms=3, lw=1.3, ls="--" if sweep[0] == "plain" else "-")
        for axis, name in zip(axes, ("deferral", "calls", "logprob")):
            if sweep[1] == "exact":
                axis.axhline(known[0][1][name][0], color=style["color"], lw=1, ls=":")
            else:
                value, low, high = (torch.tensor([n[name][i] for _, n in known]) for i in range(3))
                axis.errorbar(
                    [a for a, _ in known], value, torch.stack((value - low, high - value)), capsize=2, **style
                )
        axes[3].plot(
            [n["calls"][0] for _, n in known], [n["logprob"][0] for _, n in known], label=" ".join(sweep), **style
        )
    for axis, title in zip(axes, titles):
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("alpha")
    axes[3].set_title("quality against cost", fontsize=9)
    axes[3].set_xlabel(titles[1])
    axes[3].set_ylabel(titles[2], fontsize=8)
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.legend(*axes[3].get_legend_handles_labels(), loc="lower center", ncol=len(SWEEPS), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=90)


def main():
    args = arguments(
        __doc__, "cascades.json", {"prompts": (64, None), "tokens": (64, None), "batch": (8, None), "gamma": (4, None)}
    )

    def parts(data):
        for setting in settings():
            if key(*setting) not in data["decode"]:
                yield (
                    data["decode"],
                    key(*setting),
                    lambda known, setting=setting: decoded(*known, args.tokens, args.batch, args.gamma, *setting),
                )

    def prepare(pair):
        pair.draft.state = None
        return pair, Scorer(pair, humaneval(args.prompts, pair.tokenizer), args.tokens)

    run(args, {"decode": {}}, parts, prepare, show, draw)


if __name__ == "__main__":
    main()
