# SPDX-License-Identifier: Apache-2.0
"""Communication of a step whose vocabulary is split over ranks: counted rounds and bytes, against gathering the rows.

    python -m bench.sharded                      # 2, 4, 8 and 16 ranks, as processes on this machine
    python -m bench.sharded --ranks 4 --aligned  # slices of whole chunks

A round is a collective that waits for the one before. The comparison of arguments between ranks is off; it would take
one more round, or two if whole rows are moved. The times on a link are computed, not measured: rounds times latency,
plus the bytes that a rank takes part in divided by the bandwidth, with the numbers of `LINKS`.
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich import box
from rich.console import Console
from rich.table import Table

import specdec_kernels as sk
from specdec_kernels import distributed
from specdec_kernels.registry import CHUNK

V, B, G = 151_936, 8, 5
SETTINGS = {
    "greedy": dict(temperature=0.0),
    "T = .8, draft's stats at hand": dict(temperature=0.8),
    "T = .8": dict(temperature=0.8),
    "T = .8, block": dict(temperature=0.8),
    "top-k 50": dict(temperature=0.8, top_k=50),
    "top-p .9": dict(temperature=0.8, top_p=0.9),
    "top-k 50, top-p .9": dict(temperature=0.8, top_k=50, top_p=0.9),
}
WHOLE_ROWS = "whole rows, dealt out"  # its cost is the same for all settings
LINKS = {"NVLink": (10e-6, 300e9), "PCIe": (20e-6, 25e9), "100 Gb/s": (40e-6, 12e9)}  # seconds per round, bytes/s


def bounds(ranks, aligned):
    if not aligned:
        return ()
    chunks = -(-V // CHUNK)
    return (*(chunks * r // ranks * CHUNK for r in range(ranks)), V)


def rows(seed, peaked=3.0):
    """Return rows of the target and of a similar draft, the draft's stats, and drafts; equal on every rank."""
    generator = torch.Generator().manual_seed(seed)
    p = peaked * torch.randn(B, G + 1, V, generator=generator)
    q = p[:, :G] + torch.randn(B, G, V, generator=generator)
    p, q = p.bfloat16(), q.bfloat16()
    drawn = sk.sample(
        sk.Rows(q.flatten(0, 1), temperature=0.8), seed=torch.arange(B * G), offset=torch.zeros(B * G).long()
    )
    return p, q, drawn.rows.stats.view(B, G, 4), drawn.tokens.view(B, G)


def split(name, ranks, aligned, checked=True):
    exchange = "rows" if name == WHOLE_ROWS else "chunks"
    return distributed.Shards(V, bounds(ranks, aligned), exchange=exchange, checked=checked)


def step(name, given, shards):
    """Make one call, with whole draft rows on every rank; return its traffic."""
    p, q, stats, tokens = given
    target = sk.Rows(p[..., shards.here], **SETTINGS.get(name, SETTINGS["T = .8"]))
    draft = sk.Rows(q, stats=stats) if "at hand" in name else sk.Rows(q, temperature=0.8)
    seeds = dict(seed=torch.arange(B), offset=torch.zeros(B, dtype=torch.int64))
    method = "block" if "block" in name else "token"
    distributed.verify_chain(target, tokens, draft, shards=shards, method=method, **seeds)
    return shards.traffic


def serve(rank, ranks, store, aligned, found):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    given = rows(0)
    for name in (*SETTINGS, WHOLE_ROWS):
        traffic = step(name, given, split(name, ranks, aligned, checked=False))
        if rank == 0:
            found[name] = (traffic.rounds, traffic.gathered, traffic.moved)
    dist.destroy_process_group()


def count(ranks, aligned) -> dict:
    """Return {setting: (rounds, bytes gathered, bytes moved)} of a step."""
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        found = manager.dict()
        mp.spawn(serve, (ranks, os.path.join(folder, "store"), aligned, found), nprocs=ranks)
        return dict(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--aligned", action="store_true", help="slices begin at multiples of 1,024")
    args = parser.parse_args()
    whole = B * (G + 1) * V * 2
    table = Table(
        title=f"verify_chain, {B} requests, {G} drafts, V = {V:,}, bfloat16", box=box.SIMPLE_HEAD, padding=(0, 1)
    )
    for head in ("ranks", "", "rounds", "bytes", "of the rows", *(f"{link}, us" for link in LINKS)):
        table.add_column(head, justify="left" if head == "" else "right")
    for ranks in args.ranks:
        for name, (rounds, gathered, moved) in {"gather the rows": (1, whole, 0), **count(ranks, args.aligned)}.items():
            sent, of_rank = gathered + moved, gathered + moved / ranks
            times = (f"{1e6 * (rounds * latency + of_rank / speed):,.0f}" for latency, speed in LINKS.values())
            table.add_row(str(ranks), name, str(rounds), f"{sent:,}", f"{sent / whole:.2%}", *times)
        table.add_section()
    Console(width=max(100, Console().width)).print(table)


if __name__ == "__main__":
    main()
