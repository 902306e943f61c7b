# SPDX-License-Identifier: Apache-2.0
"""The bytes that kernels read, counted access by access, in the checked build of the `.cu` files for the CPU.

The harness runs blocks in ascending order, so that the counts are exact and not only bounded. A row is `V * item`
bytes. Further reads are gathers (an entry of a row by its id) and the rescan: the final draw reads one chunk of 1024
entries once to sum it up and again up to the token that it picks.
"""

import pytest
import torch
from support import backends, tally
from support.bytes_read import BF16, BLOCK, CHUNK, F32, RESCAN, count, language_rows, note, within

import specdec_kernels as sk

ENDS_EARLY = 5  # the request whose draft ends at position 2

pytestmark = [
    pytest.mark.thorough,  # the checked build takes both cores for a minute
    pytest.mark.skipif("cuda-on-cpu" not in backends.NAMES, reason="cuda-on-cpu was not asked for"),
]


def step(B, G, V, dtype):
    """Return one step of B requests. The draft's rows are the target's with noise, and the draft tokens are drawn from
    them."""
    target = language_rows(1, B * (G + 1), V, dtype).reshape(B, G + 1, V)
    noise = torch.randn(B, G, V, generator=torch.Generator().manual_seed(2))
    draft = (target[:, :G].float() + 0.6 * noise).to(dtype)
    rng = torch.Generator().manual_seed(3)
    drafts = torch.multinomial(draft.float().softmax(-1).flatten(0, 1), 1, generator=rng).reshape(B, G)
    uniforms = torch.rand(B, G + 1, generator=rng, dtype=torch.float64)
    # its drafts are accepted, and its last token is drawn from row 2 of p
    drafts[ENDS_EARLY, 2], uniforms[ENDS_EARLY, :2] = -1, 0
    return {"target_logits": target, "draft_tokens": drafts, "draft_logits": draft, "uniforms": uniforms}


def positions(out):
    """Return [B, G+1] masks: before the stop, at it, after it."""
    n, i = out.num_accepted[:, None], torch.arange(out.tokens.shape[1])[None]
    return i < n, i == n, i > n


# A ragged last chunk; whole chunks, which are read 16 bytes at a time; the size in the documentation's byte counts.
@pytest.mark.parametrize(
    "B, V, dtype", [(32, 3000, BF16), (32, 3000, F32), (32, 8192, BF16), (32, 8192, F32), (8, 151_936, BF16)]
)
def test_verify_chain(B, V, dtype):
    """With given draft stats, target rows are read once up to the stop. After a rejection the target row there is read
    twice and the draft's once; no other draft row is read."""
    G, item = 5, dtype.itemsize
    args = step(B, G, V, dtype)
    stats = backends.run("row_stats", "cpu", args["draft_logits"].flatten(0, 1)).reshape(B, G, 4)
    out, (target, draft), launches = count("verify_chain", "target_logits", "draft_logits", draft_stats=stats, **args)
    before, at, after = positions(out)
    full = out.num_accepted == G
    ended = torch.zeros(B, dtype=torch.bool)
    ended[ENDS_EARLY] = out.num_accepted[ENDS_EARLY] == 2
    rejected = ~full & ~ended
    assert ended.any() and full.any() and rejected.any(), "not a test of all the outcomes"
    assert [blocks > 0 for _, blocks in launches] == [True, True]
    row = V * item

    # Each needed target row once, and p of the draft token, once for both its test and its logprob.
    assert (target.distinct[~after] == row).all() and (target.read[after] == 0).all()
    assert (target.read[before] == row + item).all()
    at_stop = target.read[at]
    assert within(at_stop[rejected], 2 * row, RESCAN + 1, item)  # the second read is for the residual
    assert within(at_stop[full], row, RESCAN, item) and within(at_stop[ended], row, RESCAN, item)

    # The draft: q of each tested token, and one row for a rejected request.
    before, at, after = before[:, :G], at[:, :G], after[:, :G]
    assert (draft.read[before] == item).all() and (draft.read[after] == 0).all()
    assert ((draft.distinct == row).sum(-1) == rejected).all()
    assert within(draft.read[at & rejected[:, None]], row, 2 * CHUNK + 2, item)
    assert (draft.read[at & ended[:, None]] == 0).all()

    if V == 8192:  # rows are read 16 bytes at a time, gathers and the rescan entry by entry
        assert set(target.loads) == set(draft.loads) == {item, 16}
        assert target.loads[16] * 16 == int(row * ((out.num_accepted + 1).sum() + rejected.sum()))
        assert draft.loads[16] * 16 == int(row * rejected.sum())
    rows, again, read = (
        int((out.num_accepted + 1).sum()),
        int(rejected.sum()),
        int(target.read.sum() + draft.read.sum()),
    )
    more = (read - row * (rows + 2 * again)) / B / item
    tally.notes.append(
        f"verify_chain, B={B}, V={V}, {dtype}, draft stats: {rows} target rows (of {B * (G + 1)}), "
        f"{again} of them again at the stop, {again} draft rows (of {B * G}), "
        f"{more:.0f} entries a request gathered or rescanned; {read:,} bytes"
    )


