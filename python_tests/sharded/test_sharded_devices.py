# SPDX-License-Identifier: Apache-2.0
"""Rows on a GPU are sent whole to the ranks that verify them, and only the comparison of arguments waits for the
device. Here the GPU's tensors are CPU tensors that carry a device label (bench/devices.py)."""

import pytest
import torch
from support.ranks import Ranks
from support.sharded_cases import results

from specdec_kernels.distributed.whole_rows import logits_of, with_logits
from specdec_kernels.penalties import Penalties
from specdec_kernels.rows import Rows

B, G, V = 5, 3, 2500


@pytest.fixture(scope="module", params=[1, 2, 4])
def ranks(request):
    group = Ranks(request.param)
    yield group
    group.stop()


def calls(device):
    """Yield (op, arguments) of a step: its draft, its rows' stats, chains (one with out=, one ragged), and a tree."""
    generator = torch.Generator().manual_seed(4)
    on = lambda x: x.to(device)
    p, q = (on(3 * torch.randn(B, n, V, generator=generator)).requires_grad_() for n in (G + 1, G))
    tokens = on(torch.randint(0, V, (B, G), generator=generator))
    seeds = {"seed": on(torch.arange(B)), "offset": on(torch.zeros(B, dtype=torch.int64))}
    filters = {"temperature": on(torch.linspace(0, 1, B)), "top_k": 50}
    ends, ragged = on(torch.tensor([0, 3, 4, 4, 6, 9])), on(torch.randn(9 + B, V, generator=generator))
    parents = on(torch.tensor([-1, 0, 0, 1]))
    links = {"max_depth": 2, "method": "target_only"}
    yield "sample", {"rows": Rows(p[:, 0], **filters), "k": 2, **seeds}
    yield "row_stats", {"rows": Rows(p[:, 0], **filters)}
    ids = on(torch.tensor([[2, 1100, 2400, -1]] * B, dtype=torch.int32))
    view = Penalties(on(torch.linspace(1, 2, B)), presence=1.0, ids=ids, counts=ids.clamp(0))
    both = {"target": Rows(p, **filters, penalties=view), "draft": Rows(q, penalties=view)}
    yield "verify_chain", {"draft_tokens": tokens, **both, **seeds}
    whole = {"target": Rows(p, temperature=0), "draft_tokens": tokens}
    wide, long = torch.empty(B, G + 1), torch.empty(B, G + 1, dtype=torch.int64)
    count, status = torch.empty(2, B, dtype=torch.int32)
    yield "verify_chain", whole | {"out": [on(x) for x in (long, count, wide, status)]}
    chain = {"draft_tokens": tokens.flatten()[:9], "cu_draft": ends, "max_draft": 3}
    chain["num_requests"] = on(torch.tensor([4]))
    yield "verify_chain", {"target": Rows(ragged, **filters), **chain, **seeds}
    nodes = on(torch.randint(0, V, (B, G + 1), generator=generator))
    yield "verify_tree", {"tree": (parents, nodes), "target": Rows(p, **filters), **links, **seeds}


def waits(rank, checked):
    """Return, for each call, its op, where it waited, whether its results are those of whole rows, and the number of
    its rounds."""
    import specdec_kernels as sk
    from bench import devices
    from specdec_kernels import distributed

    found = []
    with devices.watch() as seen:
        for op, args in calls("cuda"):
            shards = distributed.Shards(V, checked=checked)
            rows = "rows" if "rows" in args else "target"
            mine = args | {rows: with_logits(args[rows], logits_of(args[rows])[..., shards.here])}
            seen.synchronisations.clear(), seen.uploads.clear()
            got = results(getattr(distributed, op)(**mine, shards=shards))
            waited = [*seen.synchronisations, *seen.uploads]
            got = [x.clone() for x in got]
            want = results(getattr(sk, op)(**args))
            found.append((op, waited, all(map(torch.equal, got, want)), shards.traffic.rounds))
    return found


def test_nothing_waits_unless_arguments_are_compared(ranks):
    for found in ranks.call(waits, False):
        assert not isinstance(found, Exception), found
        dealt = 2 if 1 < ranks.n <= B else 1
        assert found == [(op, [], True, 1 if "cu_draft" in args else dealt) for op, args in calls("cpu")]


def test_where_arguments_are_compared(ranks):
    for found in ranks.call(waits, True):
        assert not isinstance(found, Exception), found
        assert all(same and waited for _, waited, same, _ in found)
        assert all("distributed/agreement.py" in place for _, waited, _, _ in found for place in waited)


def refused(rank):
    from bench import devices
    from specdec_kernels import distributed

    with devices.watch():
        shards = distributed.Shards(V, exchange="chunks")
        distributed.row_stats(torch.zeros(2, shards.size, device="cuda"), shards=shards)


def test_chunks_are_of_rows_on_the_cpu(ranks):
    for error in ranks.call(refused):
        assert str(error) == "row_stats: rows.logits must be on the CPU where exchange is 'chunks', got cuda:0"


def elsewhere(rank):
    """Call verify_chain on GPU rows. Rank 0 alone passes an `out` on the CPU."""
    from bench import devices
    from specdec_kernels import distributed

    with devices.watch():
        op, args = [call for call in calls("cuda") if "out" in call[1]][0]
        shards = distributed.Shards(V)
        target = args["target"]._replace(logits=args["target"].logits[..., shards.here])
        long, *others = args["out"]
        out = [torch.empty(long.shape, dtype=long.dtype) if rank == 0 else long, *others]
        getattr(distributed, op)(**args | {"target": target, "out": out}, shards=shards)


def test_results_are_asked_for_where_the_rows_are(ranks):
    first, *others = ranks.call(elsewhere)
    assert str(first).startswith("verify_chain.out: expected all tensors on one device, got cuda")
    for error in others:
        assert str(error) == "verify_chain: all ranks must be able to make the call, got an error on rank 0"
