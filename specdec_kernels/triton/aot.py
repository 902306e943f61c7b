# SPDX-License-Identifier: Apache-2.0
"""Every kernel as it is launched for large rows, ready for triton.compile: no GPU, and no signature written twice."""

from __future__ import annotations

from typing import Iterator, NamedTuple

import torch

from .core import launch

TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.float64: "*fp64",
         torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.uint8: "*u8", torch.bool: "*i1"}  # fmt: skip


class Case(NamedTuple):
    name: str  # kernel, what it is specialised for
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
        """For warps of 32 or 64 lanes."""
        return launch.options(self.threads, lanes)


def specialised(name: str, kernel, args, constants: dict, threads: int, wide: bool) -> Case:
    """The signature that the JIT would find for these arguments: None and 1 are constants, multiples of 16 are known as such."""
    signature, constexprs, attrs = {}, {}, {}
    for i, (key, x) in enumerate([*zip(kernel.arg_names, args), *((k, constants[k]) for k in kernel.arg_names[len(args) :])]):
        divisible = True
        if isinstance(x, torch.Tensor):
            signature[key] = TYPES[x.dtype]
        elif x is None or i >= len(args) or x == 1 and not kernel.params[i].do_not_specialize:
            signature[key], constexprs[(i,)], divisible = "constexpr", x, False
        else:
            signature[key] = "i32" if -(2**31) <= x < 2**31 else "i64"
            divisible = x % 16 == 0 and not kernel.params[i].do_not_specialize
        if divisible:
            attrs[(i,)] = [["tt.divisibility", 16]]
    return Case(name, kernel, signature, constexprs, attrs, threads, wide)


def aot_cases() -> Iterator[Case]:
    """All kernels at bf16 and fp32, V = 151,936, with and without what changes their code."""
    if launch.interpreted():
        raise RuntimeError("aot_cases: needs compiled kernels, got TRITON_INTERPRET=1")
    seen = set()
    for dtype in (torch.bfloat16, torch.float32):
        for what, call in calls(dtype, 151_936):
            launch.recorded = []
            try:
                call()
                launches = launch.recorded
            finally:
                launch.recorded = None
            for kernel, args, constants, threads in launches:
                name = " ".join([kernel.__name__.removesuffix("_kernel"), str(dtype).removeprefix("torch."), what]).strip()
                case = specialised(name, kernel, args, constants, threads, reads_rows(kernel, args))
                key = (kernel.__name__, *(str(x) for x in case[2:]))
                if key not in seen:
                    seen.add(key)
                    yield case


def reads_rows(kernel, args) -> bool:
    """Whether whole chunks of rows are read: row_stats' second launch does so only to filter."""
    if kernel.__name__ == "law_kernel":
        return args[kernel.arg_names.index("few")] is not None
    return kernel.__name__ not in ("accept_kernel", "uniforms_kernel", "build_tree_kernel", "climb_kernel", "put_units_kernel")


