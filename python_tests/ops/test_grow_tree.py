# SPDX-License-Identifier: Apache-2.0
"""grow_tree against a search over all prefix-closed sets, and node for node against the reference. Results are
integers, so they must be equal on every backend."""

import contextlib
import functools
import itertools
import math
import random

import pytest
import torch
from support import answers as reference
from support import backends, tiers
from support.grow_tree_mutants import SOURCES
from support.worker import Worker

import specdec_kernels as sk
from tools.cuda_on_cpu.build import CSRC
from tools.cuda_on_cpu.mutants import mutate

NAN, INF = math.nan, math.inf


def grown(backend, log_q, tokens, nodes):
    return backends.run("grow_tree", backend, log_q, tokens, nodes)


def same(got, want):
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(got[:2], want[:2]))


def check(backend, log_q, tokens, nodes):
    got, want = grown(backend, log_q, tokens, nodes), reference.grow_tree(log_q, tokens, nodes)
    assert same(got, want), f"got {got[:2]}, wanted {want[:2]} for {log_q}, {tokens}"
    return got


def distinct(B, L, K):
    return torch.arange(K).expand(B, L, K)


def candidates(rng, B, L, K):
    """Return random log_q and tokens: steep or flat, some rounded so that sums tie, some invalid."""
    g = torch.Generator().manual_seed(rng.getrandbits(32))
    log_q = torch.randn(B, L, K, generator=g) * rng.choice((0.0, 0.5, 2.0, 30.0))
    log_q = log_q.log_softmax(-1) if K else log_q
    if rng.random() < 0.4:
        log_q = (log_q * 2).round() / 2
    tokens = torch.randint(rng.choice((0, -1)), rng.choice((3, 100, 1 << 24)), (B, L, K), generator=g)
    for _ in range(rng.choice((0, 0, 3)) if log_q.numel() else 0):
        at = rng.randrange(log_q.numel())
        log_q.view(-1)[at] = rng.choice((NAN, INF, -INF, 0.0, -0.0, 1e-30, 0.5, -1e-45, -3e38))
        tokens.view(-1)[at] = rng.choice((0, -1, 1 << 24, (1 << 24) - 1, 1 << 32, -(2**63), 2**63 - 1))
    return log_q, tokens if rng.random() < 0.5 else tokens.clamp(-(2**31), 2**31 - 1).int()


# ---- the best tree --------------------------------------------------------------------------------------------------


def prefix_closed(paths, nodes):
    """Yield every prefix-closed set of `nodes` of these paths. Paths are tuples, shorter ones first."""

    def extend(chosen, begin):
        if len(chosen) == nodes:
            yield chosen
            return
        for i in range(begin, len(paths)):
            if len(paths[i]) == 1 or paths[i][:-1] in chosen:
                yield from extend(chosen | {paths[i]}, i + 1)

    yield from extend(frozenset(), 0)


def best_total(probs, nodes):
    """Return the largest sum of path probabilities of a prefix-closed set of `nodes` nodes, by dynamic programming over
    how many of them are below each child. probs: [L][K]."""

    @functools.cache
    def below(level, n):
        if n == 0:
            return 0.0
        if level == len(probs):
            return -INF
        best = [0.0] + [-INF] * n
        for p in probs[level]:
            own = [0.0] + [p * (1 + below(level + 1, m - 1)) for m in range(1, n + 1)]
            best = [max(best[m - i] + own[i] for i in range(m + 1)) for m in range(n + 1)]
        return best[n]

    return below(0, nodes)


def total(tree, probs, b=0):
    """Return the sum of a tree's path probabilities, and its number of nodes without the root. Tokens are the
    candidates' indices."""
    parents, tokens = tree.parents[b].tolist(), tree.tokens[b].tolist()
    reach, depth, sum_ = [1.0], [0], 0.0
    for parent, token in zip(parents[1:], tokens[1:]):
        if parent < 0:
            break
        depth.append(depth[parent] + 1)
        reach.append(reach[parent] * probs[depth[-1] - 1][token])
        sum_ += reach[-1]
    return sum_, len(reach) - 1