@pytest.mark.parametrize("V, dtype", [(3000, F32), (8192, BF16)])
def test_small_batches(V, dtype):
    """In a small batch every target row up to the draft's end is read once. A rejection reads its target row once more,
    and its draft row once. Each block of a request gathers the entries for its own tests."""
    B, G, item = 8, 5, dtype.itemsize
    args = step(B, G, V, dtype)
    stats = backends.run("row_stats", "cpu", args["draft_logits"].flatten(0, 1)).reshape(B, G, 4)
    watched = ("target_logits", "draft_logits")
    out, (target, draft), launches = count("verify_chain", *watched, small=True, draft_stats=stats, **args)
    assert [name.split("<")[0] for name, _ in launches] == ["scan_positions", "verify_positions"]
    row, blocks = V * item, launches[1][1] // B
    _, at, _ = positions(out)
    behind = torch.zeros(B, G + 1, dtype=torch.bool)
    behind[ENDS_EARLY, 3:] = True
    rejected = at & (out.num_accepted < G)[:, None] & ~behind
    rejected[ENDS_EARLY, 2] = False
    assert rejected.any() and (target.read[behind] == 0).all() and (target.distinct[~behind] == row).all()
    assert within(target.read[~behind & ~rejected], row, RESCAN + blocks + 1, item)
    assert within(target.read[rejected], 2 * row, RESCAN + blocks + 1, item)
    assert ((draft.distinct == row) == rejected[:, :G]).all()
    assert within(draft.read[rejected[:, :G]], row, 2 * CHUNK + blocks + 1, item)
    assert (draft.read[~rejected[:, :G]] <= blocks * item).all()


def test_verify_chain_ragged():
    """The same requests as a ragged batch read the same rows."""
    B, G, V = 8, 3, 2048
    args = step(B, G, V, BF16)
    stats = backends.run("row_stats", "cpu", args["draft_logits"].flatten(0, 1)).reshape(B, G, 4)
    dense, (target, draft), _ = count("verify_chain", "target_logits", "draft_logits", draft_stats=stats, **args)
    flat = {name: args[name].flatten(0, 1) for name in ("target_logits", "draft_tokens", "draft_logits")}
    flat |= {
        "cu_draft": torch.arange(B + 1) * G,
        "max_draft": G,
        "uniforms": args["uniforms"],
        "draft_stats": stats.flatten(0, 1),
    }
    ragged, (target_rows, draft_rows), _ = count("verify_chain", "target_logits", "draft_logits", **flat)
    assert torch.equal(dense.tokens, ragged.tokens) and dense.num_accepted.unique().numel() > 2
    assert torch.equal(target.read.flatten(), target_rows.read) and torch.equal(draft.read.flatten(), draft_rows.read)


def test_greedy_reads_no_draft_row():
    B, G, V, item = 32, 5, 4096, 2
    args = step(B, G, V, BF16)
    out, (target, draft), _ = count("verify_chain", "target_logits", "draft_logits", temperature=torch.zeros(B), **args)
    _, _, after = positions(out)
    assert out.num_accepted.unique().numel() > 3
    assert (target.distinct[~after] == V * item).all() and (target.read[after] == 0).all()
    # The chunk of the maximum again, to find its first id. The draft's entry is read before the maximum is known.
    assert within(target.read[~after], V * item, CHUNK + 1, item)
    assert (draft.read == 0).all()