def calls(dtype: torch.dtype, V: int):
    """(what is special about it, a call of one op on meta tensors)"""
    from .accept import accept
    from .build_tree import build_tree
    from .kseq_rho import kseq_rho
    from .residual import residual
    from .row_gap import row_gap
    from .row_stats import row_stats
    from .sample import sample
    from .tree_mask import FORMATS, tree_mask
    from .uniforms import uniforms
    from .verify_chain import verify_chain
    from .verify_tree import verify_tree

    B, G = 64, 5

    def empty(*shape, of=dtype):
        return torch.empty(shape, dtype=of, device="meta")

    rows, target, draft = empty(B, V), empty(B, G + 1, V), empty(B, G, V)
    ragged_target, ragged_draft = empty(B * (G + 1), V), empty(B * G, V)
    real, whole, u = empty(B, of=torch.float32), empty(B, of=torch.int64), empty(B, G + 1, of=torch.float64)
    tokens, stats, cu_draft = empty(B, G, of=torch.int64), empty(B, G, 4, of=torch.float32), empty(B + 1, of=torch.int32)
    none, filters = (None,) * 4, (real, whole, real, real)

    def chain(
        p=target, d=tokens, q=None, cu=None, params=none, q_stats=None, q_params=none, kinds=(0, 0), rules=(0, None, None), seed=whole,
        u=None,
    ):  # fmt: skip
        verify_chain(p, d, q, cu, G, None, *params, None, q_stats, *q_params, *kinds, *rules, seed, seed, u)

    nodes, table, draft_nodes = empty(B, 64, V), empty(B, 64, of=torch.int32), empty(B, 8, G, of=torch.int32)

    def tree(method, q=nodes, drafts=None, stats=None, params=none, rules=(None, None)):
        draft_stats = None if q is None else stats
        verify_tree(
            table, table, drafts, nodes, q, method, G, *none, *params, stats, draft_stats, *none, 0, 0, *rules, whole, whole, None
        )

    yield "", lambda: row_stats(rows, *none)
    yield "filters", lambda: row_stats(rows, *filters)
    yield "", lambda: sample(rows, None, 1, True, *none, whole, whole, None, None)
    yield "stats", lambda: sample(rows, empty(B, 4, of=torch.float32), 1, True, *none, whole, whole, None, None)
    yield "k 4", lambda: sample(rows, None, 4, True, *none, whole, whole, None, None)
    yield "without replacement", lambda: sample(rows, None, 4, False, *none, whole, whole, whole, None)
    yield "", lambda: accept(empty(B), empty(B), empty(B, of=torch.float64))
    yield "", lambda: uniforms(whole, whole, G, 0)
    yield "", lambda: residual(rows, rows)
    yield "one-hot", lambda: residual(rows, whole)
    yield "", lambda: row_gap(rows, rows, empty(B, 4, of=torch.float32), empty(B, 4, of=torch.float32))
    yield "probabilities", lambda: row_gap(rows, rows, None, None)
    yield "", lambda: chain(q=draft)
    yield "draft stats", lambda: chain(q=draft, q_stats=stats)
    yield "filters", lambda: chain(q=draft, params=filters, q_params=filters)
    yield "one-hot", lambda: chain()
    yield "probabilities", lambda: chain(q=draft, kinds=(1, 1), seed=None, u=u)
    pairs = empty(B, 2, of=torch.float32)
    yield "block", lambda: chain(q=target, rules=(1, whole, pairs))  # a block holds every other walk by a rule
    yield "block, probabilities", lambda: chain(q=target, kinds=(1, 1), seed=None, u=u, rules=(1, whole, pairs))
    yield "ragged", lambda: chain(ragged_target, empty(B * G, of=torch.int64), ragged_draft, cu_draft)
    row_stats_given = empty(B, 4, of=torch.float32)
    yield "", lambda: kseq_rho(rows, rows, whole, row_stats_given, row_stats_given)
    yield "probabilities", lambda: kseq_rho(rows, rows, whole, None, None)
    yield "", lambda: build_tree(empty(B, 8, G, of=torch.int64))
    for name in ("bool", "uint8", "uint32", "float64"):
        format = [str(of) for of, *_ in FORMATS].index(f"torch.{name}")
        yield name, lambda format=format: tree_mask(empty(B, 64, of=torch.int32), None, None, -1, format)
        yield f"{name} with a prefix", lambda format=format: tree_mask(empty(B, 64, of=torch.int32), whole, None, 4096, format)
    yield "kseq", lambda: tree(0, drafts=draft_nodes)
    yield "recursive", lambda: tree(1, drafts=draft_nodes)
    yield "without replacement, stats", lambda: tree(2, stats=empty(B, 64, 4, of=torch.float32))
    yield "target only, filters", lambda: tree(3, q=None, params=filters)
    yield "greedy", lambda: tree(4, q=None)
    yield "traversal", lambda: tree(5)
    yield "kseq by rule", lambda: tree(0, drafts=draft_nodes, rules=(whole, pairs))
    yield "without replacement by rule", lambda: tree(2, rules=(whole, pairs))
    yield "target only by rule", lambda: tree(3, q=None, rules=(whole, pairs))
    yield "traversal by rule", lambda: tree(5, rules=(whole, pairs))
