# SPDX-License-Identifier: Apache-2.0
"""Races: the emitted token depends on the row, the seed and the absolute position, but not on the draft."""

import itertools
import math

import numpy as np
import pytest
import torch
from support import answers as reference
from support import backends, cases, checks, flat, races, tiers, tree_checks

import specdec_kernels as sk
from specdec_kernels import theory
from specdec_kernels.reference.race import keys_of, noise_of
from specdec_kernels.testing import check_counts

P, Q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
MATCH = (0.2, 0.3, 0.193548387)  # chance that token i wins the races on p and on q
TWO = 0.878990902  # chance that p's winner is first or second on q
SERVED = [name for name in backends.NAMES if backends.serves(name, "sample", {"race": True})]
SIMULATED = 20_000 if tiers.TIER == "all" else 4_000  # races on a simulated device


@pytest.fixture(params=SERVED or [pytest.param("cpu", marks=pytest.mark.skip(reason="no backend with the race"))])
def racer(request):
    if backends.why_not(request.param):
        pytest.skip(backends.why_not(request.param))
    return request.param


def rows(p, n):
    return p.log().expand(n, -1)


def won(backend, rows, **how):
    return backends.run("sample", backend, rows=rows, race=True, **how)


# ---- golden numbers and distributions -------------------------------------------------------------------------------


def match_of(p, q, i):
    """Return the chance that token i wins both races, by the definition."""
    return 1 / sum(max(a / p[i], b / q[i]) for a, b in zip(p, q))


def test_theory_has_the_goldens():
    p, q = (torch.tensor(x, dtype=torch.float64) for x in ((0.5, 0.3, 0.2), (0.2, 0.5, 0.3)))
    assert theory.race_acceptance(p, q).item() == pytest.approx(0.693548387, abs=1e-9)
    for i, golden in enumerate(MATCH):
        assert match_of([0.5, 0.3, 0.2], [0.2, 0.5, 0.3], i) == pytest.approx(golden, abs=1e-9)


@pytest.mark.parametrize("V, Vq", [(1, 1), (5, 5), (40, 40), (7, 12), (12, 7)])
def test_theory_is_the_double_sum(V, Vq):
    """race_acceptance equals the double sum, and lies between its bounds. Some rows have zeros or equal ratios p / q,
    and vocabularies differ in size."""
    rng = np.random.default_rng(V)
    for _ in range(30):
        p, q = rng.dirichlet(np.ones(V)), rng.dirichlet(np.ones(Vq))
        p, q = (np.round(x, 2) if rng.random() < 0.5 else np.where(rng.random(len(x)) < 0.3, 0, x) for x in (p, q))
        if not (p.sum() > 0 and q.sum() > 0):
            continue
        p, q = p / p.sum(), q / q.sum()
        wide = max(V, Vq)
        a, b = np.pad(p, (0, wide - V)), np.pad(q, (0, wide - Vq))
        want = sum(match_of(a, b, i) for i in range(wide) if a[i] > 0 and b[i] > 0)
        got = theory.race_acceptance(torch.tensor(p), torch.tensor(q)).item()
        assert got == pytest.approx(want, abs=1e-12)
        tv = np.abs(a - b).sum() / 2
        assert (1 - tv) / (1 + tv) - 1e-12 <= got <= 1 - tv + 1e-12


def test_the_reference_noise_follows_its_formula():
    """The noise of token x at position t is g = -ln(-ln u), with u = (floor(u53 * 2^52) + 1/2) 2^-52. u53 is the
    uniform of slot x in domain 3 at offset t."""
    for seed, t in ((7, 0), (-1, 5), (1 << 40, -3), (-(1 << 63), (1 << 63) - 1), (3, (1 << 33) + 1)):
        words = sk.uniforms(torch.tensor([seed]), torch.tensor([t]), 6, domain=sk.DOMAIN_NOISE)[0]
        u = [(math.floor(float(x) * 2**52) + 0.5) / 2**52 for x in words]
        assert all(0 < x < 1 for x in u)
        assert noise_of(seed, t, 6).tolist() == pytest.approx([-math.log(-math.log(x)) for x in u], rel=1e-15)


