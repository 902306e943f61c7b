# SPDX-License-Identifier: Apache-2.0
"""Kernels in clusters of blocks, on the simulated device. The bits do not depend on the cluster's size, the order of
its blocks or its room in shared memory, and each row of a K-SEQ pair is read once."""

import contextlib
import functools
import itertools
import os
import re

import pytest
import torch
from support import backends, cases, flat, races, rule_cases, tiers, tree_cases

from specdec_kernels import example_calls
from specdec_kernels.registry import BY_LAW, TREE_METHODS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("cuda-on-cpu" not in backends.NAMES, reason="cuda-on-cpu was not asked for"),
]

SIZES = [77, 3 * 1024 + 8, 30 * 1024 + 77]  # 1 to 31 chunks; tails that are and are not whole groups of 8
WIDE = 5 * 1024 + 77
TURNS = 4 if tiers.TIER == "all" else 1  # turns through the rules
LAWS = "trees_by_rule, laws of nodes"
KERNELS = {  # clusters in a launch
    **{"search": 3, "measure": 3, "walk_trees": 2, "verify_requests": 2, "trees_by_rule": 2},
    **{"race_chains": 2, "race_trees": 2, "race_rows": 2},
    LAWS: 2 * 7,
}


@contextlib.contextmanager
def device(module, path="", overlap="", **what):
    """A context in which the simulated device has these properties. `path` is SPECDEC_CUDA_PATH, `overlap`
    SPECDEC_CUDA_OVERLAP."""
    os.environ |= {"SPECDEC_CUDA_PATH": path, "SPECDEC_CUDA_OVERLAP": overlap}
    module.set_device(**{"multiprocessors": 4, "major": 9, "minor": 0} | what)
    module.reset()
    try:
        yield
    finally:
        for name in ("SPECDEC_CUDA_PATH", "SPECDEC_CUDA_OVERLAP"):
            os.environ.pop(name)
        module.set_device(4, 9, 0)


