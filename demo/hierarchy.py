# SPDX-License-Identifier: Apache-2.0
"""Drafts of drafts on the real pair: the draft's own tokens are looked up in the text and verified by it, in turn with
the other ways of drafting, and theory's factor beside what is measured.

    python -m demo.hierarchy                 # about 5 minutes: HumanEval prompts, one at a time
    python -m demo.hierarchy --rounds 1 --prompts 2

The factor is theory.hierarchical_factor (for the draft alone: walltime_factor) of the acceptances, lengths and seconds
of the same runs. It takes every step to draft as many tokens, and a pass over them to cost as much as over one.
"""

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from demo.parts import HERE
from demo.prompts import humaneval
from specdec_kernels import decode, theory
from specdec_kernels.decode.result import Stats

DRAFTERS: dict[str, Callable] = {
    "plain": lambda pair: None,
    "draft, 4": lambda pair: decode.ModelDrafter(pair.draft, 4),
    "draft, 8": lambda pair: decode.ModelDrafter(pair.draft, 8),
    "lookup under draft, 4": lambda pair: decode.HierarchicalDrafter(pair.draft, decode.PromptLookupDrafter(4), 4),
    "lookup under draft, 8": lambda pair: decode.HierarchicalDrafter(pair.draft, decode.PromptLookupDrafter(4), 8),
    "lookup, else draft": lambda pair: decode.LookupThenModel(
        decode.PromptLookupDrafter(6, min_ngram=3), decode.ModelDrafter(pair.draft, 4)
    ),
}


class Run(NamedTuple):
    rate: float  # tokens a second
    stats: Stats
    inner: Stats | None


def measured(pair, prompts, tokens, temperature, drafter) -> Run:
    inner, began, stats = Stats(), perf_counter(), Stats()
    for seed, prompt in enumerate(prompts):
        request = decode.Request(prompt, tokens, temperature, seed=seed)
        output = decode.generate(pair.target, [request], drafter).check()
        stats += output.stats
        if isinstance(drafter, decode.HierarchicalDrafter):
            inner += drafter.stats
    return Run(stats.new_tokens / (perf_counter() - began), stats, inner if inner.rows else None)


def predicted(plain: Stats, run: Run) -> float | None:
    """Theory's factor; plain: of the same prompts without drafts, whose passes are over one token."""
    s = run.stats
    if s.drafted == 0:
        return None
    one = plain.target_seconds / plain.target_calls
    gamma = round(s.drafted / s.rows)
    if run.inner is None:
        return theory.walltime_factor(s.alpha, gamma, s.draft_seconds / s.drafted / one)
    i = run.inner
    length = round(i.drafted / i.rows)
    c, inner_c = i.target_seconds / i.rows / one, i.draft_seconds / max(i.drafted, 1) / one
    return theory.hierarchical_factor(s.alpha, gamma, c, i.alpha, length, inner_c)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in dict(prompts=8, tokens=64, rounds=5, threads=2).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pair = decode.load_pair("smollm2", str(HERE / "draft"))
    prompts = humaneval(args.prompts, pair.tokenizer)
    drafters = {name: make(pair) for name, make in DRAFTERS.items()}
    for temperature in (0.0, 0.7):
        runs: dict[str, list[Run]] = {name: [] for name in drafters}
        for round in range(args.rounds + 1):
            for name, drafter in drafters.items():
                run = measured(pair, prompts, args.tokens, temperature, drafter)
                if round:  # the first warms up
                    runs[name].append(run)
        show(temperature, runs)


def show(temperature, runs):
    columns = "", "of plain", "theory", "acceptance", "tokens a pass", "draft's own acceptance", "tokens a pass"
    table = Table(*columns, title=f"temperature {temperature:g}", title_justify="left")
    for name, mine in runs.items():
        ratio = statistics.median(run.rate / plain.rate for run, plain in zip(mine, runs["plain"]))
        factor = predicted(runs["plain"][-1].stats, mine[-1])
        cells = [f"{ratio:.2f}x", "" if factor is None else f"{factor:.2f}x"]
        for s in (mine[-1].stats, mine[-1].inner):
            cells += ["", ""] if s is None else [f"{s.alpha:.2f}", f"{s.new_tokens / s.rows:.2f}"]
        table.add_row(name, *cells)
    console = Console()
    console.width = max(console.width, 120)
    console.print(table)


if __name__ == "__main__":
    main()
