# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel example: the demo's target with its output layer split over processes.

Each rank runs the decoder layers and the draft model, computes its own slice of the target's logits, and verifies
together with the others. With the default exchange no process has a whole row of the target's logits. The text equals
that of a single process.

python examples/tensor_parallel.py
python examples/tensor_parallel.py --ranks 4 --temperature 0.8 --top-p 0.9
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from specdec_kernels import decode, distributed
from specdec_kernels.decode.models.packed_linear import PackedLinear

DRAFT = Path(__file__).parents[1] / "demo" / "draft"


@dataclass(frozen=True, eq=False)
class ShardedDraft(decode.Draft):
    """A chain of drafts whose target rows are split over ranks."""

    shards: distributed.Shards | None = None

    def verify(self, logits, batch, method, row):
        (target, draft), given = self.sides(logits, batch, row), batch.rules | batch.randomness
        return distributed.verify_chain(target, self.tokens, draft, method=method, shards=self.shards, **given)


class OverRanks(decode.Drafter):
    """A drafter of another drafter's chains, which are then verified over ranks.

    All ranks must draft the same tokens, so draft lengths must not depend on timings (no gamma="auto").
    """

    over_ranks = True

    def __init__(self, drafter, shards):
        self.drafter, self.parts, self.shards = drafter, (drafter,), shards
        self.num_lookahead, self.rules, self.verifies = drafter.num_lookahead, drafter.rules, drafter.verifies
        self.draws_viewed = drafter.draws_viewed

    def propose(self, batch):
        draft = self.drafter.propose(batch) or decode.Draft.nothing(batch)
        return ShardedDraft(draft.tokens, draft.rows, draft.viewed, self.shards)

    def observe(self, outcome):
        self.drafter.observe(outcome)


def split_output_layer(target, shards):
    """Keep only this rank's rows of the output layer, whose weights are the embedding's (tied)."""
    target.head = PackedLinear(target.embed[shards.here])


def text(args, shards=None) -> str:
    pair = decode.load_pair("smollm2", str(DRAFT), torch.float32)
    drafter = decode.ModelDrafter(pair.draft, 4)
    if shards is not None:
        split_output_layer(pair.target, shards)
        drafter = OverRanks(drafter, shards)
    prompt = pair.tokenizer(args.prompt)["input_ids"]
    sampling = dict(temperature=args.temperature, top_p=args.top_p, seed=7)
    request = decode.Request(prompt, max_new_tokens=args.tokens, eos=pair.eos, **sampling)
    return pair.tokenizer.decode(decode.generate(pair.target, [request], drafter).check().results[0].tokens)


def serve(rank, args, store, found):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.ranks)
    shards = distributed.Shards(49_152, exchange=args.exchange)
    found[rank] = text(args, shards)
    if rank == 0:
        traffic, five_rows = shards.traffic, 5 * 49_152 * 4
        each = f"{traffic.rounds / traffic.calls:.1f} rounds and {traffic.bytes / traffic.calls:,.0f} bytes each"
        print(f"{traffic.calls} steps, {each}; gathering five rows would be {five_rows:,} bytes")
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--exchange", choices=("chunks", "rows"), default="chunks")
    parser.add_argument("--prompt", default="def fibonacci(n):")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=1.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        found = manager.dict()
        mp.spawn(serve, (args, str(Path(folder) / "store"), found), nprocs=args.ranks)
        texts = set(found.values())
    torch.set_num_threads(1)
    alone = text(args)
    print(args.prompt + alone)
    print(f"{args.ranks} ranks and one process: {'the same text' if texts == {alone} else 'NOT the same text'}")


if __name__ == "__main__":
    main()
