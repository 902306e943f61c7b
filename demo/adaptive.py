# SPDX-License-Identifier: Apache-2.0
"""Compare adaptive drafts with plain decoding, and with drafts of fixed length.

    python -m demo.adaptive                             # batch 1, 4, 8, 16 at T = 0, .7, 1: half an hour
    python -m demo.adaptive --fixed --batch 1 8 --temperature 0 1 --repeats 5
    python -m demo.adaptive --tree traversal --batch 1

There are at least twice as many requests as are decoded at once, so that slots are refilled. Every round runs plain
decoding and all drafters on the same requests, in rotating order. A ratio compares two runs of one round. The interval
of a median has 95% confidence or more from 6 rounds on: of 9 rounds it goes from the second lowest ratio to the second
highest. Of fewer than 6 it is the whole range, with less confidence.
"""

import argparse
import os
from math import comb
from statistics import median

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from demo.prompts import humaneval
from demo.run import DRAFT, Setting
from specdec_kernels import decode
from specdec_kernels.cli.console import loading, progress
from specdec_kernels.cli.threads import pick_threads


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--batch", type=int, nargs="+", default=[1, 4, 8, 16])
    option("--temperature", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    option("--prompts", type=int, default=4, help="at least; twice the batch if that is more")
    option("--tokens", type=int, default=64)
    option("--repeats", type=int, default=9)
    option("--fixed", action="store_true", help="also chains of 1, 2, 4, 6, with and without lookup")
    option("--tree", choices=("recursive_without_replacement", "traversal"), help="also adaptive trees, verified so")
    option("--dtype", default="auto", choices=["auto", "bfloat16", "float32"])
    option("--threads", type=int, help="of torch; by default one per core, or one if that is faster here")
    return parser.parse_args()


def looked_up(pair, gamma):
    lookup = decode.PromptLookupDrafter(gamma, min_ngram=3)
    return decode.LookupThenModel(lookup, decode.ModelDrafter(pair.draft, gamma))


def sides(pair, args) -> dict:
    """Return {name: drafter}. An adaptive drafter serves all rounds and keeps what it has learnt."""
    found = {"plain": None, "adaptive": looked_up(pair, "auto")}
    if args.tree:
        found[args.tree] = decode.TreeDrafter(pair.draft, args.tree, 3, 6, "auto")
    for gamma in (1, 2, 4, 6) if args.fixed else ():
        found |= {f"{gamma}": decode.ModelDrafter(pair.draft, gamma), f"lookup, {gamma}": looked_up(pair, gamma)}
    return found


def interval(ratios) -> tuple[float, float]:
    """Return a confidence interval of the median from the order statistics: of at least 95%, from 6 ratios on."""
    ratios = sorted(ratios)
    n = len(ratios)
    cut = 0
    while 2 * sum(comb(n, k) for k in range(cut + 2)) <= 0.05 * 2**n:
        cut += 1
    return ratios[cut], ratios[-1 - cut]


def measure(setting, drafters, repeats, tick) -> dict:
    """Return {name: the statistics of each round}, after a warm-up."""
    for drafter in drafters.values():
        setting.run(drafter, prompts=setting.prompts[: max(2, setting.batch)])
        tick()
    rounds: dict = {name: [] for name in drafters}
    for seed in range(repeats):
        names = list(drafters)
        for name in names[seed % len(names) :] + names[: seed % len(names)]:
            rounds[name].append(setting.run(drafters[name], seed).stats)
            tick()
    return rounds


def ratios(rounds, name, base="plain"):
    return [a.tokens_per_second / b.tokens_per_second for a, b in zip(rounds[name], rounds[base])]


def report(console, cells):
    table = Table(
        title="tokens/s as a multiple of plain decoding's", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1)
    )
    for head in ("", "T", "drafts", "median", "95% interval", "steps with a draft", "tokens per call"):
        table.add_column(head, justify="left" if head in ("", "drafts") else "right")
    for setting, rounds in cells:
        label = f"batch {setting.batch}", f"{setting.temperature:g}"
        for name in list(rounds)[1:]:
            low, high = interval(ratios(rounds, name))
            stats = rounds[name]
            share = median(1 - s.widths[0] / sum(s.widths.values()) for s in stats)
            table.add_row(
                *label,
                name,
                f"{median(ratios(rounds, name)):.2f}",
                f"{low:.2f} - {high:.2f}",
                f"{share:.0%}",
                f"{median(s.tokens_per_call for s in stats):.2f}",
            )
            label = "", ""
        fixed = [name for name in rounds if name[-1].isdigit()]
        if fixed:
            best = max(fixed, key=lambda name: median(ratios(rounds, name)))
            table.add_row("", "", f"adaptive / {best}", f"{median(ratios(rounds, 'adaptive', best)):.2f}", "", "", "")
    console.print(table)


def main():
    args, console = parse(), Console()
    dtype = None if args.dtype == "auto" else getattr(torch, args.dtype)
    with loading(console, 4) as on_step:
        pair = decode.load_pair("smollm2", str(DRAFT), dtype, on_step=on_step)
    prompts = humaneval(max(args.prompts, 2 * max(args.batch)), pair.tokenizer)
    torch.set_num_threads(args.threads or pick_threads(pair.target, (1, torch.get_num_threads()))[0])
    settings = [
        Setting(pair, prompts[: max(args.prompts, 2 * b)], args.tokens, b, t)
        for b in args.batch
        for t in args.temperature
    ]
    drafters = sides(pair, args)
    cells = []
    with progress(console, len(settings) * len(drafters) * (1 + args.repeats)) as done:
        for setting in settings:
            found = measure(setting, sides(pair, args), args.repeats, lambda setting=setting: done(str(setting)))
            cells.append((setting, found))
    report(console, cells)
    console.print(
        f"SmolLM2-135M in {str(pair.target.dtype).removeprefix('torch.')}, {args.tokens} tokens a prompt, "
        f"{args.repeats} rounds, {torch.get_num_threads()} threads on {os.cpu_count()} cores, "
        f"torch {torch.__version__}",
        style="dim",
    )


if __name__ == "__main__":
    main()
