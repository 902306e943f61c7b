# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.sanitize``: every op over small shapes, for compute-sanitizer to watch.

Rows of every dtype, aligned and not; vocabularies of one entry, of less than a chunk, of several chunks and a tail.
Results are only checked for being in range: the tests compare them, this makes the kernels touch every edge.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import torch
import typer

import specdec_kernels as sk
from specdec_kernels.backends import dispatch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# One entry; less than a chunk and odd; one chunk exactly; enough for several blocks of chunks, with a tail.
VOCABULARIES = (1, 77, 1024, 10 * 1024 + 77)
FILTERS = (
    {},
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 50, "top_p": 0.9},
)
B, G = 3, 2


def rows(n: int, V: int, dtype: torch.dtype, device: str, pad: int, seed: int) -> torch.Tensor:
    """[n, V] with a row stride of V + pad: rows begin at any address that the dtype allows. Made on the CPU: no kernels
    but ours."""
    wide = torch.empty(n, V + pad).normal_(0, 3, generator=torch.Generator().manual_seed(seed))
    return wide.to(dtype).to(device)[:, pad:]


def calls(device: str) -> Iterator[tuple[str, object]]:
    """Name and result, one op call each."""
    seed, offset = torch.arange(B).to(device), torch.arange(B).to(device)
    row_seed, row_offset = torch.arange(B * G).to(device), torch.zeros(B * G, dtype=torch.int64).to(device)
    yield "uniforms", sk.uniforms(seed, offset, 7)
    for K, L in ((1, 1), (7, 5), (70, 3)):
        drafts = torch.randint(-1, 3, (B, K, L), generator=torch.Generator().manual_seed(K)).to(device)
        tree = sk.build_tree(drafts)
        yield f"build_tree K={K} L={L}", tree
        for format in ("bool", "additive", "uint8", "uint32", "uint64"):
            for keys in (None, 1, 3 * K * L + 5):
                yield (
                    f"tree_mask {format} K={K} L={L} keys={keys}",
                    sk.tree_mask(tree.parents, offset * 2, format, num_keys=keys),
                )
    for n in (1, 33, 4097):
        p = torch.rand(n, generator=torch.Generator().manual_seed(n)).to(device)
        yield "accept", sk.accept(p, p.flip(0), p.double())
        yield "accept", sk.accept(p, torch.arange(n).sub(1).to(device), p.double())
    for dtype in DTYPES:
        for V in VOCABULARIES:
            for pad in (0, 1):
                where = f"{str(dtype).removeprefix('torch.')} V={V} stride={V + pad}"
                target = rows(B * (G + 1), V, dtype, device, pad, 1).unflatten(0, (B, G + 1))
                flat = rows(B * G, V, dtype, device, pad, 2)
                draft = flat.unflatten(0, (B, G))
                for filters in FILTERS:
                    yield f"row_stats {where} {filters}", sk.row_stats(flat, **filters)
                yield f"sample {where}", sk.sample(flat, seed=row_seed, offset=row_offset)
                k = min(V, 3)
                yield (
                    f"sample k={k} {where}",
                    sk.sample(flat, k=k, replacement=False, top_k=5, seed=row_seed, offset=row_offset),
                )
                p, q = (
                    x.softmax(-1, dtype=torch.float32).to(dtype).to(device)
                    for x in (target[:, 0].cpu(), draft[:, 0].cpu())
                )
                yield f"residual {where}", sk.residual(p, q)
                yield f"residual, ids {where}", sk.residual(p, torch.tensor([0, -1, V - 1]).to(device))
                yield f"kseq_rho {where}", sk.kseq_rho(target[:, 0], draft[:, 0], 4)
                yield f"row_gap {where}", sk.row_gap(target[:, 0], draft[:, 0])
                yield f"row_gap, probabilities {where}", sk.row_gap(p, q, kind="probs")
                yield f"kseq_rho, probabilities {where}", sk.kseq_rho(p, q, 4, kind="probs")
                drawn = sk.sample(flat, seed=row_seed, offset=row_offset)
                yield from steps(where, target, draft, drawn, {"seed": seed, "offset": offset})
                yield from trees(where, V, dtype, device, pad, {"seed": seed, "offset": offset})