def test_one_hot_drafts():
    B, G, V, item = 32, 5, 4096, 2
    args = step(B, G, V, BF16)
    del args["draft_logits"]
    args["draft_tokens"] = torch.where(
        torch.rand(B, G, generator=torch.Generator().manual_seed(4)) < 0.8,
        args["target_logits"][:, :G].argmax(-1),
        args["draft_tokens"],
    )
    out, (target,), _ = count("verify_chain", "target_logits", **args)
    before, at, after = positions(out)
    assert out.num_accepted.unique().numel() > 3
    assert (target.read[before] == (V + 1) * item).all() and (target.read[after] == 0).all()
    rejected = (out.num_accepted < G) & (
        args["draft_tokens"].gather(1, out.num_accepted.clamp(max=G - 1).long()[:, None])[:, 0] >= 0
    )
    # The row's sums are known: only the chunk of the draft token is summed again.
    assert within(target.read[at][rejected], (V + CHUNK) * item, CHUNK + BLOCK + 1, item)
    assert within(target.read[at][~rejected], V * item, CHUNK + BLOCK, item)
    filtered, (again,), _ = count("verify_chain", "target_logits", top_k=V - 1, **args)  # then the sums are not known
    assert (again.read[at][rejected] > 2 * V * item).all() and torch.equal(filtered.num_accepted, out.num_accepted)
    small = {name: x[:8] for name, x in args.items()}
    few, (target,), launches = count("verify_chain", "target_logits", small=True, **small)
    assert torch.equal(few.tokens, out.tokens[:8]) and launches[1][1] == 8, "a block a request"
    stops = target.read[at[:8]][rejected[:8]]
    assert len(stops) and within(stops, (V + CHUNK) * item, CHUNK + BLOCK + G + 2, item)


@pytest.mark.parametrize("small", [False, True])
def test_sparse_drafts(small):
    """Each of the draft's k entries is read once, in place of V. Target rows are read as with a dense draft."""
    B, G, V, k, item = 32, 5, 8192, 16, 2
    args = step(B, G, V, BF16)
    args["draft_logits"], ids = args["draft_logits"].topk(k)
    rng = torch.Generator().manual_seed(3)
    drawn = torch.multinomial(args["draft_logits"].float().softmax(-1).flatten(0, 1), 1, generator=rng)
    args["draft_tokens"] = ids.gather(-1, drawn.reshape(B, G, 1))[..., 0]
    args = {name: x[: 8 if small else B] for name, x in (args | {"draft_ids": ids}).items()}
    watched = ("target_logits", "draft_logits", "draft_ids")
    out, (target, draft, of_ids), launches = count("verify_chain", *watched, small=small, **args)
    before, at, after = positions(out)
    rejected = at & (out.num_accepted < G)[:, None]
    assert rejected.any() and not rejected.all() and out.status.max() == 0
    blocks = launches[-1][1] // len(out.tokens)
    assert within(target.read[before | (at & ~rejected)], V * item, RESCAN + blocks + 1, item)
    assert within(target.read[rejected], 2 * V * item, RESCAN + blocks + 1, item)
    assert (draft.read == k * item).all()
    assert (of_ids.read <= 4 * k * ids.element_size()).all()
    note(
        "verify_chain, k = 16, draft",
        draft.read.sum() + of_ids.read.sum(),
        draft.distinct.sum() + of_ids.distinct.sum(),
    )


def test_both_stats_handed_over():
    """Only the rows where a request stops are read whole."""
    B, G, V, item = 32, 5, 4096, 2
    args = step(B, G, V, BF16)
    for side, rows in (("target", G + 1), ("draft", G)):
        args[f"{side}_stats"] = backends.run("row_stats", "cpu", args[f"{side}_logits"].flatten(0, 1)).reshape(
            B, rows, 4
        )
    out, (target, draft), _ = count("verify_chain", "target_logits", "draft_logits", **args)
    before, at, after = positions(out)
    assert (target.distinct[before] == item).all() and (target.read[after] == 0).all()
    assert within(target.read[at], V * item, RESCAN + 2, item)
    assert (draft.distinct[before[:, :G]] == item).all() and (draft.read[after[:, :G]] == 0).all()


def test_probability_rows():
    """No normalisation is needed, so again only the rows where a request stops are read whole."""
    B, G, V, item = 16, 3, 4096, 4
    args = step(B, G, V, F32)
    args |= {f"{side}_logits": args[f"{side}_logits"].softmax(-1) for side in ("target", "draft")}
    out, (target, draft), _ = count(
        "verify_chain", "target_logits", "draft_logits", target_kind="probs", draft_kind="probs", **args
    )
    before, at, after = positions(out)
    assert (target.distinct[before] == item).all() and (target.read[after] == 0).all()
    assert within(target.read[at], V * item, RESCAN + 2, item)
    assert ((draft.distinct == V * item).sum(-1) <= 1).all() and (draft.read[after[:, :G]] == 0).all()