def test_the_search_over_sets_is_exhaustive():
    """The dynamic program finds what enumerating every set finds."""
    rng = random.Random(1)
    for L, K, nodes in ((1, 4, 3), (2, 2, 4), (2, 3, 5), (3, 2, 5), (3, 3, 4), (4, 2, 5)):
        probs = [[rng.random() / K for _ in range(K)] for _ in range(L)]
        paths = [path for depth in range(1, L + 1) for path in itertools.product(range(K), repeat=depth)]
        value = {path: math.prod(probs[level][k] for level, k in enumerate(path)) for path in paths}
        every = [sum(value[path] for path in chosen) for chosen in prefix_closed(paths, nodes)]
        assert len(every) > 3 and math.isclose(max(every), best_total(probs, nodes), rel_tol=1e-12)


@pytest.mark.parametrize("L, K", [(L, K) for L in range(1, 5) for K in range(1, 5)])
def test_no_prefix_closed_set_is_better(backend, L, K):
    g = torch.Generator().manual_seed(10 * L + K)
    log_q = (torch.randn(4, L, K, generator=g) * torch.tensor([0.2, 1.0, 3.0, 3.0])[:, None, None]).log_softmax(-1)
    paths = sum(K**depth for depth in range(1, L + 1))
    for nodes in sorted({2, 3, 5, 9, 16, 31, 1 + paths} & {*range(2, min(2 + paths, 60))}):
        tree = grown(backend, log_q, distinct(4, L, K), nodes)
        for b in range(4):
            probs = log_q[b].double().exp().tolist()
            got, n = total(tree, probs, b)
            # Nodes whose float32 scores tie may replace each other. A score is rounded L times.
            assert n == nodes - 1 and math.isclose(got, best_total(probs, nodes - 1), rel_tol=L * 2.0**-22)


# ---- node for node --------------------------------------------------------------------------------------------------


