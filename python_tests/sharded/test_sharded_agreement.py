# SPDX-License-Identifier: Apache-2.0
"""All arguments that must be equal on all ranks are compared. Each argument of each op, small or large, that differs on
one rank gives the documented error on all of them; a difference in strides does not."""

import inspect
import math

import pytest
import torch
from support.argument_copies import not_everywhere
from support.ranks import Ranks
from support.sharded_cases import results
from support.surface import plain, same

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.arguments import sides
from specdec_kernels.distributed.agreement import OPS, SMALL, digest
from specdec_kernels.distributed.fingerprint import fingerprint
from specdec_kernels.distributed.shards import EXCHANGES
from specdec_kernels.distributed.whole_rows import logits_of, with_logits

V = 1500
ROWS = {op: sides(op)[0] for op in OPS}
WORDS = {"method": ("token", "block", "kseq", "recursive", "greedy"), "rule": ("exact", "lossy", "typical")}
WORDS |= {"kind": ("logits", "probs")}


@pytest.fixture(scope="module")
def ranks():
    group = Ranks(2, 30.0)
    yield group
    group.stop()


def calls():
    """Return, for each op, the examples that add another kind of value for an argument."""
    found = [(op, call.name, call.arguments) for op in OPS for call in example_calls.few(op, V=V)]
    return [(op, name, given) for op, name, given in found if not has_ids(given.get("rows"))]  # split rows have none


def has_ids(rows):
    return isinstance(rows, sk.Rows) and (rows.ids is not None or rows.vocab_map is not None)


def other(name, x):
    """Return another value of the same kind, with the smallest difference; None if there is none."""
    name = name.rpartition(".")[2]
    if isinstance(x, torch.Tensor):
        x = x.clone().contiguous()
        flat = x.view(-1).view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
        flat[-1] ^= 1  # one bit
        return x
    if isinstance(x, str):
        return next(word for word in WORDS[name] if word != x)
    if isinstance(x, (bool, int, float)):
        return not x if isinstance(x, bool) else x + 1 if isinstance(x, int) else math.nextafter(x, 9)
    if x is None and name in ("temperature", "top_p", "seed"):
        return 1.0
    return None


def every_field(arguments):
    """Return the arguments as example_calls.flat() does, and also the fields of Rows that are not given."""
    given = {name: x for name, x in arguments.items() if isinstance(x, sk.Rows)}
    fields = {f"{name}.{field}": y for name, x in given.items() for field, y in x._asdict().items()}
    return {name: x for name, x in arguments.items() if name not in given} | fields


def changes(arguments, rows):
    """Yield (name, another value) for every argument except the split rows, and for each part of a tuple."""
    for name, x in every_field(arguments).items():
        if name in (rows, f"{rows}.logits"):
            continue
        if isinstance(x, tuple):
            parts = [(i, other(name, part)) for i, part in enumerate(x)]
            make = getattr(x, "_make", tuple)
            yield from ((name, make((*x[:i], part, *x[i + 1 :]))) for i, part in parts if part is not None)
        elif (changed := other(name, x)) is not None:
            yield name, changed


def sharded(op, arguments, exchange, **more):
    from specdec_kernels import distributed

    rows = ROWS[op]
    mine = example_calls.folded(every_field(arguments) | more)
    whole = logits_of(mine[rows])
    shards = distributed.Shards(whole.shape[-1], exchange=exchange)
    return getattr(distributed, op)(**mine | {rows: with_logits(mine[rows], whole[..., shards.here])}, shards=shards)