def test_matches_and_marginals(racer):
    """p's winner is first, or among the first two, on q as often as the closed forms say. Each race alone follows its
    own row."""
    n = 200_000 if backends.BACKENDS[racer].slower == 1 else SIMULATED
    at = {"seed": torch.full((n,), 5), "offset": torch.arange(n)}
    y, x = won(racer, rows(P, n), **at).tokens[:, 0], won(racer, rows(Q, n), k=2, **at).tokens
    counts = [int(((y == i) & (x[:, 0] == i)).sum()) for i in range(3)]
    cells = {i: m for i, m in enumerate(MATCH)} | {"apart": 1 - sum(MATCH)}
    assert check_counts({**dict(enumerate(counts)), "apart": n - sum(counts)}, cells)
    both = int((x == y[:, None]).any(1).sum())
    assert check_counts({True: both, False: n - both}, {True: TWO, False: 1 - TWO})
    for tokens, p in ((y, P), (x[:, 0], Q)):
        assert check_counts(dict(enumerate(torch.bincount(tokens, minlength=3).tolist())), dict(enumerate(p.tolist())))
    order = {ids: float(Q[ids[0]] * Q[ids[1]] / (1 - Q[ids[0]])) for ids in itertools.permutations(range(3), 2)}
    assert check_counts({ids: int((x == torch.tensor(ids)).all(1).sum()) for ids in order}, order)


def test_law_of_peaked_rows(racer):
    """With gaps of 300 between logits, tokens of negligible probability never win, and the others follow p."""
    n = 100_000 if backends.BACKENDS[racer].slower == 1 else SIMULATED
    n = 1_000_000 if tiers.TIER == "all" and "cuda-on" not in racer else n  # simulated: nine minutes
    z = torch.tensor([300.0, 299.0, 0.0, 300.5, -300.0, -math.inf])
    out = won(racer, z.expand(n, -1), seed=torch.full((n,), -9), offset=torch.arange(n) + (1 << 40))
    law = dict(enumerate(z.double().softmax(-1).tolist()))
    assert check_counts(dict(enumerate(torch.bincount(out.tokens[:, 0], minlength=6).tolist())), law)


@pytest.mark.parametrize("isa", [isa for name in SERVED for isa in backends.instruction_sets(name)])
@pytest.mark.parametrize("weight", [-87.5, -87.9])
def test_second_of_tiny_weights(isa, weight):
    """Of two ids that can be second, the one with the weight below 2^-126 (-87.34) has the larger key.

    Its 1 - u lies between 2^-31 and 2^-30, so its noise exceeds 20.79. In units of 2^-31, in which the CPU's quick test
    (csrc/cpu/simd_race.h) has 1 - u, it is 1, not 0.
    The other id is in an earlier chunk, so its key is the bar when the second chunk is read."""
    if backends.why_not(isa):
        pytest.skip(backends.why_not(isa))
    seed, position, V, low, tiny = 7, 5297, 1800, 1, 1769
    noise = noise_of(seed, position, V)
    assert 20.79 < noise[tiny] < 21.49
    z = torch.full((1, V), -math.inf)
    z[0, 0], z[0, tiny] = 0, weight
    z[0, low] = weight + noise[tiny] - noise[low] - 0.1
    at = {"seed": torch.tensor([seed]), "offset": torch.tensor([position])}
    assert won(isa, z, k=2, **at).tokens.tolist() == [[0, tiny]]
    assert reference.sample(z, 2, race=True, **at).tokens.tolist() == [[0, tiny]]


# ---- agreement with the reference -----------------------------------------------------------------------------------

FORMS = [
    dict(V=7, G=3),
    dict(V=1, G=2),
    dict(V=11, G=4, filtered=True),
    dict(V=2500, G=2, filtered=True, kinds=["near", "sharp", "onehot"]),
    dict(V=1025, G=2, dtype=torch.bfloat16),
    dict(V=64, G=2, dtype=torch.float16, filtered=True),
    dict(V=40, G=3, keyed=True, filtered=True),
    dict(V=9, G=3, one_hot=True),
    dict(V=30, G=3, Vq=50),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: " ".join(form))
