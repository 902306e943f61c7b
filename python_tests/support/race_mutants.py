# SPDX-License-Identifier: Apache-2.0
"""Mutants of the race, on the CPU, in CUDA and in Triton."""

import torch
from support import answers as reference
from support import backends, cases, checks, flat, races

import specdec_kernels as sk

RACE, FIRST, READ, VECTORS = "core/race.h", "cpu/first_racers.h", "cpu/row_race.cpp", "cpu/simd_race.h"
FIELD, TRITON = "cuda/race_field.cuh", "core/race.py"


def agrees(backend, call):
    """Check a call of verify_chain against the float64 reference."""
    out = backends.run("verify_chain", backend, **call)
    checks.assert_same_tokens(out, flat.call(reference.verify_chain, **call))


def positions(backend):
    """Check several tokens of one step: each has the noise of its own position."""
    agrees(backend, races.chain(11, 60, 3, 40))


def filters(backend):
    agrees(backend, races.chain(12, 60, 3, 40, filtered=True))


def penalties(backend):
    """Check penalties of 1 on half of the ids.

    Ids with larger penalties would get no key, so a key computed without penalties would not show.
    """
    B, V = 40, 20
    ids = torch.arange(0, V, 2, dtype=torch.int32).expand(B, -1)
    view = sk.Penalties(None, 0.0, 1.0, ids, torch.ones_like(ids))
    agrees(backend, races.chain(13, B, 3, V) | {"target_penalties": view})


def distant(backend):
    """Check stats whose maximum is 2^17 above the row's, which shifts all keys alike.

    float32 would round the keys to 1/64, and change the winner of one row in a hundred.
    """
    N = 2000
    z = cases.rows_pair(3, N, 40)[0]
    stats, at = sk.row_stats(z), races.seeds(N)
    want = reference.sample(sk.Rows(z, stats=stats), 1, race=True, **at).tokens
    stats[:, 3] += 2.0**17
    assert torch.equal(backends.run("sample", backend, rows=sk.Rows(z, stats=stats), race=True, **at).tokens, want)


CHECKS = positions, filters, penalties, distant
LATER = "int64_t(uint64_t(noise.position) + uint64_t(after))"
KEPT = "return z >= d.stats.cutoff ? (double(z)"
NATIVE = {  # name: (backends, [(file, its text, the mutant's text)], the test that fails)
    "noise of the index in the step": (["avx2", "cuda"], [(RACE, LATER, "after")], positions),
    "one noise for all positions": (["avx2", "cuda"], [(RACE, LATER, "noise.position")], positions),
    "a race without the cutoff": (
        ["base", "avx2"],
        [
            (RACE, KEPT, "return true ? (double(z)"),
            (VECTORS, "select(x >= exponent.least, ", "select(x >= -HUGE_VALF, "),
        ],
        filters,
    ),
    "a race without the cutoff, in CUDA": (
        ["cuda"],
        [(RACE, KEPT, "return true ? (double(z)"), (FIELD, "return z >= d_.stats.cutoff ? x", "return true ? x")],
        filters,
    ),
    "racers that are read without their view": (
        ["avx2"],
        [(READ, "const Changes changes = reader_.changes(d.row, c);", "const Changes changes;")],
        penalties,
    ),
    "racers that are read without their view, in CUDA": (
        ["cuda"],
        [(FIELD, "race_weight(d_, d_.row.entry(at))", "race_weight(d_, stored_entry(d_.row, at))")],
        penalties,
    ),
    "keys in float32": (
        ["avx2", "cuda"],
        [
            (FIRST, "add(Racer{weight + noise(id), id});", "add(Racer{float(weight + noise(id)), id});"),
            (
                FIELD,
                "    return weight == -HUGE_VAL ? Racer{} : Racer{weight + noise_(id), id};\n  }\n\n  const",
                "    return weight == -HUGE_VAL ? Racer{} : Racer{float(weight + noise_(id)), id};\n  }\n\n  const",
            ),
        ],
        distant,
    ),
}
TRITON = {  # name: (file, its text, the mutant's text, the test that fails)
    "noise of the index in the step": (
        TRITON,
        "load_value(random.offset, b, mask, 0).to(tl.int64) + after)",
        "b * 0 + after)",
        positions,
    ),
    "one noise for all positions": (
        TRITON,
        "load_value(random.offset, b, mask, 0).to(tl.int64) + after)",
        "load_value(random.offset, b, mask, 0).to(tl.int64))",
        positions,
    ),
    "keys in float32": (
        TRITON,
        "own_key = log_weight(side, b, p.row, stats, own_id, own, racing) + gumbel(noise, own_id.to(tl.int64))",
        "own_key = (log_weight(side, b, p.row, stats, own_id, own, racing) + gumbel(noise, own_id.to(tl.int64)))"
        ".to(tl.float32).to(tl.float64)",
        distant,
    ),
}
