# SPDX-License-Identifier: Apache-2.0
"""count_tokens_ against lists made anew by `history`, and against a Counter of each list. All results are integers, so
they must be equal. backends.run calls the op on copies of the lists, and returns these after the status."""

import contextlib
import random
from collections import Counter

import pytest
import torch
from support import backends
from support.count_tokens_mutants import SOURCES
from support.worker import Worker

import specdec_kernels as sk
from tools.cuda_on_cpu.build import CSRC
from tools.cuda_on_cpu.mutants import mutate

I32, I64 = torch.int32, torch.int64
LARGEST = 2**31 - 1
FULL, INVALID = sk.STATUS_HISTORY_FULL, sk.STATUS_INVALID_ROW


def counted(backend, *args, **kwargs):
    return backends.run("count_tokens_", backend, *args, **kwargs)


def lists(*rows, size):
    """Return ids and counts of lists, each given as {id: count}."""
    ids, counts = torch.full((len(rows), size), -1, dtype=I32), torch.zeros(len(rows), size, dtype=I32)
    for row, listed in enumerate(rows):
        ids[row, : len(listed)] = torch.tensor(sorted(listed), dtype=I32)
        counts[row, : len(listed)] = torch.tensor([listed[v] for v in sorted(listed)], dtype=I32)
    return ids, counts


def listed(ids, counts):
    """Return lists as [{id: count}]; the ids must ascend and end with -1."""
    found = []
    for row, amounts in zip(ids.tolist(), counts.tolist()):
        n = len(row) - row.count(-1)
        assert row[:n] == sorted({*row[:n]}) and row[n:] == [-1] * (len(row) - n), row
        found.append(dict(zip(row[:n], amounts)))
    return found


def wanted(before, emitted, size):
    """Return the list after a step, and its status."""
    count = Counter(before)
    count.update(v for v in emitted if 0 <= v < 1 << 24)
    best = sorted(((-min(n, LARGEST), v) for v, n in count.items()))[:size]
    return {v: -n for n, v in best}, FULL * (len(count) > size)


def check(backend, before, tokens, size, num_tokens=None, row=None, dtype=I64):
    """Check one call; return the statuses. before: [{id: count}]; tokens: [B][n]; row: the index of each request's
    list, or -1 if the request is absent."""
    padded = [[*x, *[-1] * (max(map(len, tokens)) - len(x))] for x in tokens]
    given = [None if x is None else torch.tensor(x, dtype=dtype) for x in (padded, num_tokens, row)]
    status, *after = counted(backend, *lists(*before, size=size), *given)
    want, bits = [dict(x) for x in before], []
    for b, s in enumerate(range(len(tokens)) if row is None else row):
        n = num_tokens[b] if num_tokens is not None else (padded[b] + [-1]).index(-1)
        new, bit = (None, 0) if s < 0 else wanted(before[s], padded[b][:n], size)
        bits.append(bit)
        if s >= 0:
            want[s] = new
    assert listed(*after) == want
    assert status.dtype == I32 and status.tolist() == bits
    return bits


# ---- long sequences of steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_number", [True, False], ids=["num_tokens", "up to -1"])
@pytest.mark.parametrize("dtype", [I32, I64])
def test_lists_stay_those_that_history_makes(backend, dtype, by_number):
    """Lists updated over many steps equal those that history makes. Some requests are absent. Some emit tokens of their
    prompt, or the same token twice."""
    rng, slots, size, vocabulary = random.Random(7), 5, 60, 50
    steps = backends.scale(200, backend, least=25)
    prompts = [[rng.randrange(vocabulary) for _ in range(rng.choice((0, 3, 9)))] for _ in range(slots)]
    outputs = [[] for _ in range(slots)]
    kept, known, absent = sk.history(prompts, outputs, size), 0, 0
    for _ in range(steps):
        row = [s if rng.random() < 0.8 else -1 for s in rng.sample(range(slots), 4)]
        emitted = [[rng.randrange(vocabulary) for _ in range(rng.randint(1, 6))] for _ in row]
        # The entries after a request's tokens are -1, or arbitrary ids if num_tokens is given.
        pad = (lambda: rng.randrange(vocabulary)) if by_number else (lambda: -1)
        tokens = [[*x, *(pad() for _ in range(6 - len(x)))] for x in emitted]
        counts = [len(x) if s >= 0 else 99 for s, x in zip(row, emitted)]  # not read for an absent request
        num_tokens = torch.tensor(counts, dtype=dtype) if by_number else None
        given = torch.tensor(tokens, dtype=dtype), num_tokens, torch.tensor(row, dtype=dtype)
        status, *kept = counted(backend, *kept, *given)
        assert status.tolist() == [0] * len(row)
        for s, x in zip(row, emitted):
            absent += s < 0
            if s >= 0:
                known += len({*x} & {*prompts[s], *outputs[s]})
                outputs[s] += x
        for got, want in zip(kept, sk.history(prompts, outputs, size)):
            assert got.dtype == I32 and torch.equal(got, want)
    assert known > 2 * steps and absent > steps / 4


