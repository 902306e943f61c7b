# SPDX-License-Identifier: Apache-2.0
"""Compare speculative and plain decoding of HumanEval prompts (make demo).

    python -m demo.run                                        # SmolLM2-135M, bfloat16 where the CPU has it
    python -m demo.run --temperature 0 --batch 1 8 --repeats 9 --drafter lookup
    python -m demo.run --drafter kseq --drafts 4 --gamma 4    # a tree per request, verified by this method

Both run the same loop with the same packed weights in the same precision; plain decoding is the loop without a drafter.
The default drafter uses prompt lookup, and the draft model where lookup finds nothing. It is timed against plain
decoding in interleaved repeats. The speed-up is the median over the repeats of the ratio of tokens/s. The time to read
prompts is left out unless a line says otherwise.
"""

import argparse
import functools
import os
import sys
from pathlib import Path
from statistics import median

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from demo import texts
from demo.greedy_check import differences
from demo.prompts import humaneval
from specdec_kernels import decode
from specdec_kernels.cli.console import loading, progress
from specdec_kernels.cli.threads import pick_threads
from specdec_kernels.theory import expected_tokens

DRAFT = Path(__file__).parent / "draft"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--draft", default=str(DRAFT), help="a model, a layer-draft folder, or none")
    names = ["best", "lookup", "model", "lookup+model", *decode.TREE_METHODS]
    parser.add_argument(
        "--drafter",
        choices=names,
        help="lookup+model; best: the fastest of the first three; or a method that verifies trees",
    )
    parser.add_argument(
        "--gamma", default="auto", help='tokens drafted at a time, of a tree its depth; "auto": what pays, of a tree 4'
    )
    parser.add_argument("--drafts", type=int, default=4, help="of a tree: its chains")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1], help="prompts decoded at once; several sizes may be given"
    )
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--threads", type=int, help="of torch; by default one per core, or one if that is faster here")
    return parser.parse_args()


def make_drafters(pair, gamma, tree=None, drafts=4) -> dict:
    """Return {name: drafter}; with `tree`, a method of verify_tree, only the drafter of its trees.

    A drafter serves all repeats, so that an adaptive gamma keeps what it has learnt.
    """
    if tree is not None:
        return {tree: decode.TreeDrafter(pair.draft, tree, drafts, 4 if gamma == "auto" else gamma)}
    drafters = {"lookup": decode.PromptLookupDrafter(gamma)}
    if pair.draft is not None:
        # With a model to fall back on, only matches of three tokens and more are worth looking up.
        lookup, model = decode.PromptLookupDrafter(gamma, min_ngram=3), decode.ModelDrafter(pair.draft, gamma)
        drafters |= {
            "model": decode.ModelDrafter(pair.draft, gamma),
            "lookup+model": decode.LookupThenModel(lookup, model),
        }
    return drafters


def theory(spec, plain_step: float, chain: bool) -> tuple[float, float]:
    """Return c (seconds of a draft step over those of a plain target step) and the predicted speed-up.

    plain_step: seconds of a plain target step. A chain's prediction is Leviathan's walltime factor at the measured
    alpha and c, with the tokens averaged over the lengths of drafts. The levels of a tree differ in acceptance, so its
    prediction uses the measured tokens per call, and its c is that of drafting the whole tree.
    """
    if not chain:
        drafting = spec.draft_seconds / spec.target_calls / plain_step
        return drafting, spec.tokens_per_call / (1 + drafting)
    steps = sum(spec.widths.values())
    width = sum(g * n for g, n in spec.widths.items()) / steps
    tokens = sum(expected_tokens(spec.alpha, g) * n for g, n in spec.widths.items()) / steps
    drafting = spec.draft_seconds / spec.target_calls / plain_step
    return drafting / width if width else 0.0, tokens / (1 + drafting)


