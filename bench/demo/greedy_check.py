# SPDX-License-Identifier: Apache-2.0
"""Is greedy speculative output, token by token, the target's own? Every difference is shown with the logits behind it.

    python -m bench.demo.greedy_check                    # float32, 20 prompts x 64 tokens, batch 1 and 8: the exactness check
    python -m bench.demo.greedy_check --dtype bfloat16   # how often rounding alone changes the output

Two passes of different shape round differently, so where the two best logits all but tie either token may win. In float32
a difference counts as such a tie when the two lie within 1e-4.
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from bench.demo.prompts import humaneval
from specdec_kernels import decode

TIE = 1e-4
DRAFT = str(Path(__file__).parent / "draft")


def first_gap(target, prompt: list[int], a: list[int], b: list[int]) -> tuple[int, float]:
    """Where a and b part, and how far apart the two best logits lie there."""
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    ids = prompt + a[:at]
    logits = target.forward(torch.tensor([ids]), [0], target.new_cache(1, len(ids)), keep=[len(ids) - 1])[0]
    best = logits.float().topk(2).values
    return at, (best[0] - best[1]).item()


def differences(target, requests, plain, speculative) -> list[tuple[int, int, float]]:
    """(request, position, gap) of every request whose outputs differ."""
    pairs = enumerate(zip(requests, plain, speculative))
    return [(i, *first_gap(target, r.prompt, a.tokens, b.tokens)) for i, (r, a, b) in pairs if a.tokens != b.tokens]


def check(pair, prompts, tokens, batches, gamma=4, on_row=lambda row: None) -> list[dict]:
    """Decode `prompts` plainly (batch 1), then with every drafter at every batch size -> one row of findings each."""
    requests = [decode.Request(p, tokens, eos=pair.eos) for p in prompts]
    plain, rows = decode.generate(pair.target, requests, max_batch=1).results, []
    drafters = {"plain": lambda: None, "lookup": lambda: decode.PromptLookupDrafter(gamma)}
    if pair.draft is not None:
        drafters["model"] = lambda: decode.ModelDrafter(pair.draft, gamma)
        drafters["lookup+model"] = lambda: decode.LookupThenModel(drafters["lookup"](), drafters["model"]())
    for batch in batches:
        for name, make in drafters.items():
            if name == "plain" and batch == 1:
                continue
            output = decode.generate(pair.target, requests, make(), max_batch=batch)
            apart = differences(pair.target, requests, plain, output.results)
            rows.append(dict(batch=batch, drafter=name, alpha=output.stats.alpha, differ=apart, of=len(prompts)))
            on_row(rows[-1])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--draft", default=DRAFT)
    args = parser.parse_args()

    from specdec_kernels.console import loading

    console = Console()
    with loading(console) as on_step:
        pair = decode.load_pair(args.target, args.draft, getattr(torch, args.dtype), on_step=on_step)
    worst = 0.0

    def show(row):
        line = f"batch {row['batch']}, {row['drafter']}: {row['of'] - len(row['differ'])} of {row['of']} identical"
        console.print(line + f", alpha {row['alpha']:.3f}" * (row["alpha"] > 0), highlight=False)
        for i, at, gap in row["differ"]:
            console.print(f"  prompt {i} differs from token {at}: the two best logits lie {gap:.2e} apart", highlight=False)

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("decoding", total=4 * len(args.batch) - (1 in args.batch))
        rows = check(pair, humaneval(args.prompts, pair.tokenizer), args.tokens, args.batch, on_row=lambda r: (show(r), progress.advance(task)))
    worst = max((gap for row in rows for *_, gap in row["differ"]), default=0.0)
    if args.dtype == "float32":
        console.print("[green]passed[/green]" if worst <= TIE else f"[red]failed[/red]: a difference with a gap of {worst:.2e}")
        raise SystemExit(worst > TIE)


if __name__ == "__main__":
    main()
