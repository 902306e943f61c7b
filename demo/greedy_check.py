# SPDX-License-Identifier: Apache-2.0
"""Check that greedy speculative decoding gives the tokens of plain decoding. A difference is shown with its gap.

    python -m demo.greedy_check                    # float32, 20 prompts x 64 tokens, batch 1, 4, 8: the exactness check
    python -m demo.greedy_check --dtype bfloat16   # how often rounding alone changes the output
    python -m demo.greedy_check --drafter kseq greedy --batch 1 4

Two passes of different shape round differently, so either token may win where the two best logits nearly tie. The gap
is how far apart they lie. In float32 a difference counts as such a tie if the gap is at most 1e-4.
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console

from demo.prompts import humaneval
from specdec_kernels import decode
from specdec_kernels.cli.console import loading, progress

TIE = 1e-4
DRAFT = str(Path(__file__).parent / "draft")


def first_gap(target, prompt: list[int], a: list[int], b: list[int]) -> tuple[int, float]:
    """Return the first position where a and b differ, and the gap between the two best logits there."""
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    ids = prompt + a[:at]
    logits = target.forward(torch.tensor([ids]), [0], target.new_cache(1, len(ids)), keep=[len(ids) - 1])[0]
    best = logits.float().topk(2).values
    return at, (best[0] - best[1]).item()


def differences(target, requests, plain, speculative) -> list[tuple[int, int, float]]:
    """Return (request, position, gap of the two best logits) of every request whose outputs differ."""
    pairs = enumerate(zip(requests, plain, speculative))
    return [(i, *first_gap(target, r.prompt, a.tokens, b.tokens)) for i, (r, a, b) in pairs if a.tokens != b.tokens]


def make_drafters(pair, gamma=4) -> dict:
    """Return {name: function that makes the drafter}, with a drafter for each method of verify_tree."""
    drafters = {"plain": lambda: None, "lookup": lambda: decode.PromptLookupDrafter(gamma)}
    if pair.draft is not None:
        drafters["model"] = lambda: decode.ModelDrafter(pair.draft, gamma)
        drafters["lookup+model"] = lambda: decode.LookupThenModel(drafters["lookup"](), drafters["model"]())
        for method in decode.TREE_METHODS:
            drafters[method] = lambda method=method: decode.TreeDrafter(pair.draft, method, 4, gamma)
        drafters["lookup+target_only"] = lambda: decode.TreeDrafter(
            pair.draft, "target_only", shape=(3, 2, 1, 1), lookup=drafters["lookup"]()
        )
    return drafters


def check(pair, prompts, tokens, batches, names=None, on_row=lambda row: None) -> list[dict]:
    """Compare every drafter (or those in `names`) at every batch size with plain decoding at batch 1.

    Returns a dict of findings for each drafter and batch size.
    """
    requests = [decode.Request(p, tokens, eos=pair.eos) for p in prompts]
    plain, rows = decode.generate(pair.target, requests, max_batch=1).check().results, []
    for batch in batches:
        for name, make in make_drafters(pair).items():
            if (names is not None and name not in names) or (name == "plain" and batch == 1):
                continue
            stats = (output := decode.generate(pair.target, requests, make(), max_batch=batch).check()).stats
            apart = differences(pair.target, requests, plain, output.results)
            counts = dict(alpha=stats.alpha, per_call=stats.tokens_per_call, nodes=stats.nodes_per_call)
            rows.append(dict(batch=batch, drafter=name, differ=apart, of=len(prompts), **counts))
            on_row(rows[-1])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument(
        "--drafter",
        nargs="+",
        help="some of: plain lookup model lookup+model, a method of verify_tree, lookup+target_only",
    )
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--draft", default=DRAFT)
    args = parser.parse_args()

    console = Console()
    if args.threads:
        torch.set_num_threads(args.threads)
    with loading(console, 4) as on_step:
        pair = decode.load_pair(args.target, args.draft, getattr(torch, args.dtype), on_step=on_step)

    def show(row):
        line = f"batch {row['batch']}, {row['drafter']}: {row['of'] - len(row['differ'])} of {row['of']} identical"
        more = f", alpha {row['alpha']:.3f}, {row['per_call']:.2f} tokens per call, {row['nodes']:.1f} nodes scored"
        console.print(line + more * (row["alpha"] > 0), highlight=False)
        for i, at, gap in row["differ"]:
            console.print(
                f"  prompt {i} differs from token {at}: the two best logits lie {gap:.2e} apart", highlight=False
            )

    drafters = args.drafter or list(make_drafters(pair))
    prompts = humaneval(args.prompts, pair.tokenizer)
    with progress(console, len(drafters) * len(args.batch) - (1 in args.batch and "plain" in drafters)) as done:
        rows = check(pair, prompts, args.tokens, args.batch, drafters, lambda r: (show(r), done("decoding")))
    worst = max((gap for row in rows for *_, gap in row["differ"]), default=0.0)
    if args.dtype == "float32":
        console.print(
            "[green]passed[/green]" if worst <= TIE else f"[red]failed[/red]: a difference with a gap of {worst:.2e}"
        )
        raise SystemExit(worst > TIE)


if __name__ == "__main__":
    main()