def test_chains_agree_with_the_reference(racer, form):
    B = backends.scale(105, racer, least=64) if form["V"] < 100 else backends.scale(40, racer)
    args = races.chain(11, B, **form)
    for name, change in {
        "int64": {},
        "int32": {"draft_tokens": args["draft_tokens"].int()},
        "some": {"num_requests": torch.tensor([B - 3])},
    }.items():
        out = backends.run("verify_chain", racer, **args | change)
        want = flat.call(reference.verify_chain, **args | change)
        same = checks.assert_same_tokens(out, want, name)
        assert torch.allclose(out.logprobs[same].double(), want.logprobs[same], rtol=1e-5, atol=2e-5, equal_nan=True)
    if form["V"] > 1 and B >= 40:
        assert 0.05 < (want.num_accepted > 0).double().mean() < 0.99, "not a test of both answers"


@pytest.mark.parametrize("keyed", [False, True])
def test_ragged_chains_agree_with_dense_ones(racer, keyed):
    """A ragged batch emits the reference's tokens, and those of a dense batch as far as each request's drafts go."""
    B, G, V = backends.scale(40, racer), 4, 33
    args = races.chain(3, B, G, V, keyed=keyed, filtered=True, dirty=False)
    lengths = [b % (G + 1) for b in range(B)]

    def cut(x, more):
        return torch.cat([x[b, : n + more] for b, n in enumerate(lengths)])

    part = args | {"target_logits": cut(args["target_logits"], 1), "draft_tokens": cut(args["draft_tokens"], 0)}
    part |= {"cu_draft": torch.tensor([0, *itertools.accumulate(lengths)]), "max_draft": G}
    part |= {"seed": cut(args["seed"], 1)} if keyed else {}
    out = backends.run("verify_chain", racer, **part)
    checks.assert_same_tokens(out, flat.call(reference.verify_chain, **part), "ragged")
    whole = backends.run("verify_chain", racer, **args)
    for b, n in enumerate(lengths):
        keep = min(int(whole.num_accepted[b]), n) + 1
        assert out.tokens[b, :keep].tolist() == whole.tokens[b, :keep].tolist() and out.num_accepted[b] == keep - 1


def test_chains_of_probabilities_stores_and_bonus_tokens(racer):
    B, G, V = backends.scale(60, racer), 3, 40
    args = races.chain(5, B, G, V)
    probs = args["target_logits"].float().softmax(-1)
    store = {"target_logits": probs.flatten(0, 1), "target_row": torch.arange(B * (G + 1)).view(B, G + 1).flip(0)}
    bonus = {"target_logits": probs[:, :G], "bonus_tokens": torch.arange(B) % (V + 2) - 1}
    stats = sk.row_stats(args["target_logits"].flatten(0, 1)).view(B, G + 1, 4)
    for change in ({"target_logits": probs}, {"target_logits": probs.half()}, store, bonus, {"target_stats": stats}):
        call = args | {"target_kind": "logits" if "target_stats" in change else "probs"} | change
        out = backends.run("verify_chain", racer, **call)
        checks.assert_same_tokens(out, flat.call(reference.verify_chain, **call), " ".join(change))


TREES = [
    dict(V=7, K=3, L=2),
    dict(V=5, N=12, filtered=True),
    dict(V=3, N=24, linked=True, max_depth=2),
    dict(V=9, N=10, shuffled=True),
    dict(V=2500, N=7, kinds=["near", "peaked", "dirichlet"]),
    dict(V=8, N=9, stats=True),
    dict(V=8, N=9, probs=True),
    dict(V=8, N=9, dtype=torch.bfloat16, keyed=True, filtered=True),
    dict(V=8, N=9, penalised=True),
]


