# SPDX-License-Identifier: Apache-2.0
"""The path that a call takes on a GPU. Results are the same on every path. These tests run on the simulated device."""

import contextlib
import os

import pytest
import torch
from support import backends, flat

from tools.gpu_model import calls
from tools.machine_code.gpus import GPUS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("cuda-on-cpu" not in backends.NAMES, reason="cuda-on-cpu was not asked for"),
]

G = 5
SMALL, LARGE = ["scan_positions", "verify_positions"], ["judge_rows", "finish_requests"]


@contextlib.contextmanager
def launches(module):
    """A context that collects the names of the launched kernels."""
    module.reset()
    found = []
    yield found
    found += [kernel.split("<")[0] for kernel, _ in module.launches()]


def chain(B, V=1500):
    """Return rows that accept about two drafts in three. The first B requests are the same whatever their number."""
    g = torch.Generator().manual_seed(1)
    target = 2 * torch.randn(64, G + 1, V, generator=g)
    draft = (target[:, :G] + torch.randn(64, G, V, generator=g)).bfloat16()
    tokens = torch.multinomial(draft.float().softmax(-1).flatten(0, 1), 1, generator=g).view(64, G)
    uniforms = torch.rand(64, G + 1, generator=g, dtype=torch.float64)
    return {"target_logits": target[:B].bfloat16(), "draft_tokens": tokens[:B], "draft_logits": draft[:B],
            "uniforms": uniforms[:B]}  # fmt: skip


def by_batch_size():
    """Return kernels and results of a batch that just fits the path of few positions, and of one with one request more,
    with and without draft rows."""
    import specdec_kernels as sk
    from tools.cuda_on_cpu.build import load

    module, found = load("fast"), []
    most = calls.FEW_POSITIONS // (G + 1)
    for B in (most, most + 1):
        args = chain(B)
        with launches(module) as kernels:
            rows = flat.call(sk.verify_chain, **args)
        hot = flat.call(sk.verify_chain, **{name: x for name, x in args.items() if name != "draft_logits"})
        found.append((kernels, [list(rows), list(hot)]))
    return found


def test_a_batch_goes_the_way_of_few_positions_up_to_their_number():
    (few, small), (many, large) = backends.there("cuda-on-cpu", by_batch_size)
    assert few == SMALL and many == LARGE
    for answers, others in zip(small, large):
        for x, y in zip(answers, others):
            assert torch.equal(x, y[: len(x)])
    assert small[0][1].unique().numel() > G // 2 + 1  # requests stop in many places


def with_stats_of_no_row(simulated):
    """Return, for each path, the status of requests whose target stats are marked as those of greedy rows. Most of
    these stats name a token that is no id."""
    import specdec_kernels as sk
    from tools.cuda_on_cpu.build import load

    if simulated:
        load("fast")
    found, g = [], torch.Generator().manual_seed(3)
    target, draft = torch.randn(4, 2, 1500, generator=g), torch.randn(4, 1, 1500, generator=g)
    stats = sk.row_stats(target.flatten(0, 1)).view(4, 2, 4)
    stats[:, 0, 0] = float("inf")
    stats[:, 0, 2] = torch.tensor([float("inf"), -1.0, 1e9, 7.0])
    args = {"target_logits": target, "draft_tokens": torch.full((4, 1), 7), "target_stats": stats,
            "uniforms": torch.full((4, 2), 0.5, dtype=torch.float64)}  # fmt: skip
    drafts = [draft, draft * float("nan"), None]
    for path in ("", "streaming"):
        os.environ["SPECDEC_CUDA_PATH"] = path
        found.append([flat.call(sk.verify_chain, **args, draft=x).status for x in drafts])
    os.environ["SPECDEC_CUDA_PATH"] = ""
    return found


def test_stats_of_no_row_are_taken_alike_on_every_way():
    """A row is greedy iff its stats name one of its ids. Only then is its draft's row not read."""
    small, large = backends.there("cuda-on-cpu", with_stats_of_no_row, True)
    _, cpu = with_stats_of_no_row(False)
    for found in zip(small, large, cpu):
        assert found[0].tolist() == found[1].tolist() == found[2].tolist()


