# SPDX-License-Identifier: Apache-2.0
"""Comparison of the speed of two trees' CPU ops. Both trees must be built; two processes alternate.

    python -m tools.compare_speed OLD NEW [SELECTION] [--rounds 15]

It prints each case's median ratio of times, new to old, with a bootstrap 95% interval. A case counts as slower if the
whole interval is above 1.03; the exit status is 1 if any case is slower. It uses one thread, and reads SPECDEC_ISA.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

SLOWER = 1.03
LEAST_SECONDS = 0.05  # one timing is the best call within this time


def rows_cases(sk, torch, rows, dtype):
    z, q = rows(4, dtype=dtype), rows(4, dtype=dtype)
    stats_z, stats_q = sk.row_stats(z), sk.row_stats(q)
    u = torch.full((4, 4), 0.37, dtype=torch.float64)
    yield "row_stats", lambda: sk.row_stats(z)
    yield "row_stats top_k top_p", lambda: sk.row_stats(sk.Rows(z, top_k=50, top_p=0.9))
    yield "sample", lambda: sk.sample(z, k=1, uniforms=u[:, :1].contiguous())
    yield "sample without replacement", lambda: sk.sample(z, k=4, replacement=False, uniforms=u)
    yield "kseq_rho", lambda: sk.kseq_rho(sk.Rows(z, stats=stats_z), sk.Rows(q, stats=stats_q), 4)
    yield "row_gap", lambda: sk.row_gap(sk.Rows(z, stats=stats_z), sk.Rows(q, stats=stats_q))
    p, d = z.float().softmax(-1).to(dtype), q.float().softmax(-1).to(dtype)
    yield "residual", lambda: sk.residual(p, d)


def verify_cases(sk, torch, rows, dtype):
    V = rows.keywords["V"]
    target = rows(10, dtype=dtype).view(2, 5, V)
    draft = (target[:, :4].float() + rows(8, dtype=dtype).float().view(2, 4, V) / 2).to(dtype)
    stats = sk.row_stats(draft.view(-1, V)).view(2, 4, 4)
    top = draft.argmax(-1)
    never, always = (torch.full((2, 5), x, dtype=torch.float64) for x in (1 - 2**-53, 0.0))
    chain = target, top, sk.Rows(draft, stats=stats)
    yield "verify_chain accepts", lambda: sk.verify_chain(*chain, uniforms=always)
    yield "verify_chain rejects", lambda: sk.verify_chain(*chain, uniforms=never)
    yield "verify_chain block", lambda: sk.verify_chain(*chain, uniforms=never, method="block")
    for rule, alpha in (("opt_log", 0.3), ("token_v3", 0.3), ("lossy", 0.2), ("ensemble", 0.5), ("typical", None)):
        ruled = dict(rule=rule, alpha=alpha) if alpha else dict(rule=rule)
        yield f"verify_chain {rule}", lambda r=ruled: sk.verify_chain(*chain, uniforms=never, **r)
    parents = torch.tensor([[-1, 0, 0, 0, 0]] * 2, dtype=torch.int32)
    same = draft[:, :1].expand(2, 5, V).contiguous()
    drawn = sk.Rows(same, stats=sk.row_stats(same.view(-1, V)).view(2, 5, 4))
    tokens = torch.cat([torch.zeros(2, 1, dtype=torch.int64), same[:, 0].float().topk(4).indices], 1)
    u = torch.full((2, 6), 1 - 2**-53, dtype=torch.float64)
    for method in ("kseq", "recursive", "recursive_without_replacement", "target_only", "traversal", "greedy"):
        tree = dict(method=method, max_depth=1, uniforms=u)
        yield f"verify_tree {method}", lambda t=tree: sk.verify_tree((parents, tokens), target, drawn, **t)


def worker(tree: str, selection: str) -> None:
    """Print the names of all cases, then time one case for each line of input."""
    import functools

    import torch

    sys.path.insert(0, tree)
    import specdec_kernels as sk

    assert Path(sk.__file__).is_relative_to(tree), sk.__file__
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)

    def logits(n, V, dtype):
        return (torch.randn(n, V, generator=generator) * 2.5).to(dtype)

    cases = {}
    for V in (151_936, 1_000):
        for dtype in (torch.float32, torch.bfloat16):
            rows = functools.partial(logits, V=V)
            for made in (rows_cases, verify_cases):
                for name, call in made(sk, torch, rows, dtype):
                    cases[f"{name} {V} {str(dtype).removeprefix('torch.')}"] = call
    cases = {name: call for name, call in cases.items() if selection in name}
    for call in cases.values():
        call()
    print(json.dumps(list(cases)), flush=True)
    for line in sys.stdin:
        print(best_time(cases[line.strip()]), flush=True)


def best_time(call) -> float:
    begin, best, calls = time.perf_counter(), float("inf"), 0
    while calls < 3 or time.perf_counter() - begin < LEAST_SECONDS:
        start = time.perf_counter()
        call()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best


def interval(ratios: list[float], resamples: int = 2000) -> tuple[float, float]:
    """Return the bootstrap 95% interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


def compare(trees: list[str], selection: str, rounds: int) -> int:
    """Print a line for each case; return how many are slower."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", tree, selection],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env=environment,
        )
        for tree in trees
    ]
    names = [json.loads(p.stdout.readline()) for p in processes][1]
    times = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            taken = [0.0, 0.0]
            for i in random.sample([0, 1], 2):
                processes[i].stdin.write(name + "\n")
                processes[i].stdin.flush()
                taken[i] = float(processes[i].stdout.readline())
            times[name].append(taken)
    for process in processes:
        process.stdin.close()
        process.wait()
    slower = 0
    for name, taken in times.items():
        ratios = [new / old for old, new in taken]
        low, high = interval(ratios)
        slower += low > SLOWER
        ms = 1e3 * min(new for _, new in taken)
        mark = "  slower" if low > SLOWER else ""
        print(f"{name:55} {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}] {ms:9.3f} ms{mark}")
    print(f"{slower} of {len(times)} cases are slower")
    return slower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("selection", nargs="?", default="", help="a part of the names of the cases")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    trees = [str(Path(tree).resolve()) for tree in (arguments.old, arguments.new)]
    sys.exit(1 if compare(trees, arguments.selection, arguments.rounds) else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:4])
    else:
        main()
