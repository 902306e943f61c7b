# SPDX-License-Identifier: Apache-2.0
"""verify_chain with row indices: target_row and draft_row point into a store of rows. The results equal, bit for bit,
those of the same rows side by side."""

import functools

import pytest
import torch
from support import answers as reference
from support import backends, checks, flat, races, tiers

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.example_calls.verify_chain import stored
from specdec_kernels.registry import CHAIN_METHODS, RULES

NOWHERE = (-2, 2**40, 2**63 - 1, -(2**63))  # indices out of range in every store
SIDES = ("target", "draft")


def assert_same(got, want, what=""):
    for name, a, b in zip(want._fields[:4], got, want):
        assert torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0)), f"{what}: {name} {a} is not {b}"


# ---- the same rows, elsewhere ---------------------------------------------------------------------------------------


def put_away(args, side, rng, by_slot, dtype):
    """Return the call with one side's rows (and their stats) in a store, in another order, among rows of NaN."""
    rows, stats = args.get(f"{side}_logits"), args.get(f"{side}_stats")
    if rows is None:
        return args
    lead = rows.shape[:-1]
    n, K = lead.numel(), 3
    S = n // K + 2
    place = torch.randperm(S * K, generator=rng)[:n]

    def kept(t, pad):
        """Return a store [S, K, V] whose second dimension has the larger stride, or [S * K, V]."""
        wide = torch.full((K, S, t.shape[-1] + pad), torch.nan, dtype=t.dtype)
        store = wide.transpose(0, 1)[..., : t.shape[-1]]
        store[place // K, place % K] = t.reshape(n, t.shape[-1])
        return store if by_slot else store.reshape(S * K, -1)

    out = args | {f"{side}_logits": kept(rows, 5), f"{side}_row": place.view(lead).to(dtype)}
    return out if stats is None else out | {f"{side}_stats": kept(stats, 0)}


def everywhere(args, rng, i):
    for j, side in enumerate(SIDES):
        args = put_away(args, side, rng, by_slot=(i + j) % 2 == 0, dtype=(torch.int32, torch.int64)[i // 2 % 2])
    return args


def plain_calls(**inputs):
    """Return the example calls without row indices: dense and ragged, with stats, filters, bonus tokens, every rule."""
    calls = [
        call._replace(arguments=flat.flattened("verify_chain", call.arguments))
        for call in example_calls.calls("verify_chain", **inputs)
    ]
    others = {"target_row", "draft_row", "draft_ids"}  # the calls below move rows, not their ids
    calls = [call for call in calls if not others & {*call.arguments}]
    # some requests are greedy by the target's stats; the draft's stats are neither given nor needed
    greedy = torch.arange(4).repeat_interleave(6) % 2
    stats = sk.row_stats(sk.Rows(calls[0].arguments["target_logits"].flatten(0, 1), temperature=greedy.float()))
    return [*calls, example_calls.Call("some greedy", calls[1].arguments | {"target_stats": stats.view(4, 6, 4)})]


def check_elsewhere(verify, calls, numbered=None):
    rng = torch.Generator().manual_seed(5)
    for i, (name, args) in enumerate(calls):
        assert_same((numbered or verify)(**everywhere(args, rng, i)), verify(**args), name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_side_by_side(backend, dtype):
    """NaN rows that no index names change nothing. Where kernels are not interpreted, V has two chunks."""
    inputs = {"V": 77} if backend == "triton-interpret" else {"V": 1500}
    calls = plain_calls(dtype=dtype, **inputs)
    assert len(calls) > 25
    step = 4 if backend == "triton-interpret" and tiers.TIER != "all" else 2
    check_elsewhere(backends.call("verify_chain", backend), calls[dtype == torch.bfloat16 :: step])


def gathered(wrong):
    """Return verify_chain with its rows gathered by a function that may be wrong."""

    def verify(**args):
        for side in SIDES:
            row, rows = args.pop(f"{side}_row", None), args.get(f"{side}_logits")
            if row is not None:
                every = rows.reshape(-1, rows.shape[-1])
                at = wrong(row.long(), rows).clamp(0, len(every) - 1)
                args[f"{side}_logits"] = every[at]
                if args.get(f"{side}_stats") is not None:
                    args[f"{side}_stats"] = args[f"{side}_stats"].reshape(-1, 4)[at]
        return flat.call(sk.verify_chain, **args)

    return verify


MUTANTS = {
    "in order": lambda row, rows: torch.arange(row.numel()).view(row.shape),
    "the next one": lambda row, rows: row + 1,
    "slot and place exchanged": lambda row, rows: (
        row if rows.dim() == 2 else row % rows.shape[1] * rows.shape[0] + row // rows.shape[1]
    ),
}


def test_the_check_can_fail():
    calls = plain_calls()[:3]
    verify = functools.partial(flat.call, sk.verify_chain)
    check_elsewhere(verify, calls, gathered(lambda row, rows: row))
    for name, wrong in MUTANTS.items():
        with pytest.raises(AssertionError):
            check_elsewhere(verify, calls, gathered(wrong))
            pytest.fail(f"not seen: {name}")


def test_positions_may_share_a_row(backend):
    """Positions may share rows. Each request's parameters apply to the rows that it reads."""
    rng = torch.Generator().manual_seed(6)
    B, G, V = 6, 3, 50
    rows = torch.randn(2, V, generator=rng)
    at = torch.randint(0, 2, (B, G + 1), generator=rng)
    seeds = {"seed": torch.arange(B), "offset": torch.arange(B) + 7, "draft_tokens": torch.randint(0, V, (B, G))}
    of_requests = {
        "temperature": torch.arange(1.0, B + 1) / 2,
        "top_k": torch.arange(B),
        "draft_top_p": seeds["seed"] / 9 + 0.3,
    }
    verify = backends.call("verify_chain", backend)
    for how in ({}, {"method": "block", "rule": "chow", "alpha": 0.9}):
        both = seeds | of_requests | how
        got = verify(target_logits=rows, target_row=at, draft_logits=rows, draft_row=at[:, :G].flip(1), **both)
        assert_same(got, verify(target_logits=rows[at], draft_logits=rows[at[:, :G].flip(1)], **both), how)


# ---- one-hot drafts among others, and indices out of range ----------------------------------------------------------


def mixed(B, G, V, seed, extra=0, Vq=None):
    """Return a call in which some drafts are one-hot (index -1), and some rows of either side have an index out of
    range."""
    rng = torch.Generator().manual_seed(seed)
    N = 3 * G
    target, noise = torch.randn(N, V, generator=rng) * 2, torch.randn(N, Vq or V, generator=rng) / 2
    draft = noise
    draft[:, :V] += target[:, : Vq or V]
    at = torch.randint(0, N, (B, G + 1), generator=rng)
    row = at[:, : G + extra].clone()
    what = torch.rand(row.shape, generator=rng)
    row[what < 0.4] = -1
    row[what > 0.85] = torch.tensor([N, *NOWHERE])[torch.randint(0, 5, row.shape, generator=rng)][what > 0.85]
    target_row = at.where(torch.rand(at.shape, generator=rng) > 0.1, -1)
    return {
        "target_logits": target,
        "draft_tokens": draft[at[:, :G]].softmax(-1).flatten(0, 1).multinomial(1, generator=rng).view(B, G),
        "draft_logits": draft.view(3, G, -1),
        "target_row": target_row,
        "draft_row": row,
        "uniforms": torch.rand(B, G + 1, generator=rng, dtype=torch.float64),
    }


ALPHA = {"relaxed": (3.0, 0.5), "opt_log": (0.8, 0), "chow_log": (1.5, 0), "lossy": (0.4, 0), "chow": (0.9, 0)}


def every_rule(method, each):
    """Return this many requests for each rule of a method."""
    rules = CHAIN_METHODS[method].rules
    alpha = torch.tensor([ALPHA.get(rule, (0.5, 0.5)) for rule in rules]).repeat(each, 1)
    codes = torch.tensor([RULES[rule].code for rule in rules]).repeat(each)
    return len(codes), {"method": method, "rule": codes, "alpha": alpha}


@pytest.mark.slow_in_triton
@pytest.mark.parametrize("method", races.OTHERS)
def test_mixed_drafts_as_the_reference(backend, method):
    """Results agree with the reference under every rule, with and without the draft's row for the bonus position, whose
    index may also be out of range."""
    B, by = every_rule(method, backends.scale(40, backend, least=4))
    for seed, extra in ((0, 0), (1, 1)):
        args = mixed(B, 3, 12, seed, extra, Vq=14 if extra else None) | by
        out, ref = backends.run("verify_chain", backend, **args), flat.call(reference.verify_chain, **args)
        checks.assert_same_tokens(out, ref, f"{method} {extra}")
        assert {0, 1, 4} <= set(ref.status.tolist()) and set(ref.num_accepted.tolist()) == {0, 1, 2, 3}
    args = mixed(B, 3, 12, 2) | {"method": method}
    out, ref = backends.run("verify_chain", backend, **args), flat.call(reference.verify_chain, **args)
    checks.assert_same_tokens(out, ref, f"{method} exact")


@pytest.mark.slow_in_triton
@pytest.mark.parametrize("method", races.OTHERS)
def test_minus_one_is_no_row_at_all(backend, method):
    """-1 at every position equals, bit for bit, a call without draft_logits. The store holds NaN, or is empty."""
    B, by = every_rule(method, 1)
    args = mixed(B, 3, 12, 2, extra=1)
    row, rows = args.pop("draft_row"), args.pop("draft_logits")
    verify = backends.call("verify_chain", backend)
    for how in (by, {"method": method}):
        want = verify(**args, **how)
        for store in (torch.full_like(rows, torch.nan), rows[:0], rows[0, :0]):
            assert_same(verify(**args, **how, draft_logits=store, draft_row=torch.full_like(row, -1)), want)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("method", races.OTHERS)
def test_numbers_of_no_row(backend, method, ragged):
    """An index out of range sets a status bit and changes no other request. An index of a draft row that is out of
    range ends the draft."""
    B, G, V = 30, 3, 20
    args = mixed(B, G, V, 3) | {"method": method}
    args["uniforms"][:, :G] /= 3
    N, rng = len(args["target_logits"]), torch.Generator().manual_seed(4)
    args |= {f"{side}_row": torch.randint(0, N, (B, G + 1 - j), generator=rng) for j, side in enumerate(SIDES)}
    everyone, hit = torch.arange(B), torch.arange(B) % 2 == 0
    numbers = torch.tensor([N, *NOWHERE])[everyone % 5]
    verify = backends.call("verify_chain", backend)

    def run(**more):
        call = args | more
        if ragged:
            behind = {name: call[name].flatten() for name in ("draft_tokens", "target_row", "draft_row")}
            call |= behind | {"cu_draft": torch.arange(B + 1) * G, "max_draft": G}
        return verify(**call)

    want = run()
    assert (want.status == 0).all()
    spared = type(want)(*(x[~hit] for x in want))
    i = everyone // 2 % G
    row, ended = args["draft_row"].clone(), args["draft_tokens"].clone()
    row[hit, i[hit]], ended[hit, i[hit]] = numbers[hit], -1
    got, cut = run(draft_row=row), run(draft_tokens=ended)
    assert_same([x[~hit] for x in got], spared)
    assert_same(got._replace(status=cut.status), cut)
    reached = hit & (want.num_accepted >= i)
    assert reached.sum() > 5 and (got.status[reached] == 4).all() and set(got.status.tolist()) == {0, 4}

    i = everyone // 2 % (G + 1)
    row = args["target_row"].clone()
    row[hit, i[hit]] = torch.where(everyone % 3 == 0, -1, numbers)[hit]
    got = run(target_row=row)
    assert_same([x[~hit] for x in got], spared)
    assert (got.num_accepted <= i)[hit].all()
    lost = hit & (got.num_accepted == i)
    assert lost.sum() > 5 and set(i[lost].tolist()) == {0, 1, 2, 3}
    assert (got.status[lost] == 1).all() and (got.status[~lost] == 0).all()
    assert (got.tokens[lost, i[lost]] == 0).all() and got.logprobs[lost, i[lost]].isnan().all()


# ---- far away, and wrong calls --------------------------------------------------------------------------------------


def far_apart(rows, drafts, u):
    """Return the results from a store whose last row starts more than 2^31 elements after its first, from one with more
    than 2^31 rows that share memory, and from the same rows side by side."""
    S, K, V = rows.shape
    apart = 2**31 + 12_345
    far = torch.empty(apart * (S - 1) + K * V, dtype=rows.dtype, device=rows.device).as_strided(
        rows.shape, (apart, V, 1)
    )
    far.copy_(rows)
    at = torch.tensor([[3, 1], [2, 0]], device=rows.device)
    many = rows[0, :1].expand(2**33, V)
    slots = rows[0, 0].expand(2**17, 2**17, V)
    last = torch.tensor([[2**33 - 1, 2**32], [2**31, 2**32 + 7]], device=rows.device)
    out = []
    for store, number in ((rows, at), (far, at), (rows, at * 0), (many, last), (slots, last)):
        for kept in ({}, {"temperature": 0.7, "draft_top_k": 5}, {"method": "block", "rule": "chow", "alpha": 0.9}):
            call = {"target_row": number, "draft_row": number[:, :1].flip(0), "uniforms": u}
            out.append([*flat.call(sk.verify_chain, store, drafts, store, **call, **kept)])
    return out


@pytest.mark.slow
def test_numbers_and_offsets_past_2_31(op_backend):
    """The memory is reserved, but most of it is never touched."""
    rng = torch.Generator().manual_seed(3)
    rows = torch.randn(2, 2, 1500, generator=rng).bfloat16()
    drafts, u = torch.tensor([[7], [9]]), torch.rand(2, 2, generator=rng, dtype=torch.float64)
    near, far, one, many, slots = torch.arange(15).view(5, 3).tolist()
    out = backends.there(op_backend, far_apart, rows, drafts, u)
    for got, want in ((far, near), (many, one), (slots, one)):
        for i, j in zip(got, want):
            assert all(torch.equal(a, b) for a, b in zip(out[i], out[j]))


def wrong_calls():
    call = flat.flattened("verify_chain", dict(stored(example_calls.Inputs(V=11), _step()))["rows by number"])
    row, rows = call["draft_row"], call["draft_logits"]
    yield {"target_row": [0]}, TypeError, "target.row must be a torch.Tensor, got list"
    yield {"draft_row": row.float()}, ValueError, "draft.row must be int32 or int64, got float32"
    yield {"draft_row": row[:, :3]}, ValueError, r"draft.row must have shape \[B=4, G=5\], got \[4, 3\]"
    yield {"draft_row": row[0]}, ValueError, r"draft.row must have shape \[B, G\], got \[5\]"
    yield {"target_row": row}, ValueError, r"target must have G\+1=6 rows for G=5 drafts"
    yield {"target_row": call["target_row"].to("meta")}, ValueError, "target.row must be on cpu, got meta"
    yield (
        {"draft_logits": rows[None]},
        ValueError,
        r"draft.logits must have shape \[N, Vq\] or \[S, K, Vq\] where draft.row is given, got \[1, 10, 4, 11\]",
    )
    yield {"target_logits": rows[0, 0]}, ValueError, r"target.logits must have shape \[N, V\] or \[S, K, V\] where"
    yield (
        {"target_stats": torch.zeros(4, 6, 4)},
        ValueError,
        r"target.stats must have shape \[N=40, 4\], got \[4, 6, 4\]",
    )
    yield (
        {"draft_stats": torch.zeros(40, 4)},
        ValueError,
        r"draft.stats must have shape \[S=10, K=4, 4\], got \[40, 4\]",
    )
    ragged = {"cu_draft": torch.tensor([0, 2]), "max_draft": 5, "draft_tokens": torch.zeros(2, dtype=torch.int64)}
    behind = {"target_row": row.flatten()[:3], "draft_row": row.flatten()[:2]} | ragged
    more = {"seed": torch.zeros(1, dtype=torch.int64), "offset": torch.zeros(1, dtype=torch.int64)}
    yield behind | more | {"target_row": row[:1]}, ValueError, r"target.row must have shape \[R=3\], got \[1, 5\]"
    yield (
        behind | more | {"target_row": row.flatten()[:5]},
        ValueError,
        r"target must have D\+B=3 rows for D=2 drafts \(one after the last draft of each request\), got 5",
    )
    wanted = r"draft.row must have shape \[D=2\], got \[5\]"
    yield behind | more | {"draft_row": row.flatten()[:5]}, ValueError, wanted


def _step():
    call = example_calls.calls("verify_chain", V=11)[1]
    assert call.name == "seeds"
    return call.arguments


@pytest.mark.parametrize("other, error, message", list(wrong_calls()))
def test_errors(other, error, message):
    call = flat.flattened("verify_chain", dict(stored(example_calls.Inputs(V=11), _step()))["rows by number"])
    with pytest.raises(error, match=f"^verify_chain: {message}"):
        flat.call(sk.verify_chain, **call | other)


@pytest.mark.parametrize("side", SIDES)
def test_values_are_no_errors_on_the_cpu_either(side):
    """Invalid values set status on the CPU as on a device, so that programs behave alike on both."""
    call = flat.flattened("verify_chain", dict(stored(example_calls.Inputs(V=11), _step()))["rows by number"])
    out = flat.call(sk.verify_chain, **call | {f"{side}_row": torch.full_like(call[f"{side}_row"], 40)})
    assert (out.status == {"target": 1, "draft": 4}[side]).all() and (out.num_accepted == 0).all()