def test_penalties_with_kept_lists_are_those_with_lists_made_anew(backend):
    g = torch.Generator().manual_seed(5)
    prompts, outputs = torch.randint(0, 40, (2, 3, 8), generator=g).tolist()
    step = torch.randint(0, 40, (3, 5), generator=g)
    _, *kept = counted(backend, *sk.history(prompts, outputs, 32), step)
    made = sk.history(prompts, [x + y for x, y in zip(outputs, step.tolist())], 32)
    before = sk.history(prompts, outputs, 32)
    z = torch.randn(3, 40, generator=g) * 3
    stats = [
        backends.run("row_stats", backend, sk.Rows(z, penalties=sk.Penalties(1.3, 0.5, 0.2, *lists)))
        for lists in (kept, made, before)
    ]
    assert torch.equal(stats[0], stats[1]) and not torch.equal(stats[0], stats[2])


# ---- full lists -----------------------------------------------------------------------------------------------------


def test_a_full_list_by_hand(backend):
    before = {1: 0, 3: 1, 5: 1, 7: 2}
    # The token that is only in the prompt is dropped first, then the highest id of those counted once.
    assert check(backend, [before], [[4, 4, 6]], size=4) == [FULL]
    status, ids, counts = counted(backend, *lists(before, size=4), torch.tensor([[4, 4, 6]]))
    assert ids.tolist() == [[3, 4, 5, 7]] and counts.tolist() == [[1, 2, 1, 2]] and status.tolist() == [16]
    # A new id is left out if its count is the smallest and its id the highest.
    _, ids, counts = counted(backend, *lists({1: 1, 2: 1}, size=2), torch.tensor([[9]]))
    assert ids.tolist() == [[1, 2]] and counts.tolist() == [[1, 1]]
    # A new id replaces a listed one of the same count if the new id is lower.
    _, ids, counts = counted(backend, *lists({1: 1, 9: 1}, size=2), torch.tensor([[2]]))
    assert ids.tolist() == [[1, 2]] and counts.tolist() == [[1, 1]]
    # A full list sets no status bit as long as only its own ids are emitted.
    assert check(backend, [{1: 1, 9: 1}], [[9, 1, 9]], size=2) == [0]
    assert check(backend, [{}], [[5, 5, 4]], size=0) == [FULL]
    assert check(backend, [{}], [[]], size=0) == [0]


def test_full_lists(backend):
    """Small lists with many equal counts, so that results depend on which entries are kept."""
    rng, seen = random.Random(3), Counter()
    for i in range(backends.scale(300, backend, least=24)):
        size, most = rng.choice((1, 2, 5, 12, 40)), rng.choice((1, 2, 9, LARGEST))
        vocabulary = rng.choice((size, 2 * size + 2, 90))
        before = [
            {v: rng.randint(0, most) for v in rng.sample(range(vocabulary), rng.randint(0, min(size, vocabulary)))}
            for _ in range(6)
        ]
        tokens = [[rng.randrange(vocabulary) for _ in range(rng.choice((0, 1, 3, 30)))] for _ in range(6)]
        seen.update(check(backend, before, tokens, size, row=rng.sample(range(6), 6), dtype=(I32, I64)[i % 2]))
    assert min(seen[0], seen[FULL]) > 20