def pairs():
    generator = torch.Generator().manual_seed(0)
    for V in SIZES:
        z = 2 * torch.randn(3, V, generator=generator)
        y = z + torch.randn(3, V, generator=generator) / 2
        if V < 30 * 1024:
            yield z.softmax(-1), y[:, : V - V // 3].softmax(-1).contiguous(), None
        yield z.bfloat16(), y.bfloat16(), "stats"
    hot = torch.zeros(3, 2000)
    hot[:, 1500] = 1
    yield hot, hot.roll(3, 1), None


def trees():
    """Yield arguments of verify_tree: every method, with filters, and rules with the methods that take them."""
    for i, method in enumerate(TREE_METHODS):
        drafted = {"K": 3, "L": 2} if method == "kseq" else {"N": 7}
        how = {"method": method, "B": 2, "V": WIDE, "kinds": ["near", "dirichlet"], "dirty": False, **drafted}
        yield races.raced(tree_cases.tree(i, filtered=True, **how))
        if tiers.TIER == "all":
            yield races.raced(tree_cases.tree(i, probs=True, **how))
        if method in BY_LAW:
            for turn in range(TURNS):
                yield tree_cases.tree(i, **how) | rule_cases.rules(2, "block", None, 5 * turn + 3 * i)


def chains():
    """Yield arguments of verify_chain, with rules and with block verification."""
    for method in ("token", "block"):
        for turn in range(TURNS):
            how = {"method": method, "shift": 5 * turn, "kinds": ["near", "dirichlet"]}
            yield rule_cases.chain(turn, 2, 3, WIDE, **how)


def chain_and_rows_that_race():
    """Yield (op, arguments): a chain, and rows of which the first, or the first five, are wanted."""
    call = cases.chain(5, 2, 3, WIDE, filtered=True)
    yield "verify_chain", races.raced(call | {"method": "race"})
    rows = {"logits": call["target_logits"][:, 0], "race": True}
    for k in (1, 5):
        yield "sample", rows | races.seeds(2, k) | {"k": k}


@functools.cache  # making some example calls runs a race
def exact_chains():
    """Return chains of few positions: one launch for all rows and one for the rest. With SPECDEC_CUDA_PATH=streaming
    they run position by position, as large batches do."""
    calls = [call for V in (77, WIDE) for call in example_calls.calls("verify_chain", V=V)]
    return [call for call in calls if not {"rule", "method"} & call.arguments.keys()]


def bits(outputs):
    return [x.contiguous().view(torch.uint8).tolist() for x in outputs if isinstance(x, torch.Tensor)]


def answered(walks=True):
    import specdec_kernels as sk

    found = []
    for p, q, stats in pairs():
        given = {} if stats is None else {"p_stats": sk.row_stats(p), "q_stats": sk.row_stats(q)}
        found += [bits(flat.call(sk.kseq_rho, p, q, 5, **given)), bits(flat.call(sk.row_gap, p, q, **given))]
    if not walks:
        return found
    found += [bits(flat.call(sk.verify_chain, **call.arguments)) for call in exact_chains()]
    found += [bits(flat.call(sk.verify_tree, **args)) for args in trees()]
    found += [bits(flat.call(getattr(sk, op), **args)) for op, args in chain_and_rows_that_race()]
    return found + [bits(flat.call(sk.verify_chain, **args)) for args in chains()]


def sizes(launches):
    """Return {kernel: sizes of its clusters}. There are three pairs, and two requests of seven nodes each."""
    found, laws_next = {}, True  # launches for the nodes come before the walks
    for kernel, blocks in launches:
        name = re.match(r"\w+", kernel)[0]
        if name == "trees_by_rule" and laws_next:
            name = LAWS
        laws_next = name != LAWS
        if name in KERNELS:
            found.setdefault(name, set()).add(blocks // KERNELS[name])
    return found


def ways():
    """Return {path: (sizes of clusters by kernel, results)}."""
    from tools.cuda_on_cpu.build import load
    from tools.cuda_on_cpu.control import order

    module, found = load("fast"), {}
    exact_chains()
    ways = {
        "as it comes": {},
        "more SMs": {"multiprocessors": 64},
        "streaming": {"path": "streaming"},
        "forced": {"path": "cluster", "multiprocessors": 1},
        "too old": {"major": 8},
        "refused": {"clusters": False},
        "no room": {"shared": 16 * 1024, "multiprocessors": 64},
    }
    for way, what in ways.items():
        with device(module, **what):
            answers = answered(walks=way not in ("too old", "refused", "no room"))
            found[way] = sizes(module.launches()), answers
    with device(module), order(module, ("random", 3), ("descending", 3)):
        answers = answered()
        found["other orders"] = sizes(module.launches()), answers
    return found


def test_same_bits_by_every_way():
    found = backends.there("cuda-on-cpu", ways)
    shapes = {way: sizes for way, (sizes, _) in found.items()}
    alone, two, eight = ({name: {size} for name in KERNELS} for size in (1, 2, 8))
    assert shapes["streaming"] == alone
    assert shapes["too old"] == shapes["refused"] == {"search": {1}, "measure": {1}}
    for way in ("as it comes", "other orders"):
        # With 4 SMs, each of two requests has a cluster of two blocks. Each of three pairs has one block, or two if one
        # cannot hold the pair.
        assert shapes[way] == two | {"search": {1, 2}, "measure": {1}, LAWS: {1}}
    assert shapes["more SMs"] == eight | {LAWS: {4}} and shapes["forced"] == two
    assert shapes["no room"] == {"search": {8}, "measure": {8}}
    answers = [answers for _, answers in found.values()]
    assert len(answers[0]) == 6 * 2 + len(exact_chains()) + 7 * (1 + (tiers.TIER == "all")) + 3 + (4 + 2) * TURNS
    assert all(other == answers[0][: len(other)] for other in answers)


def beginnings():
    """Return {(major, path, overlap): (the kernels of a chain, which launches begin while the previous one runs)}, and
    the results of each of these ways."""
    import specdec_kernels as sk
    from tools.cuda_on_cpu.build import load

    module, found, answers = load("fast"), {}, []
    args = exact_chains()[0].arguments
    for way in itertools.product((9, 8), ("", "streaming"), ("", "0")):
        major, path, overlap = way
        with device(module, path, overlap, major=major):
            answers.append(bits(flat.call(sk.verify_chain, **args)))
            found[way] = [kernel.split("<")[0] for kernel, _ in module.launches()], module.began_early()
    return found, answers


def test_the_second_launch_of_a_chain_begins_beside_the_first():
    found, answers = backends.there("cuda-on-cpu", beginnings)
    small, streaming = ["scan_positions", "verify_positions"], ["judge_rows", "finish_requests"]
    assert {way: kernels for way, (kernels, _) in found.items()} == {
        way: streaming if way[1] else small for way in found
    } and len(found) == 8
    assert {way: early for way, (_, early) in found.items() if early} == {
        (9, "", ""): small[1:],
        (9, "streaming", ""): streaming[1:],
    }
    assert all(other == answers[0] for other in answers)


def errors():
    from tools.cuda_on_cpu.build import load

    module, texts = load("fast"), []
    for what in ({"path": "cluster", "clusters": False}, {"path": "sideways"}, {"overlap": "yes"}):
        with device(module, **what), pytest.raises(ValueError) as raised:
            answered()
        texts.append(str(raised.value).splitlines()[0])
    return texts


def test_errors_say_what_was_asked():
    forced, unknown, neither = backends.there("cuda-on-cpu", errors)
    assert "kseq_rho: SPECDEC_CUDA_PATH=cluster, but this GPU takes no clusters of blocks" in forced
    assert "kseq_rho: SPECDEC_CUDA_PATH must be cluster or streaming, got sideways" in unknown
    assert "verify_chain: SPECDEC_CUDA_OVERLAP must be 0 or 1, got yes" in neither


def counts():
    import specdec_kernels as sk
    from tools.cuda_on_cpu.build import load
    from tools.cuda_on_cpu.control import BLOCK_ORDERS, SCHEDULES, counting, order

    module, found = load("checked"), []
    z = torch.randn(2, 20 * 1024 + 72).bfloat16()
    y = (z.float() + torch.randn(2, 20 * 1024 + 72)).bfloat16()
    p, q = (sk.Rows(x, stats=sk.row_stats(x)) for x in (z, y))
    for turns in zip(SCHEDULES, BLOCK_ORDERS):
        with order(module, *turns), counting(module, p=z, q=y) as counted:
            sk.kseq_rho(p, q, 5)
        found += [(counted[name].read.tolist(), counted[name].outside) for name in ("p", "q")]
        assert [kernel for kernel, _ in counted.launches] == ["search"]
    return found


@pytest.mark.thorough
def test_a_cluster_reads_each_row_once():
    """Entries that are needed again are kept on chip, so that each row is read once, in three orders of blocks. The
    checked build counts the reads."""
    row = 2 * (20 * 1024 + 72)
    assert backends.there("cuda-on-cpu-checked", counts) == [([row, row], 0)] * 6