def tree(B, method, V=700):
    """Return a batch of trees of five nodes. The first B requests are the same whatever their number."""
    g = torch.Generator().manual_seed(2)
    target, draft = (torch.randn(32, 5, V, generator=g).bfloat16() for _ in range(2))
    parents, tokens = torch.tensor([-1, 0, 0, 1, 1]).expand(B, 5), torch.randint(0, V, (32, 5), generator=g)
    uniforms = torch.rand(32, 10, generator=g, dtype=torch.float64)[:, : 5 + (method != "greedy")]
    how = {"target_logits": target[:B], "draft_logits": draft[:B], "uniforms": uniforms[:B]}
    return {"tree": (parents, tokens[:B]), "method": method} | how


def widths():
    """Return the number of blocks per cluster, by call and batch, and whether each batch gives the same results as one
    with another number. The SMs of this device are grouped as in an H200."""
    import specdec_kernels as sk
    from tools.cuda_on_cpu.build import load

    module, found, same = load("fast"), {}, []
    gpu = GPUS["H200"]
    pair = [torch.randn(33, 400, generator=torch.Generator().manual_seed(i)).softmax(-1) for i in (0, 1)]
    wide = [torch.randn(1, 6 * 1024, generator=torch.Generator().manual_seed(i)).softmax(-1) for i in (0, 1)]
    calls = {  # name -> (batches, the call of one)
        "verify_tree": ((32, 31, 16, 15), lambda B: flat.call(sk.verify_tree, **tree(B, "recursive"))),
        "kseq_rho": ((33, 16, 15), lambda N: sk.kseq_rho(*(x[:N] for x in pair), 3)),
        "kept": ((63, 62, 16), lambda N: sk.kseq_rho(*(x.expand(N, -1) for x in wide), 3)),
    }
    try:
        for name, (batches, call) in calls.items():
            room = 28 * 1024 if name == "kept" else 227 * 1024  # for two chunks of a pair per block, not three
            module.set_device(gpu.sms, 9, 0, shared=room, groups=gpu.gpcs)
            os.environ["SPECDEC_CUDA_PATH"] = "streaming" if name != "kept" else "cluster"
            alone = call(batches[0] if name != "kept" else 1)  # its rows are all equal
            os.environ["SPECDEC_CUDA_PATH"] = ""
            for n in batches:
                module.reset()
                clusters = call(n)
                found[name, n] = module.launches()[-1][1] // n
                rows = [x.expand(n, *x.shape[1:]) if name == "kept" else x[:n] for x in alone]
                same.append(all(torch.equal(x, y) for x, y in zip(clusters, rows)))
    finally:
        os.environ["SPECDEC_CUDA_PATH"] = ""
        module.set_device(4, 9, 0)
    return found, same


def test_clusters_are_as_wide_as_fit_at_once():
    """132 SMs hold 15 clusters of 8 blocks and 31 of 4, not 16 and 33. So 16 requests have 4 blocks each."""
    gpcs = GPUS["H200"].gpcs
    assert [sum(sms // size for sms in gpcs) for size in (2, 4, 8)] == [66, 31, 15] and sum(gpcs) == GPUS["H200"].sms
    found, answers = backends.there("cuda-on-cpu", widths)
    assert all(answers)
    assert found == {
        ("verify_tree", 15): 8,
        ("verify_tree", 16): 4,
        ("verify_tree", 31): 4,
        ("verify_tree", 32): 2,
        ("kseq_rho", 15): 8,
        ("kseq_rho", 16): 4,
        ("kseq_rho", 33): 2,
        # Six chunks of both rows fit the shared memory of 4 blocks, but not of 2. Clusters of 4 are used as long as two
        # rounds of them suffice, for up to 62 pairs.
        ("kept", 16): 4,
        ("kept", 62): 4,
        ("kept", 63): 2,
    }