def test_lists_longer_than_a_block(backend):
    """Lists span several tiles of 256 threads, and more ids enter and leave than a tile holds."""
    rng = random.Random(11)
    for used, size in ((900, 1900), (900, 900), (900, 1000), (257, 300), (0, 600)):
        some = rng.sample(range(5000), used)
        before = [{v: rng.choice((0, 0, 1, 1, 2, 70)) for v in some}]
        tokens = [[rng.randrange(5000) if rng.random() < 0.7 else rng.choice(some or [3]) for _ in range(700)]]
        check(backend, before, tokens, size)


def in_small_tiles(*args):
    """Run interpreted Triton with programs of 16 lanes. The interpreter's usual programs are wide enough to hold every
    list, so they would not loop over tiles."""
    from specdec_kernels.triton.core import launch

    elements, launch.elements = launch.elements, lambda: 16
    try:
        return backends.public("count_tokens_", *args)
    finally:
        launch.elements = elements


@pytest.mark.skipif("triton-interpret" not in backends.NAMES, reason="triton-interpret was not asked for")
def test_triton_in_small_tiles():
    rng = random.Random(2)
    for size in (1, 15, 40, 41):
        before = {v: rng.choice((0, 1, 1, 2)) for v in rng.sample(range(70), min(size, 40))}
        emitted = [rng.randrange(70) for _ in range(50)]
        args = *lists(before, size=size), torch.tensor([emitted])
        status, *after = backends.there("triton-interpret", in_small_tiles, *args)
        want, bit = wanted(before, emitted, size)
        assert listed(*after) == [want] and status.tolist() == [bit]


# ---- tokens and counts ----------------------------------------------------------------------------------------------


def test_counts_saturate(backend):
    before = [{1: LARGEST - 2, 2: LARGEST - 1, 3: LARGEST, 4: LARGEST - 3}]
    check(backend, before, [[1, 1, 1, 2, 3, 4, 4, 4]], size=6)
    _, _, counts = counted(backend, *lists(*before, size=6), torch.tensor([[1, 1, 1, 2, 3, 4, 4, 4]]))
    assert counts.tolist() == [[LARGEST] * 4 + [0, 0]]


def test_what_is_no_token_changes_nothing(backend):
    last = (1 << 24) - 1
    strange = [last + 1, -7, 2**31, 2**32 + 5, -(2**40), 2**63 - 1, -(2**63), last]
    assert check(backend, [{5: 0}], [[*strange, 5]], size=4, num_tokens=[9]) == [0]
    _, ids, counts = counted(backend, *lists({5: 0}, size=4), torch.tensor([strange]))
    assert ids.tolist() == [[5, last, -1, -1]] and counts.tolist() == [[0, 1, 0, 0]]
    # Without num_tokens, -1 ends the tokens, and other negative ids are skipped. With num_tokens, -1 is skipped too.
    for num_tokens, want in ((None, {3: 1, 4: 1}), (0, {}), (1, {3: 1}), (5, {3: 1, 4: 1, 6: 1})):
        given = None if num_tokens is None else torch.tensor([num_tokens])
        _, *after = counted(backend, *lists({}, size=4), torch.tensor([[3, -7, 4, -1, 6]]), given)
        assert listed(*after) == [want]


def test_as_many_tokens_as_a_call_takes(backend):
    tokens = torch.arange(1024).flip(0)[None] % 600
    check(backend, [{}], tokens.tolist(), size=700)
    assert check(backend, [{}], tokens.tolist(), size=500) == [FULL]


def test_nothing_is_read_of_absent_requests(backend):
    ids, counts = lists({1: 1}, {2: 2}, size=3)
    args = ids, counts, torch.tensor([[1, 2], [5, 5]]), torch.tensor([-3, 2**40]), torch.tensor([-1, -1], dtype=I32)
    status, *after = counted(backend, *args)
    assert status.tolist() == [0, 0] and listed(*after) == [{1: 1}, {2: 2}]


@pytest.mark.parametrize("B, n, S, H", [(0, 3, 0, 4), (0, 3, 2, 4), (2, 0, 2, 4), (2, 3, 2, 0), (0, 0, 0, 0)])
def test_empty_calls(backend, B, n, S, H):
    ids, counts = torch.full((S, H), -1, dtype=I32), torch.zeros(S, H, dtype=I32)
    row = None if S == B else torch.zeros(B, dtype=I64)
    status, *after = counted(backend, ids, counts, torch.full((B, n), 3), row=row)
    assert status.tolist() == [FULL * (n > 0 and H == 0)] * B
    assert torch.equal(after[0] >= 0, (torch.arange(H) < min(n, 1)).expand(S, H) & (B > 0))