def test_agrees_with_the_reference(backend):
    rng, cases = random.Random(5), 0
    fewer = 5 if backend == "triton-interpret" and tiers.TIER != "all" else 1
    while cases < backends.scale(10_000 // fewer, backend, least=60):
        B = min(40, backends.scale(40, backend, least=6))
        L, K = rng.choice((1, 2, 3, 4, 7, 15)), rng.choice((1, 2, 3, 4, 8, 20))
        check(backend, *candidates(rng, B, L, K), rng.choice((1, 2, 3, 8, 17, 32, 33, 64)))
        cases += B


@pytest.mark.parametrize("L, K, nodes", [
    (1023, 1, 1024),  # a chain
    (1, 4096, 1024),  # one level
    (4, 1024, 200),
    (64, 64, 1024),
    (5000, 2, 12),  # levels that no node reaches are not read
])  # fmt: skip
@pytest.mark.slow_in_triton
def test_largest(backend, L, K, nodes):
    g = torch.Generator().manual_seed(nodes)
    log_q = torch.randn(1, L, K, generator=g).log_softmax(-1)
    tree = check(backend, log_q, torch.randint(0, 1 << 24, (1, L, K), generator=g), nodes)
    assert (tree.parents[0, 1:] >= 0).all()


def test_by_hand(backend):
    log_q = torch.tensor([[[0.25, 0.5], [0.125, 0.75]]]).log()
    tree = grown(backend, log_q, torch.tensor([[[5, 6], [7, 8]]]), 9)
    # path probabilities: (6) .5, (6, 8) .375, (5) .25, (5, 8) .1875, (6, 7) .0625, (5, 7) .03125
    assert tree.tokens.tolist() == [[-1, 6, 8, 5, 8, 7, 7, -1, -1]]
    assert tree.parents.tolist() == [[-1, 0, 1, 0, 3, 1, 3, -1, -1]]
    assert tree.multiplicity is None and tree.draft_nodes is None


def test_ties_by_hand(backend):
    """Nodes of equal score come in the order of their depth, then of their rank in the level, then of their parent."""
    flat = torch.zeros(1, 2, 2)
    tree = grown(backend, flat, torch.tensor([[[4, 3], [2, 1]]]), 7)
    assert tree.tokens.tolist() == [[-1, 4, 3, 2, 2, 1, 1]] and tree.parents.tolist() == [[-1, 0, 0, 1, 2, 1, 2]]
    # A chain of probability 1 comes before everything else.
    tree = grown(backend, torch.tensor([[[0.0, -1], [-0.0, -1]]]), torch.tensor([[[4, 3], [2, 1]]]), 5)
    assert tree.tokens.tolist() == [[-1, 4, 2, 3, 2]] and tree.parents.tolist() == [[-1, 0, 1, 0, 3]]


def test_scores_are_float32_sums_from_the_root(backend):
    """2^24 + 1 has no float32, so the second level's costs vanish in the sums, and depth decides."""
    log_q = torch.tensor([[[-(2.0**24), -(2.0**24) - 2], [-0.5, -1.0]]])
    tree = grown(backend, log_q, distinct(1, 2, 2), 5)
    assert tree.parents.tolist() == [[-1, 0, 1, 1, 0]] and tree.tokens.tolist() == [[-1, 0, 0, 1, 1]]


def test_a_smaller_tree_is_the_beginning_of_a_larger_one(backend):
    args = candidates(random.Random(3), 5, 4, 5)
    large = grown(backend, *args, 40)
    for nodes in (1, 2, 7, 39):
        assert same(grown(backend, *args, nodes), [x[:, :nodes] for x in large[:2]])


# ---- bad data -------------------------------------------------------------------------------------------------------

GOOD = [[-1.0, -2.0, -3.0], [-0.5, -1.5, -2.5]]
OUT = {  # values for the best candidate of the first level, which is then left out
    "above 0": (0.1, 0), "infinite": (INF, 0), "NaN": (NAN, 0), "of probability 0": (-INF, 0),
    "negative": (-1.0, -1), "very negative": (-1.0, -(2**63)), "too large": (-1.0, 1 << 24),
    "0 in its lower half": (-1.0, 1 << 32),
}  # fmt: skip


@pytest.mark.parametrize("name", OUT)
def test_what_is_no_candidate_is_left_out(backend, name):
    log_q, tokens = torch.tensor([GOOD, GOOD]), distinct(2, 2, 3).clone()
    log_q[0, 0, 0], tokens[0, 0, 0] = OUT[name]
    tree = grown(backend, log_q, tokens, 10)
    assert tree.tokens[0].tolist() == [-1, 1, 0, 2, 0, 1, 1, 2, 2, -1]  # scores -2, -2.5, -3, -3.5, -3.5 ...
    assert same([x[1:] for x in tree[:2]], grown(backend, log_q[1:], tokens[1:], 10))
    log_q[0, 1], tokens[0, 1] = OUT[name]  # a level without candidates ends the tree
    assert grown(backend, log_q, tokens, 10).parents[0].tolist() == [-1, 0, 0] + [-1] * 7


def test_a_repeated_token_is_one_child(backend):
    """Of candidates with the same token the likeliest is kept, or the first if they are equal. An invalid candidate
    does not count as a repeat."""
    log_q = torch.tensor([[[-2.0, -1.0, -3.0, -1.0, NAN]]])
    tree = grown(backend, log_q, torch.tensor([[[7, 7, 8, 9, 8]]]), 6)
    assert tree.tokens.tolist() == [[-1, 7, 9, 8, -1, -1]]
    check(backend, log_q, torch.tensor([[[7, 7, 8, 9, 8]]]), 6)


def test_sums_that_overflow_are_no_nodes(backend):
    tree = check(backend, torch.full((1, 3, 1), -3e38), distinct(1, 3, 1), 4)
    assert tree.parents.tolist() == [[-1, 0, -1, -1]]


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
def test_nothing_to_grow(backend, shape):
    for nodes in (1, 4):
        tree = check(backend, torch.zeros(shape), torch.zeros(shape, dtype=torch.int64), nodes)
        assert tree.parents.shape == (shape[0], nodes) and (tree.parents == -1).all() and (tree.tokens == -1).all()


def test_strides_and_batch_mates(backend):
    log_q, tokens = candidates(random.Random(8), 4, 3, 5)
    want = grown(backend, log_q, tokens, 20)
    padded = torch.full((4, 5, 12), 0.25)
    padded[:, 1:4, ::2][..., :5] = log_q
    turned = tokens.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert same(grown(backend, padded[:, 1:4, ::2][..., :5], turned, 20), want)
    for b in range(4):
        assert same(grown(backend, log_q[b : b + 1], tokens[b : b + 1], 20), [x[b : b + 1] for x in want[:2]])
    assert same(grown(backend, log_q[:1].expand(3, -1, -1), tokens[:1].expand(3, -1, -1), 20),
                [x[:1].expand(3, -1) for x in want[:2]])  # fmt: skip


def test_bad_arguments(op_backend):
    log_q, tokens = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4, dtype=torch.int64)
    wrong = [
        ((log_q.double(), tokens, 5), "log_q must be float32, got float64"),
        ((log_q[0], tokens, 5), r"log_q must have shape \[B, L, K\], got \[3, 4\]"),
        ((log_q, tokens[:, :2], 5), r"tokens must have shape \[B=2, L=3, K=4\], got \[2, 2, 4\]"),
        ((log_q, log_q, 5), "tokens must be int32 or int64, got float32"),
        ((log_q, tokens, 0), r"nodes must be in \[1, 1024\], got 0"),
        ((log_q, tokens, 1025), r"nodes must be in \[1, 1024\], got 1025"),
        ((log_q[:, :1, :1].expand(2, 9, 1000), tokens[:, :1, :1].expand(2, 9, 1000), 6),
         r"log_q must hold at most 4096 candidates in the first nodes - 1 = 5 levels, got 5 levels of 1000"),
    ]  # fmt: skip
    for args, message in wrong:
        with pytest.raises(ValueError, match=f"^grow_tree: {message}$"):
            grown(op_backend, *args)
    for args, message in (((log_q, [1], 5), "tokens must be a torch.Tensor, got list"),
                          ((log_q, tokens, 2.5), "nodes must be an int, got float")):  # fmt: skip
        with pytest.raises(TypeError, match=f"^grow_tree: {message}"):
            grown(op_backend, *args)