def penalties(n, V, **more):
    """Return penalties whose histories hold two tokens each."""
    ids = torch.stack([torch.arange(n) % (V // 2), V // 2 + torch.arange(n) % (V // 2)], dim=1).int()
    return sk.Penalties(1.3, 0.5, 0.25, ids, torch.full_like(ids, 2), **more)


@pytest.mark.parametrize("form", TREES, ids=lambda form: " ".join(form))
def test_trees_agree_with_the_reference(racer, form):
    form, B = dict(form), backends.scale(70 if form["V"] < 100 else 28, racer)
    view = {"target_penalties": penalties(B, form["V"])} if form.pop("penalised", False) else {}
    args = races.tree(7, B, **form) | view
    _, want = tree_checks.agree_on(tree_checks.verify(racer), args, f"{form}")
    assert 0.05 < (want.num_accepted > 0).double().mean() < 0.99, "not a test of both answers"


@pytest.mark.parametrize("how", ["plain", "filters", "stats", "keyed", "greedy", "bfloat16", "penalties", "padded"])
def test_samples_agree_with_the_reference(racer, how):
    N, V, k = backends.scale(60, racer), 1300, 5
    z = cases.rows_pair(2, N, V)[0]
    given, at = sk.Rows(z), races.seeds(N)
    if how == "filters":
        given = sk.Rows(z, **cases.parameters(4, N))
    elif how == "stats":
        given = sk.Rows(z, stats=sk.row_stats(sk.Rows(z, temperature=0.7, top_p=0.9)))
    elif how == "greedy":
        given = sk.Rows(z, temperature=0.0)
    elif how == "bfloat16":
        given = sk.Rows(z.bfloat16(), temperature=1.3)
    elif how == "keyed":
        at = {"seed": at["seed"] * 12345}
    elif how == "penalties":
        given = sk.Rows(z, penalties=penalties(N, V, drafted=torch.arange(N)[:, None] % 3))
    elif how == "padded":
        at |= {"num_rows": torch.tensor([N - 3])}
    out = won(racer, given, k=k, **at)
    want = reference.sample(given, k, race=True, **at)
    sure = want.margin > 1
    if how == "padded":
        assert (out.tokens[-3:] == -1).all() and (out.tokens[:-3, 0] >= 0).all()
    assert sure.double().mean() > 0.8 and torch.equal(out.tokens[sure], want.tokens[sure])
    assert torch.allclose(out.logprobs[sure].double(), want.logprobs[sure], rtol=1e-5, atol=2e-5)
    if how in ("filters", "greedy"):
        assert (out.tokens == -1).any() and (out.logprobs[out.tokens == -1] == -math.inf).all()


def test_many_seeds(racer):
    """One row with many seeds, 100,000 in make test-all. The reference's keys are computed for all seeds at once."""
    n = 100_000 if tiers.TIER == "all" else 10_000 if backends.BACKENDS[racer].slower == 1 else 500
    z = torch.randn(130, generator=torch.Generator().manual_seed(3))
    seed = torch.randint(-(2**63), 2**63 - 1, (n,), generator=torch.Generator().manual_seed(4))
    out = won(racer, sk.Rows(z.expand(n, -1)), seed=seed, offset=torch.arange(n))
    u = reference.uniforms(seed, torch.arange(n), 130, domain=sk.DOMAIN_NOISE).numpy()
    keys = z.double().numpy() - np.log(-np.log((np.floor(u * 2.0**52) + 0.5) * 2.0**-52))
    two = np.partition(keys, -2, 1)[:, -2:]
    sure = torch.from_numpy(two[:, 1] - two[:, 0] > 1e-12)
    assert sure.all() and torch.equal(out.tokens[:, 0], torch.from_numpy(keys.argmax(1)))


# ---- the output does not depend on the draft ------------------------------------------------------------------------


def model(prefix, V=40):
    """Return the row of logits after a prefix."""
    state = (hash(tuple(prefix)) & 0xFFFFFFFF) % (1 << 31)
    return 2 * torch.randn(V, generator=torch.Generator().manual_seed(state))


def decoded(n, seed, drafter, width, depth, as_tree):
    """Decode n tokens speculatively. Return them and the mean number of tokens per step. drafter(prefix) returns a row
    of logits."""
    text = []
    steps = 0
    while len(text) < n:
        at = {"seed": torch.tensor([seed]), "offset": torch.tensor([len(text)])}
        nodes, parents = [()], [-1]
        for i in itertools.count():
            if i == len(nodes) or len(nodes[i]) == depth:
                break
            row = drafter((*text, *nodes[i]))[None]
            deep = {"seed": at["seed"], "offset": at["offset"] + len(nodes[i])}
            for x in sk.sample(row, width if as_tree else 1, race=True, **deep).tokens[0].tolist():
                nodes.append((*nodes[i], x))
                parents.append(i)
        target = torch.stack([model((*text, *node)) for node in nodes])[None]
        tokens = torch.tensor([[-1, *(node[-1] for node in nodes[1:])]])
        if as_tree:
            out = sk.verify_tree((torch.tensor([parents]), tokens), target, method="race", max_depth=depth, **at)
        else:
            out = sk.verify_chain(target, tokens[:, 1:], method="race", **at)
        text += out.tokens[0, : out.num_accepted[0] + 1].tolist()
        steps += 1
    return text[:n], n / steps


def test_the_text_is_that_of_plain_decoding():
    """For one seed, three drafters give the same text as plain decoding, with chains of two lengths and with two
    trees."""
    n = 60
    drafters = {
        "near": lambda prefix: model(prefix) + 0.5 * model((9, *prefix)),
        "far": lambda prefix: model((7, *prefix)),
        "same": model,
    }
    plain, speed = [], {}
    while len(plain) < n:
        at = {"seed": torch.tensor([42]), "offset": torch.tensor([len(plain)])}
        plain.append(int(sk.sample(model(plain)[None], race=True, **at).tokens))
    for name, drafter in drafters.items():
        for width, depth, as_tree in ((1, 2, False), (1, 4, False), (2, 2, True), (3, 2, True)):
            text, speed[name, width, depth] = decoded(n, 42, drafter, width, depth, as_tree)
            assert text == plain, (name, width, depth)
    assert speed["same", 1, 4] > 4.5 and speed["near", 1, 4] > 1.5 > speed["far", 1, 4]
    assert speed["near", 3, 2] > speed["near", 1, 2]


def test_offset_is_the_absolute_position(racer):
    """A step that starts later, with the later offset, emits the same tokens. With the index of the step as offset, or
    one offset for every depth of a draft, it does not."""
    B, G, V = 50, 4, 100
    z = 2 * torch.randn(B, G + 1, V, generator=torch.Generator().manual_seed(1))
    at = {"seed": torch.arange(B), "offset": 1000 + torch.arange(B)}

    def tokens(first, offset):
        """Return the token of row `first` in each request, from a call without drafts."""
        drafts = torch.full((B, 0), -1)
        out = backends.run(
            "verify_chain", racer, z[:, first : first + 1], drafts, method="race", **at | {"offset": offset}
        )
        return out.tokens[:, 0]

    own = torch.stack([tokens(i, at["offset"] + i) for i in range(G + 1)], 1)
    whole = backends.run("verify_chain", racer, z, own[:, :G], method="race", **at)
    assert (whole.num_accepted == G).all() and torch.equal(whole.tokens, own)
    steps = torch.stack([tokens(i, at["offset"]) for i in range(G + 1)], 1)
    assert (steps[:, 1:] != own[:, 1:]).double().mean() > 0.5  # wrong: one position for all depths
    indices = torch.stack([tokens(i, torch.full((B,), i)) for i in range(G + 1)], 1)
    assert (indices != own).double().mean() > 0.5  # wrong: the index of the step
    tree = torch.arange(-1, G).expand(B, -1), torch.cat([own[:, :1], own[:, :G]], 1)
    out = backends.run("verify_tree", racer, tree, z, method="race", **at)
    assert torch.equal(out.tokens, own) and (out.num_accepted == G).all()
    last = {"seed": torch.tensor([3]), "offset": torch.tensor([2**63 - 1])}  # the next position wraps around
    keys = torch.tensor([[3]]), torch.tensor([-(2**63)])
    two = z[:1, :2]
    first = won(racer, sk.Rows(two[:, 0]), **last).tokens
    out = backends.run("verify_chain", racer, two, first, method="race", **last)
    assert out.num_accepted.tolist() == [1]
    assert out.tokens[0, 1] == won(racer, sk.Rows(two[:, 1]), seed=keys[0][0], offset=keys[1]).tokens[0, 0]


def test_a_noise_key_is_a_seed_at_position_0(racer):
    B, G, V = 20, 3, 50
    z = torch.randn(B, G + 1, V, generator=torch.Generator().manual_seed(2))
    keys = torch.randint(-(2**63), 2**63 - 1, (B, G + 1), generator=torch.Generator().manual_seed(3))
    zero = torch.zeros(B * (G + 1), dtype=torch.int64)
    each = won(racer, sk.Rows(z.flatten(0, 1)), seed=keys.flatten(), offset=zero).tokens.view(B, G + 1)
    assert torch.equal(won(racer, sk.Rows(z.flatten(0, 1)), seed=keys.flatten()).tokens.view(B, G + 1), each)
    out = backends.run("verify_chain", racer, z, each[:, :G], method="race", seed=keys)
    assert torch.equal(out.tokens, each) and (out.num_accepted == G).all()
    wide = torch.zeros(B, 2 * (G + 1), dtype=torch.int64)
    wide[:, ::2] = keys
    out = backends.run("verify_chain", racer, z, each[:, :G], method="race", seed=wide[:, ::2])  # strides
    assert torch.equal(out.tokens, each)
    flat_seed = keys.flatten()
    ragged = {"cu_draft": torch.arange(B + 1) * G, "max_draft": G, "method": "race", "seed": flat_seed}
    out = backends.run("verify_chain", racer, z.flatten(0, 1), each[:, :G].flatten(), **ragged)
    assert torch.equal(out.tokens, each)
    tree = torch.arange(-1, G).expand(B, -1), torch.cat([each[:, :1], each[:, :G]], 1)
    assert torch.equal(backends.run("verify_tree", racer, tree, z, method="race", seed=keys).tokens, each)


def test_one_key_serves_all_rows(racer):
    z = torch.randn(5, 40, generator=torch.Generator().manual_seed(4))
    one, each = torch.tensor([7]), torch.full((5,), 7)
    assert torch.equal(won(racer, sk.Rows(z), seed=one).tokens, won(racer, sk.Rows(z), seed=each).tokens)


# ---- edges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3])
def test_stats_with_another_maximum(k, racer):
    """A wrong maximum in the stats shifts all keys alike, so the winners stay the same, and no row counts as
    invalid."""
    z = torch.randn(14, 40, generator=torch.Generator().manual_seed(5))
    stats = sk.row_stats(z)
    shifted = stats.clone()
    shifted[:, 3] += 30
    at = {"seed": torch.arange(14), "offset": torch.zeros(14, dtype=torch.int64), "k": k}
    own, other = (won(racer, sk.Rows(z, stats=x), **at) for x in (stats, shifted))
    assert torch.equal(own.tokens, other.tokens) and not other.logprobs.isnan().any()


@pytest.mark.parametrize("shift", [-160, -95, 160])
def test_stats_with_a_maximum_far_away(shift, isa_backend):
    """All weights of the row are e^-shift times larger, too large or too small for float32. One id that can win is in
    the first chunk and one in the second: the key of the first rules out entries of the second."""
    N, V = 50, 1152
    z = torch.full((N, V), -100.0)
    z[:, 0], z[:, 1100] = 0.5, 1.0
    at = {"seed": torch.arange(N), "offset": torch.zeros(N, dtype=torch.int64)}
    want = reference.sample(z, 1, race=True, **at).tokens
    assert 10 < (want == 0).sum() < 40, "not a test of both ids"
    stats = sk.row_stats(z)
    stats[:, 3] += shift
    assert torch.equal(won(isa_backend, sk.Rows(z, stats=stats), **at).tokens, want)


def test_a_tiny_weight_can_be_second(isa_backend):
    """Id 1123 is second with a weight below 2^-126, which float32 sums take for 0: its noise is 20.98 at this position,
    which was searched for. Id 1, in the chunk before, is third."""
    second, at = 1123, {"seed": torch.tensor([0]), "offset": torch.tensor([47115361])}
    noise = noise_of(0, 47115361, 1152)
    z = torch.full((1, 1152), -math.inf)
    z[0, 0], z[0, 1], z[0, second] = 0, -66.6 - noise[1], -87.4
    assert z[0, second] < -126 * math.log(2) and z[0, 1] + noise[1] + 0.1 < z[0, second] + noise[second]
    assert won(isa_backend, z, k=3, **at).tokens.tolist() == [[0, second, 1]]
    assert won(isa_backend, z, k=2, **at).tokens.tolist() == [[0, second]]


def test_ties_go_to_the_lowest_id(racer):
    """Stats with a maximum of 1e20 make all keys equal, since the noise is lost in rounding. Rows have one or several
    chunks, and k is 4."""
    at = {"seed": torch.tensor([1]), "offset": torch.tensor([2])}
    for V, ids in ((3, (1, 2)), (1025, range(1, 1025, 7)), (3001, (3, 700, 1500, 2990, 3000))):
        stats = torch.tensor([[1.0, -1e30, 0.0, 1e20]])
        z = torch.full((1, V), -math.inf)
        z[0, [*ids]] = 0
        out = won(racer, sk.Rows(z, stats=stats), k=4, **at)
        assert out.tokens.tolist() == [[*ids, -1, -1][:4]]
        target = sk.Rows(z[None], stats=stats[None])
        out = backends.run("verify_chain", racer, target, torch.zeros(1, 0, dtype=torch.int64), method="race", **at)
        assert out.tokens.tolist() == [[ids[0]]]


def test_greedy_rows_have_no_noise(racer):
    B, V = 30, 20
    z = torch.randn(B, 2, V, generator=torch.Generator().manual_seed(5))
    best = z.argmax(-1)
    for temperature, at in ((0.0, {}), (torch.zeros(B), races.seeds(B)), (1e-40, races.seeds(B))):
        target = sk.Rows(z, temperature=temperature)
        out = backends.run("verify_chain", racer, target, best[:, :1], method="race", **at)
        assert torch.equal(out.tokens, best) and (out.logprobs == 0).all() and (out.status == 0).all()
        tree = torch.tensor([-1, 0]).expand(B, 2), torch.cat([best[:, :1], best[:, :1]], 1)
        assert torch.equal(backends.run("verify_tree", racer, tree, target, method="race", **at).tokens, best)
        rows = sk.Rows(z[:, 0], temperature=temperature)
        assert won(racer, rows, k=2, **at).tokens.tolist() == [[int(x), -1] for x in best[:, 0]]


def test_invalid_rows_and_ids(racer):
    """An invalid row gives its largest finite entry with status 1 and ends the step; ids outside never match."""
    for row, token in cases.bad_rows(7):
        good = torch.zeros(7)
        at = {"seed": torch.tensor([1]), "offset": torch.tensor([0])}
        out = backends.run(
            "verify_chain", racer, torch.stack([row, good])[None], torch.tensor([[token]]), method="race", **at
        )
        assert out.tokens.tolist() == [[token, -1]] and out.status.tolist() == [1] and out.logprobs[0, 0].isnan()
        tree = torch.tensor([[-1, 0]]), torch.tensor([[-1, token]])
        tree_out = backends.run("verify_tree", racer, tree, torch.stack([row, good])[None], method="race", **at)
        assert tree_out.tokens.tolist() == [[token, -1]] and tree_out.status.tolist() == [1]
        out = won(racer, row[None], k=2, **at)
        assert out.tokens.tolist() == [[token, token]] and out.logprobs.isnan().all()
    nan = torch.tensor([[[0.5, math.nan, 0.5]]])
    for bad in (nan, nan.nan_to_num(math.inf), torch.zeros(1, 1, 3), torch.tensor([[[-1.0, -2.0, 0.0]]])):
        out = backends.run("verify_chain", racer, sk.Rows(bad, kind="probs"), torch.zeros(1, 0, dtype=torch.int64),
                           method="race", **at)  # fmt: skip
        assert out.status.tolist() == [1] and 0 <= out.tokens[0, 0] < 3 and out.logprobs.isnan().all()
    z = torch.zeros(1, 5, 3)
    for d in (-1, 3, 1 << 40, -(1 << 63)):
        out = backends.run("verify_chain", racer, z[:, :2], torch.tensor([[d]]), method="race", **at)
        assert out.num_accepted.tolist() == [0] and out.status.tolist() == [0]
        tree = torch.tensor([[-1, 0, 0, 0, 0]]), torch.tensor([[-1, d, 0, 1, 2]])
        out = backends.run("verify_tree", racer, tree, z, method="race", max_depth=1, **at)
        like = backends.run("verify_tree", racer, tree, z, method="target_only", max_depth=1, **at)
        assert out.num_accepted.tolist() == [1] and out.status.tolist() == like.status.tolist() == [4]


def test_siblings_with_one_token(racer):
    """The first sibling is accepted, so the child of the second cannot be reached."""
    z = torch.full((1, 4, 3), -math.inf)
    z[..., 1] = 0
    tree = torch.tensor([[-1, 0, 0, 2]]), torch.tensor([[-1, 1, 1, 1]])
    out = backends.run("verify_tree", racer, tree, z, method="race", seed=torch.tensor([1]), offset=torch.tensor([1]))
    assert out.path.tolist() == [[0, 1, -1, -1]] and out.tokens.tolist() == [[1, 1, -1, -1]]


def test_the_draft_is_not_read(racer):
    """Draft rows of NaN, or of another vocabulary, change nothing."""
    args = races.chain(1, 20, 3, 30)
    want = backends.run("verify_chain", racer, **args)
    for draft in (torch.full((20, 3, 30), math.nan), torch.zeros(20, 4, 99)):
        got = backends.run("verify_chain", racer, **args, draft_logits=draft)
        assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(got, want))


SEEDS = {"seed": torch.arange(2), "offset": torch.arange(2)}
KEYS = torch.zeros(2, 3, dtype=torch.int64)
U = torch.zeros(2, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"uniforms": U}, "uniforms must be None for a race, got a tensor"),
        ({}, "a race needs seed, got None"),
        ({"offset": SEEDS["offset"]}, "seed and offset go together, got offset alone"),
        ({"seed": SEEDS["seed"]}, r"seed without offset must have shape \[B=2, G\+1=3\], got \[2\]"),
        ({"seed": KEYS, "offset": SEEDS["offset"]}, r"seed must have shape \[2\] or \[1\], got \[2, 3\]"),
        ({"seed": KEYS.int()}, "seed must be int64, got int32"),
        ({**SEEDS, "rule": "lossy"}, "rule 'lossy' is not defined for method 'race'"),
        ({**SEEDS, "rule": torch.tensor([0, 11])}, "rule 'lossy' is not defined for method 'race', got it at index 1"),
    ],
)
def test_what_a_chain_refuses(change, message):
    call = {"target": torch.zeros(2, 3, 5), "draft_tokens": torch.zeros(2, 2, dtype=torch.int64), "method": "race"}
    with pytest.raises(ValueError, match=f"^verify_chain: {message}"):
        sk.verify_chain(**call, **change)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"uniforms": torch.zeros(2, 4, dtype=torch.float64)}, "uniforms must be None for a race, got a tensor"),
        ({}, "a race needs seed, got None"),
        ({"seed": SEEDS["seed"]}, r"seed without offset must have shape \[B=2, N=3\], got \[2\]"),
        ({**SEEDS, "rule": "chow"}, "rule 'chow' is not defined for method 'race'"),
    ],
)
def test_what_a_tree_refuses(change, message):
    tree = torch.tensor([[-1, 0, 0]] * 2), torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=f"^verify_tree: {message}"):
        sk.verify_tree(tree, torch.zeros(2, 3, 5), method="race", **change)


@pytest.mark.parametrize(
    "change, message",
    [
        ({**SEEDS, "slot": 3}, "slot must be 0 for a race, got another number"),
        ({**SEEDS, "slot": torch.zeros(2, dtype=torch.int64)}, "slot must be 0 for a race, got a tensor"),
        ({"uniforms": U[:, :1]}, "uniforms must be None for a race, got a tensor"),
        ({}, "a race needs seed, got None"),
        ({"offset": SEEDS["offset"]}, "seed and offset go together, got offset alone"),
        ({"seed": KEYS}, r"seed must have shape \[2\] or \[1\], got \[2, 3\]"),
    ],
)
def test_what_sample_refuses(change, message):
    with pytest.raises(ValueError, match=f"^sample: {message}"):
        sk.sample(torch.zeros(2, 5), race=True, **change)


def test_keys_of_the_reference():
    """A key is ln p + noise, or -inf for an id without mass."""
    p = np.array([0.5, 0.0, 0.5])
    keys = keys_of(p, None, 3, 4)
    assert keys[1] == -math.inf and keys[[0, 2]].tolist() == pytest.approx(
        (np.log(0.5) + noise_of(3, 4, 3)[[0, 2]]).tolist()
    )
