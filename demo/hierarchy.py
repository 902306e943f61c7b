# SPDX-License-Identifier: Apache-2.0
"""Compare hierarchical drafting with other drafters on the demo's models, and measured speed-ups with predicted ones.

In hierarchical drafting prompt lookup drafts for the draft model, which verifies and then drafts for the target.

    python -m demo.hierarchy                 # about 5 minutes: HumanEval prompts, one at a time
    python -m demo.hierarchy --rounds 1 --prompts 2

The prediction is theory.hierarchical_factor (walltime_factor for drafters without a hierarchy), from the acceptance
rates, draft lengths and seconds of the last round. It assumes that every step drafts the same number of tokens, and
that a pass over several tokens costs as much as a pass over one.
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
    rate: float  # tokens per second
    stats: Stats
    inner: Stats | None  # of the inner steps, in which the draft model verifies; None without a hierarchy


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
    """Return the predicted speed-up; None without drafts. plain: of plain decoding, whose passes are over one token."""
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
                if round:  # the first round is a warm-up
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
