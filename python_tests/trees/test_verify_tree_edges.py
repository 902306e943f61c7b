# SPDX-License-Identifier: Apache-2.0
"""verify_tree on invalid data and degenerate trees, its memory use, and its errors."""

import math
import resource
from pathlib import Path

import pytest
import torch
from support import answers as reference
from support import backends, flat, surface, tree_cases, worker
from support.tree_checks import METHODS, differ, equal, in_range, pick, verify, visited_by_traversal
from torch.utils._python_dispatch import TorchDispatchMode

import specdec_kernels as sk

F64 = torch.float64


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow_in_triton
def test_requests_do_not_see_each_other(backend, method):
    """A request has the same bits alone, in another order, and beside rows of NaN."""
    args = tree_cases.tree(3, 12, 1500, method, filtered=True, kinds=["near", "peaked"])
    out = verify(backend)(**args)
    order = torch.arange(11, -1, -1)
    assert equal(verify(backend)(**pick(args, order)), [x[order] for x in out])
    assert equal(verify(backend)(**pick(args, slice(4, 5))), [x[4:5] for x in out])
    args["target_logits"][6], args["draft_logits"][7] = math.nan, math.nan
    bad = verify(backend)(**args)
    rest = [i for i in range(12) if i not in (6, 7)]
    assert equal([x[rest] for x in bad], [x[rest] for x in out])
    assert bad.status[6] & 1 and bad.tokens[6, 0] == 0
    assert ((bad.tokens >= -1) & (bad.tokens < 1500)).all() and (bad.tokens[:, 0] >= 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow_in_triton
def test_rows_that_are_not_visited_do_not_matter(backend, method, B=60):
    """With NaN in all rows except those of visited nodes, the bits stay the same. Traversal visits every node that it
    tests, not only those on the path."""
    args = tree_cases.tree(4, backends.scale(B, backend), 6, method, K=3, L=3, dirty=False, kinds=["near", "dirichlet"])
    out = verify(backend)(**args)
    keep = torch.zeros(args["target_logits"].shape[:2], dtype=torch.bool)
    if method == "traversal":
        ref = [flat.call(reference.verify_tree, **pick(args, slice(b, b + 1))) for b in range(len(keep))]
        assert all(r.status.item() == 0 for r in ref)
        visited = visited_by_traversal(args)
    else:
        visited = [[n for n in path if n >= 0] for path in out.path.tolist()]
    for b, nodes in enumerate(visited):
        keep[b, nodes] = True
    assert not keep.all()
    args["target_logits"] = torch.where(keep[:, :, None], args["target_logits"], math.nan)
    args["draft_logits"] = torch.where(keep[:, :, None], args["draft_logits"], math.nan)
    assert equal(verify(backend)(**args), out)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_bad_rows(backend, method, poison):
    """About a third of the rows of both sides are invalid, in one entry or (-inf) in all."""
    args = tree_cases.tree(5, 40, 6, method, K=2, L=2, kinds=["near", "dirichlet"])
    tree_cases.spoil(args, poison)
    out, ref = verify(backend)(**args), flat.call(reference.verify_tree, **args)
    assert not differ(out, ref).any()
    assert (ref.status & 1).any() and (ref.status == 0).any() and (ref.margin > 1).double().mean() > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_bad_probability_rows(backend, method):
    """Rows have NaN, infinities, negative numbers and zeros among probabilities. A test of a draft may not come across
    them, but a draw and kseq's search read the whole row."""
    args = tree_cases.tree(5, 140, 6, method, K=2, L=2, probs=True, kinds=["near", "dirichlet"])
    rng = torch.Generator().manual_seed(6)
    poison = torch.tensor([math.nan, math.inf, -math.inf, -0.25, 7.0, 0.0])
    for name in ("target_logits", "draft_logits"):
        x = args[name]
        value = poison[torch.randint(0, 6, x.shape[:2], generator=rng)][:, :, None]
        entry = torch.nn.functional.one_hot(torch.randint(0, 6, x.shape[:2], generator=rng), 6).bool() | (value == 0)
        args[name] = torch.where((torch.rand(x.shape[:2], generator=rng) < 0.4)[:, :, None] & entry, value, x)
    out, ref = verify(backend)(**args), flat.call(reference.verify_tree, **args)
    assert not differ(out, ref).any()
    seen = set(ref.status.tolist())
    assert {0, 1} <= seen and (method in ("target_only", "greedy") or {4, 5} <= seen), seen
    in_range(out, 5, 6)


def test_a_draft_row_with_nan_decides_nothing_under_kseq(backend):
    """The draft's distribution is not known, so no draft is accepted, and the token is drawn from p = (.2, .4, .4)."""
    p, q = torch.tensor([0.2, 0.4, 0.4]), torch.tensor([0.5, 0.35, math.nan])
    tree = tuple(reference.build_tree(torch.tensor([[[0], [1]]])))
    for v, token in ((0.1, 0), (0.3, 1), (0.9, 2)):
        args = dict(
            method="kseq", target_kind="probs", draft_kind="probs", uniforms=torch.tensor([[0.0, 0.0, v]], dtype=F64)
        )
        for verifier in (verify(backend), reference.verify_tree):
            out = verifier(tree, p.expand(1, 3, 3).contiguous(), q.expand(1, 3, 3).contiguous(), **args)
            assert out.tokens.tolist() == [[token, -1]] and out.status.tolist() == [5]


@pytest.mark.parametrize("second, status, accepted", [(1, 0, 1 - 0.6**0.5), (2, 4, 0.4)])
def test_looked_up_drafts_under_kseq(backend, second, status, accepted, n=500):
    """Looked-up drafts have one common distribution only if they are the same token. A different one is flagged and
    skipped. With p = (.2, .4, .4), a single draft of token 1 is accepted with p(1) = .4. Of two equal drafts, each is
    accepted with x, where 1 - (1 - x)^2 = .4."""
    rows = torch.tensor([0.2, 0.4, 0.4]).log().expand(n, 3, 3).contiguous()
    u = torch.full((n, 3), 1 - 2**-53, dtype=F64)
    u[:, 0] = (torch.arange(n) + 0.5) / n
    args = dict(
        tree=tuple(reference.build_tree(torch.tensor([[[1], [second]]] * n))),
        target_logits=rows,
        draft_logits=rows,
        method="kseq",
        draft_row=torch.full((n, 3), -1),
        uniforms=u,
    )
    out = verify(backend)(**args)
    assert (out.status == status).all() and not differ(out, flat.call(reference.verify_tree, **args)).any()
    assert abs(out.num_accepted.double().mean() - accepted) <= 1 / n
    assert (out.tokens[out.num_accepted == 0, 0] == 2).all()  # the final draw at 1 - 2^-53, from (.2, 0, .4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow_in_triton
def test_identical_drafts_equal_laws_disjoint_laws(backend, method):
    p = torch.tensor([0.5, 0.3, 0.2]).log()
    for drafts in ([[0, 1]] * 4, [[2, 2]] * 4):
        tree = reference.build_tree(torch.tensor([drafts]))
        n = tree.parents.shape[1]
        u = torch.full((1, 9 if method in ("kseq", "recursive") else 10), 0.15, dtype=F64)
        for q in (p, torch.tensor([0.0, -math.inf, 0.0]), torch.tensor([-math.inf, 0.0, 0.0])):
            args = dict(method=method, uniforms=u)
            rows = p.expand(1, n, 3).contiguous(), q.expand(1, n, 3).contiguous()
            out, ref = verify(backend)(tuple(tree), *rows, **args), reference.verify_tree(tree, *rows, **args)
            assert not differ(out, ref).any()
            if q is p and method not in ("target_only", "greedy"):
                # p = q: the first draft is accepted as a whole
                assert out.num_accepted.item() == 2 and out.status.item() == 0


def anything(seed, B=50, N=9, V=5):
    """Return a call with valid parents, in which some links lead elsewhere or in cycles, and some row indices and
    tokens are out of range."""
    rng = torch.Generator().manual_seed(seed)

    def number(least, most):
        return torch.randint(least, most, (B, N), generator=rng)

    parents = (torch.rand(B, N, generator=rng) * (torch.arange(N) + 1)).long() - 1
    parents[:, 0] = -1
    links = tuple(x.long().where(number(0, 5) > 0, number(-2, N + 3)) for x in tree_cases.linked_children(parents, rng))
    tree = parents, number(-2, V + 2)
    p, q = tree_cases.rows(seed, B, N, V)
    tables = {"target_row": number(-2, N + 3), "draft_row": number(-2, N + 3), "links": links}
    return dict(
        tree=tree, target_logits=p, draft_logits=q, uniforms=torch.rand(B, N + 1, generator=rng, dtype=F64), **tables
    )


@pytest.mark.parametrize("method", METHODS)
def test_bad_links_and_rows(backend, method):
    """Tokens are in range, and the call returns. An invalid link ends a list of siblings, and an invalid row index
    counts as an invalid row."""
    args = anything(8)
    out, ref = verify(backend)(method=method, **args), flat.call(reference.verify_tree, method=method, **args)
    assert not differ(out, ref).any()
    in_range(out, 9, 5)
    assert (ref.status & 1).any() and (ref.num_accepted > 0).any()


@pytest.mark.parametrize("method", METHODS)
def test_bad_trees(backend, method):
    """Parents that do not come before their nodes, and drafts that continue to no child, raise on CPU tensors and set a
    status elsewhere."""
    args = anything(9) | {"links": None}
    rng = torch.Generator().manual_seed(9)
    parents, tokens = args["tree"]
    wrong = torch.randint(0, 30, parents.shape, generator=rng) == 0
    parents[wrong] = torch.tensor([-2, 9, 12])[torch.randint(0, 3, parents.shape, generator=rng)][wrong]
    bad = wrong.any(1)
    if backend == "cpu":
        args["tree"] = parents, tokens
        with pytest.raises(ValueError, match=r"verify_tree: parents\[\d+, (\d)\] must be in \[-1, \1\), got (-2|9|12)"):
            verify(backend)(method=method, **args)
        parents, bad = parents.where(~wrong, -1), torch.zeros_like(bad)
    drafts = None
    if method in ("kseq", "recursive"):
        drafts = torch.randint(-1, 9, (50, 2, 1), generator=rng)
        args["uniforms"] = args["uniforms"][:, :3].contiguous()
        bad |= ((drafts != -1) & (parents.gather(1, drafts[:, :, 0].clamp(min=0)) != 0)[:, :, None]).any(1)[:, 0]
    args["tree"] = (parents, tokens, None, drafts)
    if backend == "cpu" and bad.any():
        with pytest.raises(
            ValueError,
            match=r"verify_tree: draft_nodes\[\d+, [01], 0\] must be -1 or a child of the node before, got \d",
        ):
            verify(backend)(method=method, **args)
        return
    assert not bad.all() and (bad.any() or backend == "cpu")
    out = backends.run_without_values("verify_tree", backend, method=method, **args)
    ref = flat.call(reference.verify_tree, method=method, **args)
    assert not differ(out, ref).any()
    assert (out.status[bad] & 4 == 4).all()
    in_range(out, 9, 5)


@pytest.mark.parametrize("method", METHODS)
def test_trees_of_nothing(backend, method):
    p = torch.zeros(1, 1, 3)
    for K, L in ((0, 2), (2, 0)):
        tree = tuple(reference.build_tree(torch.zeros(1, K, L, dtype=torch.int64)))
        u = torch.full((1, 1 if method in ("kseq", "recursive") else 2), 0.4, dtype=F64)
        out = verify(backend)(tree, p, p, method=method, uniforms=u)
        assert out.tokens.tolist() == [[0 if method == "greedy" else 1] + [-1] * L] and out.path.tolist() == [
            [0] + [-1] * L
        ]
    empty = verify(backend)(
        (torch.zeros(0, 3, dtype=torch.int32),) * 2,
        torch.zeros(0, 3, 5),
        torch.zeros(0, 3, 5),
        method=method,
        uniforms=torch.zeros(0, 4, dtype=F64),
    )
    assert empty.tokens.shape == (0, 3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", ["deep", "wide"])
@pytest.mark.slow_in_triton
def test_a_thousand_nodes(backend, method, shape, N=1024, V=5):
    slower = backends.BACKENDS[backend].slower
    N = N if slower == 1 else 400 // slower
    parents = (
        torch.arange(N)[None] - 1
        if shape == "deep"
        else torch.cat([torch.tensor([[-1]]), torch.zeros(1, N - 1, dtype=torch.int64)], 1)
    )
    rng = torch.Generator().manual_seed(9)
    q = 0.1 * torch.randn(1, 1, V, generator=rng)
    p = q + 0.05 * torch.randn(1, 1, V, generator=rng)
    tokens = torch.distributions.Categorical(logits=q[0, 0]).sample((1, N))
    zeros = torch.zeros(1, N, dtype=torch.int64)
    u = torch.rand(1, N + 1, generator=rng, dtype=F64)
    if shape == "wide":
        u[0, 1:-1] = 0.999  # nothing is accepted at first
    rows = sk.Rows(p, row=zeros), sk.Rows(q, row=zeros)
    args = dict(method=method, uniforms=u)
    out, ref = (f((parents, tokens), *rows, **args) for f in (verify(backend), reference.verify_tree))
    assert not differ(out, ref).any()


def deep(max_depth):
    """Return a path of three nodes with a max_depth far above three."""
    tree = torch.tensor([[-1, 0, 1]]), torch.tensor([[-1, 2, 1]])
    rows = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(3))
    uniforms = torch.tensor([[0.0, 0.1, 0.2, 0.3]], dtype=F64)
    tensors = {"tree": tree, "target": rows, "draft": rows.flip(1), "uniforms": uniforms}
    return worker.here(tensors) | {"method": "traversal", "max_depth": max_depth}


def within_reach(max_depth, room):
    """Make the call with only `room` bytes of address space left."""
    sk.verify_tree(**deep(9))  # allocations that are made once
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, hard))
    try:
        return tuple(x[:, :9] if x.dim() == 2 else x for x in sk.verify_tree(**deep(max_depth)))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Largest(TorchDispatchMode):
    """Records the most elements of any tensor made under it."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if torch.is_tensor(out):
            self.most = max(self.most, out.numel())
        return out


def largest_tensor(max_depth):
    with Largest() as seen:
        sk.verify_tree(**deep(max_depth))
    return seen.most


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.slow_in_triton
def test_depth_costs_no_more_than_its_outputs(op_backend):
    """A path holds no more nodes than the tree, whatever max_depth is. 2^22 frames would take a gigabyte; the outputs
    take 64 MB."""
    if op_backend.startswith("triton"):  # it allocates all its memory through torch
        assert backends.there(op_backend, largest_tensor, 100) <= 101
    elif op_backend != "cuda":
        depth = 2**22
        out = backends.there(op_backend, within_reach, depth, 1 << 29)
        want = backends.run("verify_tree", op_backend, **deep(8))
        assert equal(out, want)


@pytest.mark.slow_in_triton
def test_seeds(backend):
    args = tree_cases.tree(10, 30, 7, "recursive", dirty=False)
    args.pop("uniforms")
    seed, offset = torch.arange(30) * 977, torch.arange(30) + 2**33
    for method in METHODS:
        args["method"] = method
        columns = 6 if method in ("kseq", "recursive") else 7
        u = torch.cat([sk.uniforms(seed, offset, columns), sk.uniforms(seed, offset, 1, sk.DOMAIN_FINAL)], 1)
        assert equal(verify(backend)(**args, seed=seed, offset=offset), verify(backend)(**args, uniforms=u))


@pytest.mark.slow_in_triton
def test_layouts(backend):
    """Results do not depend on strides or integer types. One tree may serve all requests."""
    from support import cases

    args = tree_cases.tree(11, 14, 37, "traversal", N=6, shuffled=True)
    want = verify(backend)(**args)
    strided = args | {name: cases.strided(args[name], shift=1) for name in ("target_logits", "draft_logits")}
    strided["tree"] = (args["tree"][0].long(), args["tree"][1].t().contiguous().t())
    strided["draft_row"] = torch.stack([args["draft_row"]] * 2, -1)[:, :, 0].int()
    assert equal(verify(backend)(**strided), want)
    one = {name: x for name, x in args.items() if name not in ("tree", "draft_row")}
    parents, tokens = args["tree"][0][3], args["tree"][1][3]
    a = verify(backend)(
        (parents, tokens),
        args["target_logits"],
        args["draft_logits"],
        **{k: v for k, v in one.items() if "logits" not in k},
        draft_row=args["draft_row"],
    )
    b = verify(backend)(
        (parents.expand(14, 6), tokens.expand(14, 6)),
        args["target_logits"],
        args["draft_logits"],
        **{k: v for k, v in one.items() if "logits" not in k},
        draft_row=args["draft_row"],
    )
    assert equal(a, b)


def test_no_row_or_table_is_copied():
    """An engine's rows and tables are passed to the op uncopied: strided, of either integer type, one tree for all
    requests."""
    from support import cases

    args = tree_cases.tree(13, 4, 37, "traversal", N=6, shuffled=True, linked=True)
    given = [cases.strided(args[name], shift=1) for name in ("target_logits", "draft_logits")]
    tables = [args["tree"][0][1].long(), args["tree"][1][1], args["target_row"], args["draft_row"], *args["links"]]
    _, (_, seen, _) = surface.recorded_call(
        "verify_tree",
        sk.verify_tree,
        tuple(tables[:2]),
        sk.Rows(given[0], row=tables[2]),
        sk.Rows(given[1], row=tables[3]),
        method="traversal",
        links=tuple(tables[4:]),
        uniforms=args["uniforms"],
    )
    seen = {x.data_ptr() for x in seen if torch.is_tensor(x)}
    assert {x.data_ptr() for x in given + tables} <= seen


def test_errors(op_backend):
    p, q = torch.zeros(2, 4, 3), torch.zeros(2, 4, 3)
    parents, tokens = torch.tensor([-1, 0, 0, 1]), torch.zeros(4, dtype=torch.int64)
    u = torch.zeros(2, 5, dtype=F64)
    nodes = torch.full((2, 3, 1), -1, dtype=torch.int32)

    def call(tree=(parents, tokens), target=p, draft=q, method="recursive", **more):
        return verify(op_backend)(tree, target, draft, method=method, **({"uniforms": u} | more))

    for message, error, more in [
        ("method must be 'kseq', .* got 'x'", ValueError, dict(method="x")),
        ("method 'kseq' needs draft, got None", ValueError, dict(method="kseq", draft=None)),
        (r"uniforms must have shape \[2, 5\], got \[2, 4\]", ValueError, dict(uniforms=u[:, :4])),
        (r"uniforms must have shape \[2, 4\], got \[2, 5\]", ValueError, dict(tree=(parents, tokens, None, nodes))),
        (
            "links give no order where method 'recursive' tests the drafts",
            ValueError,
            dict(tree=(parents, tokens, None, nodes), links=(tokens.expand(2, 4),) * 2),
        ),
        (r"tokens must have shape \[B=2, N=4\], got \[2, 3\]", ValueError, dict(tree=(parents, tokens[:3]))),
        (r"target.logits must have shape \[B=2, N=4, V=3\], got \[2, 3, 3\]", ValueError, dict(target=p[:, :3])),
        (r"draft.logits must have shape \[B=2, N=4, Vq=3\], got \[2, 3, 3\]", ValueError, dict(draft=q[:, :3])),
        (r"target.row must have shape \[B=2, N=4\], got \[4\]", ValueError, dict(target=sk.Rows(p, row=tokens))),
        ("target.row must be int32 or int64, got float32", ValueError, dict(target=sk.Rows(p, row=torch.zeros(2, 4)))),
        ("tree must be", TypeError, dict(tree=parents)),
        ("needs seed and offset, or uniforms, got neither", ValueError, dict(uniforms=None)),
        (r"max_depth must be in \[0, 2\^31 - 1\), got -1", ValueError, dict(max_depth=-1)),
        ("target.kind must be 'logits' or 'probs', got 'x'", ValueError, dict(target=sk.Rows(p, kind="x"))),
    ]:
        with pytest.raises(error, match=f"verify_tree: {message}"):
            call(**more)
    assert call(method="greedy", uniforms=None).status.tolist() == [0, 0]
    assert call(method="target_only", draft=None).status.tolist() == [0, 0]


@pytest.mark.parametrize(
    "backend", [name for name in backends.NAMES if "triton" in name and not backends.why_not(name)]
)
@pytest.mark.parametrize("rule", ["lossy", torch.tensor([11])])
def test_triton_refuses_rules(backend, rule):
    args = tree_cases.tree(3, 1, 6, "kseq") | {"rule": rule, "alpha": 0.3}
    with pytest.raises(NotImplementedError, match="^verify_tree: Triton does not serve rule$"):
        verify(backend)(**args)