def test_filters_on_the_target():
    """Temperature, top-k and top-p on the target: a row before the stop is read at most about twice, the second time
    for the cutoff. The row at the stop is read at most about three times."""
    B, G, V, item = 16, 5, 8192, 2
    args = step(B, G, V, BF16)
    stats = backends.run("row_stats", "cpu", args["draft_logits"].flatten(0, 1)).reshape(B, G, 4)
    out, (target, draft), _ = count(
        "verify_chain",
        "target_logits",
        "draft_logits",
        draft_stats=stats,
        temperature=0.8,
        top_k=50,
        top_p=0.95,
        **args,
    )
    before, at, after = positions(out)
    assert (target.distinct[~after] == V * item).all() and (target.read[after] == 0).all()
    assert within(target.read[before], V * item, V + 2 * CHUNK + 2, item)
    assert within(target.read[at], V * item, 2 * V + 2 * CHUNK + RESCAN + 2, item)
    note(
        f"verify_chain with filters, V={V}, bf16",
        target.read.sum() + draft.read.sum(),
        V * item * int((out.num_accepted + 1).sum()),
    )


def test_a_request_by_a_rule_leaves_the_others_alone():
    """Exact requests read the same bytes beside requests under a rule. The latter read their own target rows whole, up
    to the end of the draft."""
    B, G, V = 8, 3, 2048
    args = step(B, G, V, BF16)
    args["draft_stats"] = backends.run("row_stats", "cpu", args["draft_logits"].flatten(0, 1)).reshape(B, G, 4)
    exact, (target, draft), _ = count("verify_chain", "target_logits", "draft_logits", **args)
    rule = torch.tensor([sk.RULES["exact"], sk.RULES["chow"]]).repeat(B // 2)
    mixed, (target_too, draft_too), launches = count(
        "verify_chain", "target_logits", "draft_logits", rule=rule, alpha=1.0, **args
    )
    assert len(launches) == 3 and (exact.num_accepted[::2] < G).any()
    assert torch.equal(exact.tokens[::2], mixed.tokens[::2])
    assert mixed.num_accepted[1::2].tolist() == [G, G, 2, G], "the draft's law stands for the target's"
    assert torch.equal(target.read[::2], target_too.read[::2]) and torch.equal(draft.read[::2], draft_too.read[::2])
    whole = target_too.distinct[1::2] == V * BF16.itemsize
    ends = ENDS_EARLY // 2  # its draft ends after 2 tokens, so the last position is not reached
    assert whole[ends].tolist() == [True, True, True, False] and whole.sum() == whole.numel() - 1


# ---- row_stats and sample -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("V", [1, 1023, 3000, 8192])
def test_row_stats_reads_once(V, dtype):
    z = language_rows(5, 12, V, dtype) if V > 10 else torch.ones(12, V, dtype=dtype)
    out, (rows,), launches = count("row_stats", "logits", logits=z, temperature=0.7)
    assert (rows.read == V * dtype.itemsize).all() and (rows.distinct == rows.read).all() and len(launches) == 1
    _, (rows,), _ = count("row_stats", "logits", logits=z, temperature=0)
    assert within(rows.read, V * dtype.itemsize, CHUNK, dtype.itemsize)  # a greedy row: the chunk of the maximum again


FILTERS = [
    {"top_k": 50},
    {"top_k": 1},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"min_p": 0.02, "top_p": 0.95},
    {"top_k": 50, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
]


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("params", FILTERS, ids=["-".join(f) for f in FILTERS])
def test_row_stats_reads_at_most_twice_with_filters(params, dtype):
    """Rows like those of language models are read at most twice."""
    V, item = 8192, dtype.itemsize
    z = language_rows(6, 12, V, dtype)
    _, (rows,), launches = count("row_stats", "logits", logits=z, **params)
    assert within(rows.read, V * item, V, item) and (rows.distinct == V * item).all() and len(launches) == 1
    note(f"row_stats, {params}, V={V}, {dtype}", rows.read.sum(), rows.distinct.sum())


@pytest.mark.parametrize("V, dtype", [(151_936, BF16), (151_936, F32), (50_003, torch.float16)])
@pytest.mark.parametrize("k, more", [(50, {"temperature": 0.8, "top_p": 0.95}), (1, {}), (300, {"min_p": 1e-4})])
def test_top_k_reads_the_best_lanes_again(V, dtype, k, more):
    """The k-th largest of the lanes' maxima bounds the cutoff. Only k lanes, of 32 entries each, are read again."""
    z = language_rows(7, 2, V, dtype).roll(1, 1)
    _, (rows,), _ = count("row_stats", "logits", logits=z, top_k=k, **more)
    ties = 40  # lanes whose maxima equal the k-th, in half precision
    assert within(rows.read, z[0].nbytes, 32 * (k + ties), dtype.itemsize)
    note(f"row_stats, top_k={k}, {more}, V={V}, {dtype}", rows.read.sum(), rows.distinct.sum())


@pytest.mark.parametrize("params", [{"top_p": 0.9}, {"top_p": 0.99}, {"top_k": 3000}, {"top_k": 50, "top_p": 0.9}])
@pytest.mark.parametrize("law", ["undecided", "flat"])
def test_row_stats_of_broad_rows(params, law):
    """More logits may be the cutoff than the kernel can hold, so it finds where the cutoff lies from a sample of one
    logit in 32.

    In undecided rows, ten tokens have logits of 4 to 12, and the other, normal logits have about half of the mass. In
    flat rows, all logits lie within some hundredths.
    """
    V = 20_480
    flat = 0.01 * torch.randn(4, V, generator=torch.Generator().manual_seed(8))
    z = flat if law == "flat" else language_rows(8, 4, V, F32, 4.0, 12.0)
    _, (rows,), _ = count("row_stats", "logits", logits=z, **params)
    assert within(rows.read, V * 4, V, 4)
    note(f"row_stats of {law} rows, {params}, V={V}, fp32", rows.read.sum(), rows.distinct.sum())


def test_row_stats_where_the_guess_is_hardest():
    """At the median of a wide flat row the sample is least precise: the kernel can gather 2.8 standard deviations of
    its error."""
    V = 151_936
    z = 0.01 * torch.randn(6, V, generator=torch.Generator().manual_seed(9))
    _, (rows,), _ = count("row_stats", "logits", logits=z, top_p=0.5)
    assert within(rows.read, V * 4, V, 4)
    note(f"row_stats of flat rows, top_p=0.5, V={V}, fp32", rows.read.sum(), rows.distinct.sum())


@pytest.mark.parametrize("params, whole", [({}, 1), ({"temperature": 0.8, "top_k": 50, "top_p": 0.95}, 3)])
def test_sample(params, whole):
    """Without filters a row is read once, and for each draw one chunk of it up to twice. With filters it is read at
    most once more for the cutoff, and once more for the remaining distribution."""
    V, k, item = 8192, 2, 2
    z = language_rows(9, 12, V, BF16)
    u = torch.rand(12, k, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    _, (rows,), launches = count("sample", "logits", logits=z, k=k, uniforms=u, **params)
    assert (
        within(rows.read, V * item, (whole - 1) * V + 2 * CHUNK * (whole > 1) + k * RESCAN, item) and len(launches) == 1
    )
    note(f"sample, {params}, V={V}, bf16", rows.read.sum(), rows.distinct.sum())


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("V", [3000, 151_936])
def test_support_reads_once(V, dtype):
    z = language_rows(5, 3, V, dtype)
    stats = backends.run("row_stats", "cpu", z, top_k=50)
    _, (rows,), launches = count("support", "logits", logits=z, stats=stats, max_kept=64)
    assert (rows.read == V * dtype.itemsize).all() and (rows.distinct == rows.read).all() and len(launches) == 1


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("V, k, again", [(3000, 20, 3000), (151_936, 20, 20 * CHUNK)])
def test_top_logprobs_reads_the_best_chunks_again(V, k, again, dtype):
    """A row that a block can sort at once is read twice. Of a longer row, the chunks with the k largest maxima are read
    again. In both, each id's logit is read once more for its logprob."""
    z = language_rows(5, 3, V, dtype)
    stats = backends.run("row_stats", "cpu", z)
    _, (rows,), launches = count("top_logprobs", "logits", logits=z, stats=stats, k=k)
    assert (rows.distinct == V * dtype.itemsize).all() and len(launches) == 1
    assert within(rows.read, V * dtype.itemsize, again + k, dtype.itemsize)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("given", [False, True])
def test_row_topw_reads_the_best_chunks_again(given, dtype):
    """Only the chunks with the w largest maxima are read again, and those that tie with them in score."""
    z = language_rows(5, 3, 151_936, dtype)
    args = {"logits": z, "score": torch.tensor([0.0, -100.0, -20.0]), "w": 8}
    args |= {"stats": backends.run("row_stats", "cpu", z)} if given else {}
    _, (rows,), launches = count("row_topw", "logits", **args)
    assert (rows.distinct == z[0].nbytes).all() and len(launches) == 1
    assert within(rows.read, z[0].nbytes, 8 * CHUNK, dtype.itemsize)


def test_ranks_read_once():
    """Every lane reads the token's logit once per chunk of its warp."""
    z = language_rows(5, 3, 151_936, BF16)
    args = {"logits": z, "stats": backends.run("row_stats", "cpu", z), "k": 0, "tokens": torch.tensor([[5]] * 3)}
    _, (rows,), launches = count("top_logprobs", "logits", **args)
    assert within(rows.read, z[0].nbytes, 32 * 149 + BLOCK, 2) and len(launches) == 1


def test_top_logprobs_of_many_ids():
    """With more ids than chunks, a radix select comes first. It skips chunks once it knows where the cutoff lies."""
    z = language_rows(6, 2, 151_936, F32)
    stats = backends.run("row_stats", "cpu", z)
    for k in (1000, 4096):
        _, (rows,), _ = count("top_logprobs", "logits", logits=z, stats=stats, k=k)
        assert within(rows.read, z[0].nbytes, 4 * z.shape[1] + k, 4)
        note(f"top_logprobs, k={k}, V=151936, fp32", rows.read.sum(), rows.distinct.sum())


# ---- padded buffers: absent rows and requests are not read ----------------------------------------------------------

NUMBER = torch.tensor([2])


def assert_first_alone_are_read(counts):
    for c in counts:
        assert (c.read[:2] > 0).any() and (c.read[2:] == 0).all()


@pytest.mark.parametrize("op", ["row_stats", "sample", "residual"])
def test_absent_rows(op):
    z = language_rows(3, 5, 9000, BF16)
    seeds = {name: torch.arange(5) for name in ("seed", "offset")}
    args = {"row_stats": {"logits": z}, "sample": {"logits": z, "k": 2, **seeds},
            "residual": {"p": z.float().softmax(-1), "q": z.roll(1, -1).float().softmax(-1)}}[op]  # fmt: skip
    watched = {"row_stats": ["logits"], "sample": ["logits", "seed", "offset"], "residual": ["p", "q"]}[op]
    _, counts, _ = count(op, *watched, num_rows=NUMBER, **args)
    assert_first_alone_are_read(counts)


@pytest.mark.parametrize(
    "how", [{}, {"rule": torch.full((8,), sk.RULES["lossy"]), "alpha": torch.full((8,), 0.3)}, {"method": "block"}]
)
def test_absent_requests(how):
    args = step(8, 5, 3000, BF16) | {"temperature": torch.full((8,), 0.9), **how}
    watched = [name for name, x in args.items() if isinstance(x, torch.Tensor)]
    _, counts, _ = count("verify_chain", *watched, num_requests=NUMBER, **args)
    assert_first_alone_are_read(counts)


@pytest.mark.parametrize("method", ["recursive", "traversal"])
@pytest.mark.parametrize("rule", ["exact", "lossy"])
def test_absent_trees(method, rule):
    target = language_rows(4, 5 * 4, 3000, BF16).reshape(5, 4, 3000)
    parents = torch.tensor([-1, 0, 0, 1]).repeat(5, 1)
    tokens = target.float().topk(2).indices[:, [0, 0, 0, 1], [0, 0, 1, 0]]
    uniforms = torch.full((5, 5), 0.5, dtype=torch.float64)
    args = {"target_logits": target, "draft_logits": target.roll(1, 0).contiguous(), "uniforms": uniforms}
    rules = {} if rule == "exact" else {"rule": torch.full((5,), sk.RULES[rule]), "alpha": torch.full((5,), 0.3)}
    watched = [*args, *rules]
    _, counts, _ = count("verify_tree", *watched, tree=(parents, tokens), method=method, num_requests=NUMBER, **args,
                         **rules)  # fmt: skip
    assert_first_alone_are_read(counts)