def said(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def not_found(rank, exchange, which):
    """Change arguments on rank 1, over a quarter of the calls. Return the number of changes, and those that did not
    give this rank the documented error."""
    missed, made, seen = [], 0, set()
    for op, example, call in calls()[which::4]:
        for name, changed in changes(call, ROWS[op]):
            kind = op, name, type(changed), example
            if kind in seen:
                continue
            seen.add(kind)
            got = said(sharded, op, call, exchange, **({name: changed} if rank == 1 else {}))
            made += 1
            where = f"{name}.logits" if name in sides(op) else name
            if got != f"RuntimeError: {op}: {where} must be the same on all ranks, got another one on rank 1 than on 0":
                missed.append((op, example, name, got))
    return made, missed


@pytest.mark.slow
@pytest.mark.parametrize("which", range(4))
def test_each_argument_of_each_op(ranks, which):
    for found in ranks.call(not_found, "chunks", which):
        assert not isinstance(found, Exception), found
        made, missed = found
        assert made > 30 and missed == []


NOT_WALKED = {  # fields that the op does not take, or that no example gives
    "row_stats": {"rows.row", "rows.stats", "rows.ids", "rows.vocab_map"},
    "sample": {"rows.row", "rows.ids", "rows.vocab_map"},
    "verify_chain": {"target.ids", "target.vocab_map"},
    "verify_tree": {"target.ids", "target.vocab_map"},
    **dict.fromkeys(
        ("row_gap", "kseq_rho"),
        {
            f"{side}.{x}"
            for side in "pq"
            for x in ("row", "top_k", "min_p", "top_n_sigma", "penalties", "bias", "allowed")
        }
        | {"p.ids", "p.vocab_map"},
    ),
}


def test_the_walk_has_every_argument():
    for op in OPS:
        walked = {name for other_op, _, call in calls() if op == other_op for name, _ in changes(call, ROWS[op])}
        named = set(inspect.signature(getattr(sk, op)).parameters) - {*sides(op), "out", "require_exact", "max_draft"}
        named |= {f"{side}.{field}" for side in sides(op) for field in sk.Rows._fields} - {f"{ROWS[op]}.logits"}
        assert named - walked <= NOT_WALKED.get(op, set()) | not_everywhere(op), op


def one_call(rank, exchange, which, how):
    """Call verify_chain. Rank 1 alone passes one side as Rows of the same tensor, at a temperature, or not at all."""
    generator = torch.Generator().manual_seed(3)
    target, draft = torch.randn(2, 2, 3, V, generator=generator)
    given = {"target": target, "draft_tokens": torch.ones(2, 2, dtype=torch.int64), "draft": draft[:, :2]}
    given |= {"seed": torch.arange(2), "offset": torch.arange(2)}
    change = {"as Rows": sk.Rows(given[which]), "not": None, "at T = 1": sk.Rows(given[which], temperature=1.0)}
    return said(sharded, "verify_chain", given, exchange, **({which: change[how]} if rank == 1 else {}))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_tensor_stands_for_its_rows_on_another_rank(ranks, exchange):
    for which in ("target", "draft"):
        assert ranks.call(one_call, exchange, which, "as Rows") == ["nothing"] * 2
        other = (
            f"RuntimeError: verify_chain: {which}.temperature must be the same on all ranks, got another one on rank "
        )
        assert ranks.call(one_call, exchange, which, "at T = 1") == [other + "1 than on 0"] * 2
    other = (
        "RuntimeError: verify_chain: draft.logits must be the same on all ranks, got another one on rank 1 than on 0"
    )
    assert ranks.call(one_call, exchange, "draft", "not") == [other] * 2


# ---- large arguments ------------------------------------------------------------------------------------------------

B, G = 3, 4
CHANGES = {
    "one bit": lambda x: x.view(-1).view(torch.int16)[-1:].bitwise_xor_(1),
    "the signs of two entries": lambda x: x.view(-1)[5:78:72].neg_(),
    "two entries of each row": lambda x: x.copy_(x[..., [1, 0, *range(2, x.shape[-1])]]),
    "a row turned by one": lambda x: x[-1].copy_(x[-1].roll(1, -1)),
    "two rows": lambda x: x.copy_(x[:, [1, 0, *range(2, x.shape[1])]]),
    "two requests": lambda x: x.copy_(x[[1, 0, *range(2, x.shape[0])]]),
    "all signs": lambda x: x.neg_(),
    "all": lambda x: x.add_(1),
    "nothing but strides": lambda x: x,
}  # fmt: skip


def large(rank, exchange, dtype, how):
    """Call verify_chain with a draft that every rank has whole, and that differs on rank 1."""
    generator = torch.Generator().manual_seed(3)
    target, draft = torch.randn(2, B, G + 1, 3001, generator=generator).to(dtype)
    draft = draft[:, :G]
    assert draft.nbytes > SMALL
    if rank == 1:
        draft = draft.contiguous()
        CHANGES[how](draft)
    tokens = torch.randint(0, 3001, (B, G), generator=generator)
    given = {"target": target, "draft_tokens": tokens, "draft": sk.Rows(draft)}
    given |= {"seed": torch.arange(B), "offset": torch.arange(B)}
    return said(sharded, "verify_chain", given, exchange)


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_draft_that_every_rank_has_whole(ranks, exchange, dtype, how):
    wanted = (
        "RuntimeError: verify_chain: draft.logits must be the same on all ranks, got another one on rank 1 than on 0"
    )
    got = ranks.call(large, exchange, dtype, how)
    assert got == ["nothing" if how == "nothing but strides" else wanted] * 2


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int32, torch.int64, torch.float64, torch.bfloat16])
def test_a_fingerprint_is_of_bits_and_places(dtype):
    """301 tensors that differ in one or two bits have different fingerprints."""
    x = torch.randint(0, 2, (7, 3, 50), generator=torch.Generator().manual_seed(1)).to(dtype)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert not turned.is_contiguous() and int(fingerprint(turned)) == int(fingerprint(x))
    seen = {int(fingerprint(x))}
    bits = 1 if dtype == torch.bool else 8 * x.element_size()
    for n in range(300):
        y = x.clone()
        flat = y.view(-1).view(torch.uint8)
        bit = n * 7 % bits
        flat[n * x.element_size() + bit // 8] ^= 1 << bit % 8
        seen.add(int(fingerprint(y)))
    assert len(seen) == 301


# ---- strides --------------------------------------------------------------------------------------------------------


def strided(x):
    """Return the same values as a column of a table, if an op reads such a tensor without a copy."""
    if isinstance(x, sk.Rows):
        return sk.Rows(x.logits, *map(strided, x[1:]))
    if isinstance(x, (sk.Penalties, sk.Bias, sk.Allowed)):  # lists must be contiguous, except a bias's ids
        lists = {sk.Penalties: ("ids", "counts", "prompt_bits"), sk.Bias: ("values",), sk.Allowed: ("bits",)}[type(x)]
        return x._replace(**{name: strided(y) for name, y in x._asdict().items() if name not in lists})
    if isinstance(x, sk.VocabMap):  # made by vocab_map, contiguous
        return x
    if isinstance(x, tuple):
        return tuple(map(strided, x))
    return torch.stack([x, x, x], -1)[..., 0] if isinstance(x, torch.Tensor) else x


def columns(rank, exchange):
    """Return the calls whose results differ from the plain op's if everything except the rows is a column of a table.
    Two more calls have a single row, whose parameters are columns of one entry."""
    found = []
    one = torch.randn(1, V, generator=torch.Generator().manual_seed(2))
    single = {"rows": sk.Rows(one, temperature=torch.tensor([0.7]), top_k=torch.tensor([5]))}
    random = {"seed": torch.tensor([3]), "offset": torch.tensor([4])}
    some = [("row_stats", "one row", single), ("sample", "one row", single | random), *calls()]
    for op, name, arguments in some:
        given = {key: x if key in sides(op) and torch.is_tensor(x) else strided(x) for key, x in arguments.items()}
        want = [plain(x) for x in results(getattr(sk, op)(**given))]
        got = [plain(x) for x in results(sharded(op, given, exchange))]
        if not same(got, want):
            found.append((op, name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_strides_are_no_difference(ranks, exchange):
    assert ranks.call(columns, exchange) == [[], []]


def test_one_entry_of_another_stride_has_one_digest():
    table = torch.tensor([[0.7, 1.0, 2.0]])
    assert digest(table[:, 0]) == digest(torch.tensor([0.7])) == digest(table[:, 0].clone())
    assert digest(table[0, 0]) != digest(table[:, 0])