# ---- with verification ----------------------------------------------------------------------------------------------


def test_verified_by_target_only_the_output_follows_the_target():
    """The first two tokens of 40,000 requests with one tree, against the target's joint distribution."""
    B, g = 40_000, torch.Generator().manual_seed(2)
    log_q = (torch.randn(1, 2, 3, generator=g)).log_softmax(-1)
    tree = sk.grow_tree(log_q.expand(B, 2, 3), distinct(B, 2, 3), 6)
    p, after = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])
    rows = torch.stack([p if token < 0 else after[token] for token in tree.tokens[0].tolist()]).log()
    rng = dict(seed=torch.arange(B), offset=torch.zeros(B, dtype=torch.int64))
    out = sk.verify_tree(tree, rows.expand(B, 6, 3), method="target_only", **rng)
    first, both = out.tokens[:, 0], out.tokens[out.num_accepted > 0]
    assert (out.num_accepted > 0).float().mean() > 0.5
    for got, want, n in [(first, p, B)] + [
        (both[both[:, 0] == v, 1], after[v], int((both[:, 0] == v).sum())) for v in range(3)
    ]:
        if n:
            assert ((got.bincount(minlength=3) / n - want).abs() < 5 * (want * (1 - want) / n).sqrt()).all()


# ---- mutants --------------------------------------------------------------------------------------------------------


def with_kernels_of(csrc, calls):
    from tools.cuda_on_cpu.build import load

    load("fast", csrc, ("grow_tree",))
    return [backends.public("grow_tree", *args) for args in calls]


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [None, *SOURCES])
def test_a_wrong_line_is_caught(mutant):
    rng = random.Random(4)
    calls = [(*candidates(rng, 6, L, K), nodes) for L, K, nodes in ((3, 4, 9), (2, 8, 90), (6, 3, 120))]
    flat = torch.zeros(1, 3, 3), distinct(1, 3, 3), 30
    calls += [flat, (torch.full((1, 3, 2), -3e38), distinct(1, 3, 2), 9)]
    for log_q, token in OUT.values():
        calls.append((torch.tensor([[[-0.5, log_q, -2.0]]]), torch.tensor([[[1, token, 2]]]), 5))
    worker = Worker("mutant", {"OMP_NUM_THREADS": "1"})
    csrc = mutate(CSRC, *SOURCES[mutant]) if mutant else CSRC
    # A mutant that reads or writes elsewhere may end its process.
    with contextlib.nullcontext() if mutant is None else pytest.raises((AssertionError, ChildProcessError)):
        for got, args in zip(worker.call(with_kernels_of, csrc, calls), calls):
            assert same(got, reference.grow_tree(*args))
    worker.process.terminate()