class Setting:
    """The measurement at one batch size and temperature.

    It warms up, chooses the fastest drafter if there are several, and times it against plain decoding.
    """

    def __init__(self, pair, prompts, tokens, batch, temperature):
        self.pair, self.prompts, self.tokens, self.batch, self.temperature = pair, prompts, tokens, batch, temperature

    def __str__(self):
        return f"batch {self.batch}, temperature {self.temperature:g}"

    def run(self, drafter, seed=0, prompts=None):
        requests = [
            decode.Request(p, self.tokens, self.temperature, seed=1000 * seed + i, eos=self.pair.eos)
            for i, p in enumerate(prompts or self.prompts)
        ]
        self.requests = requests
        return decode.generate(self.pair.target, requests, drafter, max_batch=self.batch).check()

    def measure(self, drafters, repeats, tick) -> dict:
        warm, choosing = self.prompts[: max(2, self.batch // 2)], self.prompts[:: 2 if self.batch == 1 else 1]
        for drafter in (None, *drafters.values()):
            self.run(drafter, prompts=warm)
            tick(len(warm))
        rates = {}
        for name, drafter in drafters.items() if len(drafters) > 1 else ():
            rates[name] = self.run(drafter, prompts=choosing).stats.tokens_per_second
            tick(len(choosing))
        name = max(drafters, key=lambda name: rates.get(name, 0.0))
        pairs = []
        for seed in range(repeats):  # in alternating order, so that a drift of the machine favours neither
            order = (None, drafters[name])[:: 1 if seed % 2 else -1]
            outputs = {drafter is None: self.run(drafter, seed) for drafter in order}
            pairs.append((outputs[True], outputs[False]))
            tick(2 * len(self.prompts))
        return dict(setting=self, drafter=name, pairs=pairs)

    def work(self, drafters, repeats) -> int:
        """Return how many prompts `measure` decodes, counting repetitions."""
        n, k = len(self.prompts), len(drafters)
        choosing = 0 if k == 1 else k * ((n + 1) // 2 if self.batch == 1 else n)
        return (1 + k) * min(n, max(2, self.batch // 2)) + choosing + 2 * n * repeats


def summary(found) -> dict:
    """Return the numbers of one column of the table."""
    pairs = [(plain.stats, spec.stats) for plain, spec in found["pairs"]]
    ratios = sorted(spec.tokens_per_second / plain.tokens_per_second for plain, spec in pairs)
    whole = median((s.new_tokens / s.seconds) / (p.new_tokens / p.seconds) for p, s in pairs)
    steps = [p.target_seconds / p.target_calls for p, _ in pairs]
    predictions = [theory(s, step, found["drafter"] not in decode.TREE_METHODS) for (_, s), step in zip(pairs, steps)]
    out = dict(
        plain=median(p.tokens_per_second for p, _ in pairs),
        spec=median(s.tokens_per_second for _, s in pairs),
        ratio=median(ratios),
        low=ratios[0],
        high=ratios[-1],
        whole=whole,
        alpha=median(s.alpha for _, s in pairs),
        acceptance=median(s.acceptance for _, s in pairs),
        per_call=median(s.tokens_per_call for _, s in pairs),
        nodes=median(s.nodes_per_call for _, s in pairs),
        share=median(1 - s.widths[0] / sum(s.widths.values()) for _, s in pairs),
        c=median(c for c, _ in predictions),
        theory=median(predicted for _, predicted in predictions),
        scoring=median(s.target_seconds / s.target_calls / step for (_, s), step in zip(pairs, steps)),
    )
    setting = found["setting"]
    if setting.temperature == 0:
        plain, speculative = found["pairs"][0]
        out["differ"] = differences(setting.pair.target, setting.requests, plain.results, speculative.results)
    return out


def report(console, rows):
    """Print the table, one column per setting, and greedy differences with the gap of the two best logits there."""
    table = Table(
        title="plain against speculative decoding", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("", no_wrap=True)
    for setting, _, _ in rows:
        table.add_column(f"batch {setting.batch}\nT = {setting.temperature:g}", justify="right", overflow="fold")
    lines = {
        "drafter": lambda s, name, r: name,
        "plain tokens/s": lambda s, name, r: f"{r['plain']:.1f}",
        "speculative tokens/s": lambda s, name, r: f"{r['spec']:.1f}",
        "[bold]speed-up, median[/bold]": lambda s, name, r: f"[bold]{r['ratio']:.2f}x[/bold]",
        "  lowest-highest": lambda s, name, r: f"{r['low']:.2f}-{r['high']:.2f}",
        "  prompt reading included": lambda s, name, r: f"{r['whole']:.2f}x",
        "tokens per target call": lambda s, name, r: f"{r['per_call']:.2f}",
        "nodes scored per call": lambda s, name, r: f"{r['nodes']:.1f}",
        "steps with a draft": lambda s, name, r: f"{r['share']:.0%}",
        "accepted, of all drafted": lambda s, name, r: f"{r['acceptance']:.3f}",
        "alpha: of those tested": lambda s, name, r: f"{r['alpha']:.3f}",
        "c: draft / target step": lambda s, name, r: f"{r['c']:.3f}",
        "theory at this alpha, c": lambda s, name, r: f"{r['theory']:.2f}x",
        "scoring a draft / a token": lambda s, name, r: f"{r['scoring']:.2f}x",
        "greedy output identical": lambda s, name, r: (
            f"{len(s.prompts) - len(r['differ'])} of {len(s.prompts)}" if "differ" in r else ""
        ),
    }
    for label, show in lines.items():
        table.add_row(label, *(show(*row) for row in rows))
    console.print(table)
    console.print(
        "Theory takes scoring a draft to cost as much as scoring one token; the line below it says what it does cost.",
        style="dim",
    )
    if any(row.get("differ") for *_, row in rows):
        text = "Passes of different shape round differently, and near ties fall either way"
        console.print(f"{text}; in float32: python -m demo.greedy_check", style="dim", highlight=False)
    for setting, name, row in rows:
        for i, at, gap in row.get("differ", []):
            text = f"batch {setting.batch}, {name}: prompt {i} differs from token {at} on"
            console.print(f"{text}, where the two best logits lie {gap:.3g} apart", style="dim", highlight=False)


def next_steps(args) -> str:
    """Return commands to try next, with paths relative to the current folder."""
    python, here = Path(sys.executable), Path.cwd()
    python = python.relative_to(here) if python.is_relative_to(here) else python
    draft = Path(args.draft).relative_to(here) if Path(args.draft).is_relative_to(here) else args.draft
    models = ("" if args.target == "smollm2" else f" --target {args.target}") + (
        "" if args.draft == "none" else f" --draft {draft}"
    )
    return "\n".join(
        [
            f'{python} -m specdec_kernels generate{models} --chat --prompt "{texts.QUESTIONS[0]}"',
            f"{python} -m specdec_kernels generate --help",
            f"{python} -m specdec_kernels selfcheck",
        ]
    )


def main():
    args, console = parse(), Console()
    gamma = args.gamma if args.gamma == "auto" else int(args.gamma)
    dtype = None if args.dtype == "auto" else getattr(torch, args.dtype)
    draft = None if args.draft == "none" else args.draft
    tree = args.drafter if args.drafter in decode.TREE_METHODS else None
    if tree is not None and draft is None:
        raise SystemExit(f"--drafter {tree} needs a draft model, got --draft none")
    if args.threads:
        torch.set_num_threads(args.threads)
    most = torch.get_num_threads()
    console.rule("1 of 3: loading the models, choosing threads, about 15 s, the first time 40 s", align="left")
    with loading(console, 4 + (draft is not None)) as on_step:
        pair = decode.load_pair(args.target, draft, dtype, on_step=on_step)
        on_step("passes of one token, timed")
        threads, step = pick_threads(pair.target, (most,) if args.threads else (1, most))
        torch.set_num_threads(threads)
    console.print(f"{threads} of {most} threads: {1000 * step:.0f} ms a pass", highlight=False)
    drafters = make_drafters(pair, gamma, tree, args.drafts)
    name = list(drafters)[-1]
    console.rule("2 of 3: the same answers, decoded speculatively and plainly", align="left")
    per_token = texts.show(console, pair, name, drafters[name], args.tokens, step)
    names = list(drafters) if args.drafter == "best" else [args.drafter or name]
    report(console, timed(console, pair, args, gamma, names, per_token))
    console.print(
        f"{args.target} in {str(pair.target.dtype).removeprefix('torch.')}, "
        f"{args.prompts} HumanEval prompts x {args.tokens} tokens, {args.repeats} interleaved repeats, "
        f"{threads} {'thread' if threads == 1 else 'threads'} on {os.cpu_count()} cores, torch {torch.__version__}",
        style="dim",
    )
    console.rule("next: your own prompt, all options, the statistics", align="left")
    console.print(next_steps(args), highlight=False, markup=False, soft_wrap=True)


def timed(console, pair, args, gamma, names, per_token):
    """Time every setting -> (setting, drafter, numbers) of each. per_token: seconds, for the first estimate."""
    prompts = humaneval(args.prompts, pair.tokenizer)
    settings = [Setting(pair, prompts, args.tokens, b, t) for b in args.batch for t in args.temperature]
    total = sum(setting.work(names, args.repeats) for setting in settings)
    expected = total * args.tokens * per_token
    console.rule(f"3 of 3: timing, about {expected / 60:.0f} min", align="left")
    console.print(f"{' and '.join(names)} and plain decoding, {args.repeats} rounds in turn, at", end=" ")
    console.print("; ".join(map(str, settings)), highlight=False)
    rows, tree = [], names[0] if names[0] in decode.TREE_METHODS else None
    with progress(console, total, expected, str(settings[0])) as done:
        for setting in settings:
            drafters = {name: d for name, d in make_drafters(pair, gamma, tree, args.drafts).items() if name in names}
            tick = functools.partial(done, str(setting))
            found = setting.measure(drafters, args.repeats, tick)
            rows.append((setting, found["drafter"], summary(found)))
    return rows


if __name__ == "__main__":
    main()