# ---- memory ---------------------------------------------------------------------------------------------------------


def in_buffer(buffer, slices, *args):
    """Call count_tokens_ on lists that are slices of a buffer. Return the status and the buffer. Runs in the backend's
    process."""
    ids, counts = (buffer[part] for part in slices)
    status = sk.count_tokens_(ids, counts, *args)
    return status, buffer


ALL = slice(None)
LAYOUTS = {  # the shape of a buffer, and where ids and counts of 3 lists of 7 entries lie in it
    "side by side": ((3, 20), ((ALL, slice(1, 8)), (ALL, slice(9, 16)))),
    "in turn": ((3, 2, 7), ((ALL, 0), (ALL, 1))),
    "every second row": ((6, 7), ((slice(0, None, 2),), (slice(1, None, 2),))),
    "one after the other": ((2, 3, 7), ((0,), (1,))),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_in_a_larger_buffer(op_backend, layout):
    """Lists inside a larger buffer are updated like separate ones, and the rest of the buffer stays unchanged."""
    shape, slices = LAYOUTS[layout]
    own = lists({2: 1, 9: 0}, {1: 1}, {v: v % 3 for v in range(7)}, size=7)
    buffer = torch.full(shape, 77, dtype=I32)
    for part, x in zip(slices, own):
        buffer[part] = x
    wide = torch.tensor([[2, 3, 9, 1, 1, 8], [0, 9, 9, -1, 4, 4], [50, 50, 3, 40, -1, 3]])
    tokens = wide.t().contiguous().t()
    row = torch.tensor([[2, 7, 0, 7, 1]])[0, ::2]  # strided as well
    want_status, *want = counted("reference", *own, wide, row=row)
    status, after = backends.there(op_backend, in_buffer, buffer, slices, tokens, None, row)
    assert torch.equal(status, want_status) and status.tolist() == [FULL, 0, 0]
    for part, x in zip(slices, want):
        assert torch.equal(after[part], x)
        after[part] = 77
    assert (after == 77).all()


def overlapping(how):
    """Make a call whose lists share memory with each other or with an argument."""
    buffer = torch.full((40,), -1, dtype=I32)
    ids, counts, tokens = buffer[:12].view(3, 4), torch.zeros(3, 4, dtype=I32), torch.zeros(3, 2, dtype=I32)
    other = {
        "one list for all": {"ids": ids[:1].expand(3, 4)},
        "lists that overlap": {"ids": buffer.as_strided((3, 4), (3, 1))},
        "counts of one list for all": {"counts": counts[:1].expand(3, 4)},
        "the same memory": {"counts": ids},
        "shifted": {"counts": buffer[2:14].view(3, 4)},
        "a slice that overlaps": {"ids": buffer[:24].view(3, 8)[:, :4], "counts": buffer[:24].view(3, 8)[:, 3:7]},
        "other strides": {"counts": buffer.as_strided((3, 4), (5, 1), 4)},
        "tokens": {"tokens": buffer[:6].view(3, 2)},
        "tokens of the counts": {"tokens": counts[:, :2]},
        "row": {"row": buffer[11:14]},
        "num_tokens": {"num_tokens": counts[0, :3]},
    }[how]
    sk.count_tokens_(**{"ids": ids, "counts": counts, "tokens": tokens} | other)


@pytest.mark.parametrize("how, message", [
    ("one list for all", r"ids must be lists with memory of their own, got strides \[0, 1\]"),
    ("lists that overlap", r"ids must be lists with memory of their own, got strides \[3, 1\]"),
    ("counts of one list for all", r"counts must be lists with memory of their own, got strides \[0, 1\]"),
    *((how, "counts must have memory of its own, got some of another argument's")
      for how in ("the same memory", "shifted", "a slice that overlaps", "other strides")),
    ("tokens", "tokens must have memory of its own, got some of another argument's"),
    ("tokens of the counts", "tokens must have memory of its own, got some of another argument's"),
    ("row", "row must have memory of its own, got some of another argument's"),
    ("num_tokens", "num_tokens must have memory of its own, got some of another argument's"),
])  # fmt: skip
def test_lists_need_memory_of_their_own(op_backend, how, message):
    with pytest.raises(ValueError, match=f"^count_tokens_: {message}$"):
        backends.there(op_backend, overlapping, how)


# ---- bad data -------------------------------------------------------------------------------------------------------

BAD = {  # changes to a call of three requests with lists of four entries, and the error on the CPU
    "descends": ({"ids": [[5, 3, -1, -1]]}, "ids must ascend and end with -1, got 5 then 3 in list 0"),
    "twice": ({"ids": [[3, 3, -1, -1]]}, "ids must ascend and end with -1, got 3 then 3 in list 0"),
    "after a pad": ({"ids": [[3, -1, 5, -1]]}, "ids must ascend and end with -1, got -1 then 5 in list 0"),
    "negative": ({"ids": [[-2, 3, 5, 7]]}, "ids must ascend and end with -1, got -2 then -2 in list 0"),
    "a count": ({"counts": [[0, -1, 0, 0]]}, "counts must be >= 0, got -1 in list 0"),
    "a slot": ({"row": [0, 3, 1]}, r"row must be in \[-1, 3\), got 3 at index 1"),
    "a negative slot": ({"row": [0, -2, 1]}, r"row must be in \[-1, 3\), got -2 at index 1"),
    "a slot twice": ({"row": [1, 2, 1]}, "row must name each list once, got 1 at index 0 and at index 2"),
    "too many": ({"num_tokens": [2, 3, 1]}, r"num_tokens must be in \[0, n=2\], got 3 at index 1"),
    "too few": ({"num_tokens": [2, -1, 1]}, r"num_tokens must be in \[0, n=2\], got -1 at index 1"),
}


def bad_call(name):
    ids, counts = lists({3: 1, 4: 0, 9: 2}, {1: 1}, {}, size=4)
    call = {"ids": ids, "counts": counts, "tokens": torch.tensor([[4, 8], [1, 1], [6, 7]])}
    for argument, x in BAD[name][0].items():
        x = torch.tensor(x)
        if argument in ("ids", "counts"):
            call[argument][0] = x[0]
        else:
            call[argument] = x
    return call


@pytest.mark.parametrize("name", BAD)
def test_bad_data_raises_on_the_cpu_and_changes_nothing(name):
    call = bad_call(name)
    before = call["ids"].clone(), call["counts"].clone()
    with pytest.raises(ValueError, match=f"^count_tokens_: {BAD[name][1]}$"):
        sk.count_tokens_(**call)
    assert torch.equal(call["ids"], before[0]) and torch.equal(call["counts"], before[1])


@pytest.mark.parametrize("name", BAD)
def test_bad_data_sets_a_status_on_a_device(op_backend, name):
    """The other requests are counted. If two requests name one list, the first is counted. A bad num_tokens is
    clamped."""
    if op_backend == "cpu":
        pytest.skip("the CPU raises")
    got = backends.run_without_values("count_tokens_", op_backend, **bad_call(name))
    want = counted("reference", **bad_call(name))
    assert all(map(torch.equal, got, want))
    bad = {"a slot": 1, "a negative slot": 1, "a slot twice": 2}.get(name, 0 if not name.startswith("too") else None)
    assert got[0].tolist() == [INVALID if b == bad else 0 for b in range(3)]


def test_bad_arguments(op_backend):
    ids, counts = lists({1: 1}, {}, size=3)
    tokens = torch.zeros(2, 4, dtype=I64)
    wrong = [
        ((ids.long(), counts, tokens), "ids must be int32, got int64"),
        ((ids[0], counts, tokens), r"ids must have shape \[S, H\], got \[3\]"),
        ((ids.t().contiguous().t(), counts, tokens), r"ids must be contiguous in its last dimension, got strides"),
        ((ids, counts[:, :2], tokens), r"counts must have shape \[S=2, H=3\], got \[2, 2\]"),
        ((ids, counts.float(), tokens), "counts must be int32, got float32"),
        ((ids, counts, tokens[0]), r"tokens must have shape \[B, n\], got \[4\]"),
        ((ids, counts, tokens.float()), "tokens must be int32 or int64, got float32"),
        ((ids, counts, tokens[:1].expand(3, 4)), "ids must be of 3 lists, or row be given, got 2"),
        ((ids, counts, tokens[:, :1].expand(2, 1025)), "tokens must hold at most 1024 a request, got 1025"),
        ((ids, counts, tokens, tokens[0]), r"num_tokens must have shape \[B=2\], got \[4\]"),
        ((ids, counts, tokens, counts[:, 0].float()), "num_tokens must be int32 or int64, got float32"),
        ((ids, counts, tokens, None, tokens[0]), r"row must have shape \[B=2\], got \[4\]"),
    ]
    for args, message in wrong:
        with pytest.raises(ValueError, match=f"^count_tokens_: {message}"):
            counted(op_backend, *args)
    with pytest.raises(TypeError, match="^count_tokens_: tokens must be a torch.Tensor, got list"):
        counted(op_backend, ids, counts, [[1], [2]])


# ---- torch's transforms ---------------------------------------------------------------------------------------------


def sums_after(buffer, tokens):
    """Write to two views of a buffer, then read the buffer."""
    status = sk.count_tokens_(buffer[:, 0], buffer[:, 1], tokens)
    return status, buffer.sum()


def test_a_compiled_call_writes_to_its_arguments():
    own = lists({2: 1, 9: 0}, {v: 1 for v in range(5)}, size=5)
    tokens = torch.tensor([[2, 3, 3], [8, 8, -1]])
    want_status, *want = counted("reference", *own, tokens)
    buffer = torch.stack(own, 1)
    status, total = torch.compile(sums_after, fullgraph=True, backend="aot_eager")(buffer, tokens)
    assert torch.equal(status, want_status) and status.tolist() == [0, FULL]
    assert torch.equal(buffer, torch.stack(want, 1)) and total == buffer.sum()


def test_vmap_writes_to_lists_with_an_entry_for_each():
    ids, counts = lists({2: 1}, {}, size=4)
    tokens = torch.tensor([[[2, 3], [1, -1]], [[7, 7], [8, 2]]])
    both = torch.stack([ids, ids]), torch.stack([counts, counts])
    torch.func.vmap(sk.count_tokens_)(*both, tokens)
    for i in range(2):
        _, *want = counted("reference", ids, counts, tokens[i])
        assert torch.equal(both[0][i], want[0]) and torch.equal(both[1][i], want[1])
    with pytest.raises(ValueError, match="count_tokens_: ids must have an entry for each of vmap's, got one for all"):
        torch.func.vmap(lambda tokens: sk.count_tokens_(ids, counts, tokens))(tokens)


# ---- mutants --------------------------------------------------------------------------------------------------------


def with_kernels_of(csrc, calls):
    from tools.cuda_on_cpu.build import load

    load("fast", csrc, ("count_tokens_",))
    return [backends.public("count_tokens_", *args) for args in calls]


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [None, *SOURCES])
def test_a_wrong_line_is_caught(mutant):
    rng, calls = random.Random(1), []
    for size in (1, 3, 9, 9, 600, 600):
        vocabulary = rng.choice((size, 2 * size, 2 * size + 40))
        before = [{v: rng.randint(0, 2) for v in rng.sample(range(vocabulary), min(vocabulary, n))}
                  for n in (size, size - 1, size // 2)]  # fmt: skip
        before[0][min(before[0])] = LARGEST
        tokens = torch.tensor([[rng.randrange(-2, vocabulary) for _ in range(40)] for _ in range(3)])
        tokens[:, 0] = min(before[0])
        for num_tokens in (None, torch.tensor([40, 2, 30])):
            calls.append((*lists(*before, size=size), tokens, num_tokens, torch.tensor([0, -1, 2])))
    worker = Worker("mutant", {"OMP_NUM_THREADS": "1"})
    csrc = mutate(CSRC, *SOURCES[mutant]) if mutant else CSRC
    # A mutant that writes elsewhere may end its process.
    with contextlib.nullcontext() if mutant is None else pytest.raises((AssertionError, ChildProcessError)):
        for got, args in zip(worker.call(with_kernels_of, csrc, calls), calls):
            assert all(map(torch.equal, got, counted("reference", *args)))
    worker.process.terminate()
