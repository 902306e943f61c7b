# SPDX-License-Identifier: Apache-2.0
"""Every kernel as it is launched for large rows, ready for triton.compile, without a GPU. No signature occurs twice."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import torch
import triton.language as tl

from specdec_kernels.registry import MASK_FORMATS, NOT_GIVEN, OPS
from specdec_kernels.triton import op_of
from specdec_kernels.triton.core import launch

ops = SimpleNamespace(**{name: op_of(name) for name in OPS})
VIEWED = ("row_stats", "sample", "top_logprobs", "row_topw", "support", "verify_chain", "verify_tree")
viewed = SimpleNamespace(**{name: op_of(f"{name}.views") for name in VIEWED})

TYPES = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip


class Case(NamedTuple):
    name: str  # kernel, its specialisation
    kernel: object
    signature: dict
    constexprs: dict
    attrs: dict
    threads: int
    wide: bool  # whether its row loads must be 16 bytes wide

    def source(self):
        from triton.compiler import ASTSource

        return ASTSource(self.kernel, self.signature, self.constexprs, self.attrs)

    def options(self, lanes: int) -> dict:
        """Return compile options for warps of 32 or 64 lanes."""
        return launch.options(self.threads, lanes)


def specialised(name: str, kernel, args, constants: dict, threads: int, wide: bool) -> Case:
    """Return the kernel with the signature that the JIT would find for these arguments.

    None and 1 are constants, and multiples of 16 are marked as such.
    """
    constexprs, attrs = {}, {}

    def type_of(x, path, varies: bool, aligned: bool):
        if isinstance(x, tuple):
            types = [type_of(y, (*path, i), False, aligned) for i, y in enumerate(x)]
            return type(x)(*types) if hasattr(x, "_fields") else tuple(types)
        if x is None or isinstance(x, tl.constexpr) or (type(x) is int and x == 1 and not varies):
            constexprs[path] = getattr(x, "value", x)
            return "constexpr"
        if isinstance(x, (bool, float)):
            return "u1" if isinstance(x, bool) else "fp32"
        if aligned and not varies and (isinstance(x, torch.Tensor) or x % 16 == 0):
            attrs[path] = [["tt.divisibility", 16]]
        return TYPES[x.dtype] if isinstance(x, torch.Tensor) else "i32" if -(2**31) <= x < 2**31 else "i64"

    signature = {}
    for i, (parameter, x) in enumerate(zip(kernel.params, args)):
        aligned = not parameter.do_not_specialize_on_alignment
        signature[parameter.name] = type_of(x, (i,), parameter.do_not_specialize, aligned)
    for i, key in enumerate(kernel.arg_names[len(args) :], len(args)):
        signature[key], constexprs[(i,)] = "constexpr", constants[key]
    return Case(name, kernel, signature, constexprs, attrs, threads, wide)


def aot_cases(V: int = 151_936, calls=None) -> Iterator[Case]:
    """Yield all kernels at bf16 and fp32, with and without the options that change their code.

    calls: a function (dtype, V) that yields calls as every_call does, to get the kernels of these calls only.
    """
    if launch.interpreted():
        raise RuntimeError("aot_cases: needs compiled kernels, got TRITON_INTERPRET=1")
    seen = set()
    for dtype in (torch.bfloat16, torch.float32):
        for what, call in (calls or every_call)(dtype, V):
            launch.recorded = []
            try:
                call()
                launches = launch.recorded
            finally:
                launch.recorded = None
            for kernel, args, constants, threads in launches:
                name = " ".join(
                    [kernel.__name__.removesuffix("_kernel"), str(dtype).removeprefix("torch."), what]
                ).strip()
                narrow = "traversal" in what and dtype.itemsize == 2  # 8 bytes per thread: see launch_walk
                wide = reads_rows(kernel, args) and not narrow
                case = specialised(name, kernel, args, constants, threads, wide)
                key = (kernel.__name__, *(str(x) for x in case[2:]))
                if key not in seen:
                    seen.add(key)
                    yield case


def reads_rows(kernel, args) -> bool:
    """Return whether a kernel reads whole chunks of rows. The second launch of row_stats does so only to filter."""
    if kernel.__name__ == "stats_kernel":
        return args[0].scratch.few is not None
    if kernel.__name__ == "race_kernel":  # rows with ids are read entry by entry
        return args[0].ids.numbers is None
    return kernel.__name__ not in (
        "accept_kernel",
        "absent_kernel",
        "uniforms_kernel",
        "budget_kernel",
        "build_tree_kernel",
        "grow_tree_kernel",
        "count_tokens_kernel",
        "climb_kernel",
        "put_units_kernel",
        "put_logprobs_kernel",
        "end_race_kernel",
        "bound_chunks_kernel",
        "put_best_kernel",
        "list_ids_kernel",
    )


B, G, N, NONE = 64, 5, 64, (None,) * 4


def meta(*shape: int, of: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=of, device="meta")


REAL, WHOLE, PAIRS, ONE = meta(B), meta(B, of=torch.int64), meta(B, 2), meta(1, of=torch.int64)
FILTERS = (REAL, WHOLE, REAL, REAL, REAL)
NUMBERS = (0.7, 50.0, 0.9, 0.01, 2.5)
NO_SAMPLING = (None,) * 6  # neither tensors nor numbers


def every_call(dtype: torch.dtype, V: int):
    """Yield (options, call): the name of the options that a call uses, and the call of one op on meta tensors."""
    rows = meta(B, V, of=dtype)
    yield from calls_of_rows(rows)
    yield from calls_of_views(rows)
    yield from calls_of_pairs(rows)
    yield from calls_of_chains(dtype, V)
    yield from calls_of_trees(dtype, V)
    yield from calls_of_ids(dtype, V)


def filter_calls(dtype: torch.dtype, V: int):
    yield "filters", lambda: ops.row_stats(meta(B, V, of=dtype), *FILTERS, None, None)


def calls_of_rows(rows):
    def drawn(stats=None, k=1, replacement=True, slot=None, n=None):
        return ops.sample(rows, *NO_SAMPLING, stats, k, replacement, WHOLE, WHOLE, slot, 0, None, n)

    yield "", lambda: ops.row_stats(rows, *NO_SAMPLING, None)
    yield "filters", lambda: ops.row_stats(rows, *FILTERS, None, None)
    yield "numbers", lambda: ops.row_stats(rows, *NO_SAMPLING[1:], NUMBERS, None)
    yield "padded", lambda: ops.row_stats(rows, *NO_SAMPLING, ONE)
    yield "", lambda: drawn()
    yield "stats", lambda: drawn(meta(B, 4))
    yield "k 4", lambda: drawn(k=4)
    yield "without replacement", lambda: drawn(k=4, replacement=False, slot=WHOLE)
    yield "padded", lambda: drawn(n=ONE)
    for what, n, by in (("race", None, WHOLE), ("race by noise keys, padded", ONE, None)):
        yield what, lambda n=n, by=by: ops.sample(
            rows, *NO_SAMPLING, None, 4, True, WHOLE, by, None, 0, None, n, True)  # fmt: skip
    ids = meta(B, 2, of=torch.int64)
    yield "", lambda: ops.top_logprobs(rows, meta(B, 4), 20, None, None)
    yield "tokens, padded", lambda: ops.top_logprobs(rows, meta(B, 4), 20, ids, ONE)
    yield "beams", lambda: ops.row_topw(rows, None, meta(B), 8, None)
    yield "beams, stats, padded", lambda: ops.row_topw(rows, meta(B, 4), meta(B), 8, ONE)
    yield "", lambda: ops.support(rows, meta(B, 4), None, 64, None)
    yield "of some, padded", lambda: ops.support(rows, meta(B, 4), WHOLE, 64, ONE)
    yield "", lambda: ops.uniforms(WHOLE, WHOLE, G, 0)


def calls_of_views(rows):
    lists, drafted = (meta(B, 2000, of=torch.int32),) * 2, meta(B, G, of=torch.int64)
    amounts = (REAL, REAL, REAL, None, *lists, None)
    bias, masks = (
        (meta(B, 20, of=torch.int64), meta(B, 20), None),
        (meta(B, -(-rows.size(1) // 32), of=torch.int32), None),
    )
    no_bias, no_mask = (None,) * 3, (None,) * 2
    view = (*amounts, *no_bias, *no_mask, drafted)
    yield "penalties", lambda: viewed.row_stats(rows, *FILTERS, None, None, *view)
    numbers = (*NONE[:3], (1.3, 0.5, 1.5), *lists, drafted[:, 0])
    yield (
        "penalties by number, bias",
        lambda: viewed.row_stats(rows, *NO_SAMPLING, None, *numbers, *bias, *no_mask, None),
    )
    yield "bias", lambda: viewed.row_stats(rows, *FILTERS, None, None, *NONE, *NONE[:3], *bias, *no_mask, None)
    yield "masks", lambda: viewed.row_stats(rows, *FILTERS, None, None, *NONE, *NONE[:3], *no_bias, *masks, None)
    yield (
        "penalties",
        lambda: viewed.sample(rows, *NO_SAMPLING, None, 1, True, WHOLE, WHOLE, None, 0, None, None, False, *view),
    )
    by_number = (*NONE[:3], (1.3, 0.5, 1.5), *lists, None, *no_bias, *no_mask)
    yield "penalties, race", lambda: viewed.sample(
        rows, *NO_SAMPLING, None, 4, True, WHOLE, WHOLE, None, 0, None, None, True, *by_number, drafted)  # fmt: skip
    yield "penalties", lambda: viewed.top_logprobs(rows, meta(B, 4), 20, meta(B, 2, of=torch.int64), None, *view)
    yield "penalties", lambda: viewed.row_topw(rows, None, meta(B), 8, None, *view)
    yield "penalties", lambda: viewed.support(rows, meta(B, 4), None, 64, None, *view)
    amounts = (*amounts, *no_bias, *no_mask)
    V, chains = rows.size(1), (meta(B, G + 1, rows.size(1), of=rows.dtype),)
    side = (*NO_SAMPLING, None, 0, None)
    for what, method, rule, x in (
        ("penalties", 0, None, amounts),
        ("penalties, block", 1, WHOLE, amounts),
        ("penalties, race", 2, None, by_number),
    ):
        yield what, lambda m=method, r=rule, x=x: viewed.verify_chain(
            *chains, *side, drafted, *chains, *side, None, G, None, m, r, None if r is None else PAIRS, None, WHOLE,
            WHOLE, None, None, *x, *x)  # fmt: skip
    tree, nodes = meta(B, N, of=torch.int32), meta(B, N, V, of=rows.dtype)
    for name, method in (("kseq", 0), ("recursive", 1), ("without replacement", 2), ("traversal", 5)):
        yield f"penalties, {name}", lambda m=method: viewed.verify_tree(
            tree, tree, None, None, None, nodes, *side, nodes, *side, m, G, None, None, None, WHOLE, WHOLE, None, None,
            *amounts, *amounts)  # fmt: skip
    yield "penalties, race", lambda: viewed.verify_tree(
        tree, tree, None, None, None, nodes, *side, None, *side, 6, G, None, None, None, WHOLE, WHOLE, None, None,
        *by_number, *(None,) * 12)  # fmt: skip


def calls_of_pairs(rows):
    few = meta(B, of=rows.dtype)
    yield "", lambda: ops.accept(few, few, meta(B, of=torch.float64))
    yield "", lambda: ops.residual(rows, rows, None)
    yield "one-hot", lambda: ops.residual(rows, WHOLE, None)
    yield "padded", lambda: ops.residual(rows, rows, ONE)
    for what, stats in (("", meta(B, 4)), ("probabilities", None)):
        yield what, lambda stats=stats: ops.row_gap(rows, stats, rows, stats)
        yield what, lambda stats=stats: ops.kseq_rho(rows, stats, rows, stats, WHOLE)


def calls_of_chains(dtype: torch.dtype, V: int):
    target, draft, tokens = meta(B, G + 1, V, of=dtype), meta(B, G, V, of=dtype), meta(B, G, of=torch.int64)

    def chain(
        q=None,
        p=target,
        d=tokens,
        cu=None,
        params=NO_SAMPLING,
        q_stats=None,
        q_params=NO_SAMPLING,
        probs=0,
        rules=(0, None, None),
        u=None,
        at=(None, None),
        n=None,
        rule_numbers=None,
    ):
        seeds = (None, None) if u is not None else (WHOLE, WHOLE)
        sides = (p, *params, None, probs, at[0]), (q, *q_params, q_stats, probs, at[1])
        ops.verify_chain(*sides[0], d, *sides[1], cu, G, None, *rules, rule_numbers, *seeds, u, n)

    def ragged(rules=(0, None, None)):
        rows, drafts, cu_draft = (B * (G + 1), V), (B * G, V), meta(B + 1, of=torch.int32)
        chain(meta(*drafts, of=dtype), meta(*rows, of=dtype), meta(B * G, of=torch.int64), cu_draft, rules=rules)

    u = meta(B, G + 1, of=torch.float64)
    yield "", lambda: chain(draft)
    yield "draft stats", lambda: chain(draft, q_stats=meta(B, G, 4))
    yield "filters", lambda: chain(draft, params=(*FILTERS, None), q_params=(*FILTERS, None))
    yield "numbers", lambda: chain(draft, params=(*NO_SAMPLING[1:], NUMBERS))
    yield "a rule for all", lambda: chain(draft, rule_numbers=(11.0, 0.3, NOT_GIVEN))
    yield "one-hot", lambda: chain()
    yield "probabilities", lambda: chain(draft, probs=1, u=u)
    yield "block", lambda: chain(target, rules=(1, WHOLE, PAIRS))  # its kernel also has the walks of all other rules
    yield "block, probabilities", lambda: chain(target, probs=1, u=u, rules=(1, WHOLE, PAIRS))
    yield "ragged", ragged
    at = meta(B, G + 1, of=torch.int64), meta(B, G, of=torch.int32)
    slots = meta(G, B, V, of=dtype).transpose(0, 1)
    yield "rows by slot", lambda: chain(slots, at=at)
    yield "rows by slot, block", lambda: chain(slots, at=at, rules=(1, WHOLE, PAIRS))
    yield "padded", lambda: chain(draft, n=ONE)
    yield "block, padded", lambda: chain(target, rules=(1, WHOLE, PAIRS), n=ONE)
    race = (2, None, None)
    yield "race", lambda: chain(rules=race)
    yield "race, probabilities, padded", lambda: chain(probs=1, rules=race, n=ONE)
    yield "race, rows by slot", lambda: chain(p=slots, at=(at[0], None), rules=race)
    yield "race, ragged", lambda: ragged(race)


def calls_of_ids(dtype: torch.dtype, V: int):
    """Yield calls on draft rows that are sparse or mapped, with and without views."""
    k, Vd, side, no_views = 64, 32_000, (*NO_SAMPLING, None, 0, None), (None,) * 12
    ids, packed = meta(B, k, of=torch.int64), meta(3 * Vd + V + 1, of=torch.uint32)
    z, mapped, p = meta(B, k, of=dtype), meta(B, Vd, of=dtype), meta(B, V, of=dtype)
    bias = (*(None,) * 7, meta(B, 20, of=torch.int64), meta(B, 20), None, None, None)
    yield "sparse", lambda: viewed.row_stats(z, *FILTERS, None, None, *no_views, None, ids)
    yield "sparse, bias", lambda: viewed.row_stats(z, *NO_SAMPLING, None, *bias, None, ids)
    yield "mapped", lambda: viewed.row_stats(mapped, *NO_SAMPLING, None, *no_views, None, packed)
    for what, replaces, rows, of in (("sparse", False, z, ids), ("mapped", True, mapped, packed)):
        yield (
            what,
            lambda replaces=replaces, rows=rows, of=of: viewed.sample(
                rows, *NO_SAMPLING, None, 4, replaces, WHOLE, WHOLE, None, 0, None, None, False, *no_views, None, of
            ),
        )
    for what, rows, of in (("sparse, race", z, ids), ("mapped, race", mapped, packed)):
        yield what, lambda rows=rows, of=of: viewed.sample(
            rows, *NO_SAMPLING, None, 4, True, WHOLE, WHOLE, None, 0, None, None, True, *no_views, None,
            of)  # fmt: skip
    for what, stats, rows, of in (("sparse", meta(B, 4), z, ids), ("mapped, probabilities", None, mapped, packed)):
        yield what, lambda stats=stats, rows=rows, of=of: ops.row_gap(p, stats, rows, stats, of)
        yield what, lambda stats=stats, rows=rows, of=of: ops.kseq_rho(p, stats, rows, stats, WHOLE, of)
    target, tokens = meta(B, G + 1, V, of=dtype), meta(B, G, of=torch.int64)
    sparse = meta(B, G, k, of=dtype), meta(B, G, k, of=torch.int64)
    for what, (rows, of), kind, at, rules, views in (
        ("sparse", sparse, 0, None, (0, None, None), no_views),
        ("sparse, bias", sparse, 0, None, (0, None, None), bias),
        ("sparse, probabilities, by slot", sparse, 1, meta(B, G, of=torch.int64), (0, None, None), no_views),
        ("mapped", (meta(B, G, Vd, of=dtype), packed), 0, None, (0, None, None), no_views),
        ("sparse, block", sparse, 0, None, (1, WHOLE, PAIRS), no_views),
        ("mapped, block", (meta(B, G, Vd, of=dtype), packed), 0, None, (1, WHOLE, PAIRS), no_views),
    ):
        yield what, lambda rows=rows, of=of, kind=kind, at=at, rules=rules, views=views: viewed.verify_chain(
            target, *side, tokens, rows, *NO_SAMPLING, None, kind, at, None, G, None, *rules, None, WHOLE, WHOLE, None,
            None, *no_views, *views, of)  # fmt: skip
    table, nodes, of = meta(B, N, of=torch.int32), meta(B, N, V, of=dtype), meta(B, N, k, of=torch.int64)
    for what, method, views, row in (
        ("sparse, kseq", 0, no_views, None),
        ("sparse, without replacement", 2, bias, table),
        ("sparse, traversal", 5, no_views, None),
    ):
        yield what, lambda method=method, views=views, row=row: viewed.verify_tree(
            table, table, None, None, None, nodes, *side, meta(B, N, k, of=dtype), *side[:-1], row, method, G, None,
            None, None, WHOLE, WHOLE, None, None, *no_views, *views, of)  # fmt: skip


def calls_of_trees(dtype: torch.dtype, V: int):
    rows, table, drafts = meta(B, N, V, of=dtype), meta(B, N, of=torch.int32), meta(B, 8, G, of=torch.int32)

    def tree(method, q=rows, drafts=None, stats=None, params=NO_SAMPLING, n=None):
        target = (rows, *params, stats, 0, None)
        draft = (q, *NO_SAMPLING, None if q is None else stats, 0, None)
        rest = (None, None, None, WHOLE, WHOLE, None, n)
        ops.verify_tree(table, table, drafts, None, None, *target, *draft, method, G, *rest)

    yield "", lambda: ops.build_tree(meta(B, 8, G, of=torch.int64))
    likely = meta(B, 15, 32), meta(B, 15, 32, of=torch.int64)
    yield "", lambda: ops.grow_tree(*likely, N)
    yield "", lambda: ops.budget(meta(B, G), 3 * B, None)
    yield "lengths", lambda: ops.budget(meta(B, G), 3 * B, WHOLE)
    lists, emitted = (meta(B, 2000, of=torch.int32),) * 2, meta(B, G + 1, of=torch.int64)
    yield "", lambda: ops.count_tokens_(*lists, emitted, None, None)
    yield "by slot", lambda: ops.count_tokens_(*lists, emitted, WHOLE, WHOLE)
    for name in ("bool", "uint8", "uint32", "float64"):
        format = MASK_FORMATS[name]
        yield name, lambda format=format: ops.tree_mask(table, ONE, None, -1, format)  # a prefix number, 0 if not given
        yield f"{name} with a prefix", lambda format=format: ops.tree_mask(table, WHOLE, None, 4096, format)
    yield "kseq", lambda: tree(0, drafts=drafts)
    yield "recursive", lambda: tree(1, drafts=drafts)
    yield "without replacement, stats", lambda: tree(2, stats=meta(B, N, 4))
    yield "target only, filters", lambda: tree(3, q=None, params=(*FILTERS, None))
    yield "greedy", lambda: tree(4, q=None)
    yield "traversal", lambda: tree(5)
    yield "race", lambda: tree(6, q=None)
    yield "race, stats", lambda: tree(6, q=None, stats=meta(B, N, 4))
    yield "traversal, padded", lambda: tree(5, n=ONE)