def steps(
    where: str, target: torch.Tensor, draft: torch.Tensor, drawn: sk.SampleOutput, randomness: dict
) -> Iterator[tuple[str, object]]:
    """verify_chain in each of its forms: dense, ragged, one-hot, with stats, greedy, filtered, all accepted, bonus by
    the caller."""
    tokens, stats = drawn.tokens.view(B, G), drawn.stats.view(B, G, 4)
    short = torch.tensor([[1, 1], [1, -1], [-1, -1]]).to(tokens.device)
    forms = {
        "no stats": (target, tokens, draft, {}),
        "stats": (target, tokens, draft, {"draft_stats": stats}),
        "filters": (target, tokens, draft, {"draft_stats": stats, "temperature": 0.7, "top_k": 50, "top_p": 0.9}),
        "greedy": (target, tokens, draft, {"temperature": 0.0}),
        "one-hot": (target, tokens, None, {}),
        "short drafts": (target, torch.where(short < 0, short, tokens), draft, {}),
        "all accepted": (target, tokens, target[:, :G], {}),
        "bonus": (target[:, :G], tokens, draft, {"bonus_tokens": tokens[:, 0].clone()}),
    }
    for name, (t, ids, d, arguments) in forms.items():
        yield f"verify_chain {name} {where}", sk.verify_chain(t, ids, d, **arguments, **randomness)
    for method in ("token", "block"):
        for first in (1, 4, 7):  # three codes of laws at a time
            by_rule = {
                "rule": torch.arange(B).to(tokens.device) + first,
                "alpha": torch.full((B,), 0.4).to(tokens.device),
            }
            yield (
                f"verify_chain {method} by rule {first} {where}",
                sk.verify_chain(target, tokens, draft, method=method, **by_rule, **randomness),
            )
    cu_draft = torch.tensor([0, 2, 2, 3]).to(tokens.device)
    ragged_target, ragged_draft = target.flatten(0, 1)[: 3 + B], draft.flatten(0, 1)[:3]
    ragged = sk.verify_chain(
        ragged_target, tokens.flatten()[:3], ragged_draft, cu_draft=cu_draft, max_draft=G, **randomness
    )
    yield f"verify_chain ragged {where}", ragged


def trees(
    where: str, V: int, dtype: torch.dtype, device: str, pad: int, randomness: dict
) -> Iterator[tuple[str, object]]:
    """verify_tree by each method, the drafted tokens likely so that walks go down; filtered; rows and siblings by
    index."""
    tree = sk.build_tree(torch.randint(0, min(V, 3), (B, 3, 2), generator=torch.Generator().manual_seed(4)).to(device))
    N = tree.parents.size(1)
    target, draft = (rows(B * N, V, dtype, "cpu", pad, seed) for seed in (3, 4))
    for x in (target, draft):
        x[:, :3] += 8
    target, draft = (x.to(device).unflatten(0, (B, N)) for x in (target, draft))
    places = torch.arange(N).flip(0).expand(B, N).to(device)
    nodes, chain = (tree.parents, tree.tokens), torch.arange(N).expand(B, N).to(device)
    links = ((chain + 1).where(chain < N - 1, -1), torch.full_like(chain, -1))
    for method in ("kseq", "recursive", "recursive_without_replacement", "target_only", "greedy", "traversal"):
        where_method = f"verify_tree {method} {where}"
        yield where_method, sk.verify_tree(tuple(tree), target, draft, method=method, **randomness)
        yield (
            f"{where_method} filters",
            sk.verify_tree(
                tuple(tree), target, draft, method=method, temperature=0.7, top_k=50, top_p=0.9, **randomness
            ),
        )
        yield (
            f"{where_method} rows by index",
            sk.verify_tree(nodes, target, draft, method=method, target_row=places, draft_row=places, **randomness),
        )
        if method not in ("target_only", "greedy"):
            by_rule = {
                "rule": torch.arange(B).to(device) + 6,
                "alpha": torch.full((B,), 0.4).to(device),
            }  # opt_log, token_v1, token_v2 ...
            yield (
                f"{where_method} by rule",
                sk.verify_tree(tuple(tree), target, draft, method=method, **by_rule, **randomness),
            )
        yield (
            f"{where_method} a chain by links",
            sk.verify_tree((chain - 1, tree.tokens), target, draft, method=method, links=links, **randomness),
        )


def in_range(result: object) -> bool:
    """Every row drew or emitted a token."""
    if isinstance(result, (sk.VerifyChainOutput, sk.VerifyTreeOutput, sk.SampleOutput)):
        return bool((result.tokens[:, 0].cpu() >= 0).all())
    return True


def without_calls(names: Iterable[str]) -> list[str]:
    """The ops that no call is named after."""
    called = {name.split()[0].rstrip(",") for name in names}
    return [op for op in dispatch.ops() if op not in called]


def main(device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda") -> None:
    names, wrong = [], []
    for name, result in calls(device):
        names.append(name)
        if not in_range(result):
            wrong.append(name)
    if device == "cuda":
        torch.cuda.synchronize()
    missing = without_calls(names)
    for name in wrong:
        print("out of range:", name)
    for op in missing:
        print("never called:", op)
    print(f"{len(names)} calls on {device}, {len(wrong)} out of range")
    sys.exit(bool(wrong or missing))


if __name__ == "__main__":
    typer.run(main)
