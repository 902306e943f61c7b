# SPDX-License-Identifier: Apache-2.0
"""Kernels that work in clusters of blocks, on the simulated device: the same bits as the streaming ones, whatever the
cluster's size, the order of its blocks and the way that was taken; and each row read once."""

import contextlib
import os

import pytest
import torch
from support import backends

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("cuda-on-cpu" not in backends.NAMES, reason="cuda-on-cpu was not asked for"),
]

SIZES = [77, 3 * 1024 + 8, 20 * 1024 + 77]  # one chunk to 21; tails whole by groups of 8 and not


@contextlib.contextmanager
def device(module, path="", **what):
    """The simulated device is this one inside; `path` is SPECDEC_CUDA_PATH."""
    os.environ["SPECDEC_CUDA_PATH"] = path
    module.set_device(**{"multiprocessors": 4, "major": 9, "minor": 0} | what)
    module.reset()
    try:
        yield
    finally:
        os.environ.pop("SPECDEC_CUDA_PATH")
        module.set_device(4, 9, 0)


def pairs():
    generator = torch.Generator().manual_seed(0)
    for V in SIZES:
        z = 2 * torch.randn(3, V, generator=generator)
        y = z + torch.randn(3, V, generator=generator) / 2
        yield z.softmax(-1), y[:, : V - V // 3].softmax(-1).contiguous(), None
        yield z.bfloat16(), y.bfloat16(), "stats"
    hot = torch.zeros(3, 2000)
    hot[:, 1500] = 1
    yield hot, hot.roll(3, 1), None


def searched():
    import specdec_kernels as sk

    found = []
    for p, q, stats in pairs():
        given = {} if stats is None else {"p_stats": sk.row_stats(p), "q_stats": sk.row_stats(q)}
        for k in (1, 5):
            found += [x.view(torch.int64).tolist() for x in sk.kseq_rho(p, q, k, **given)]
    return found


def ways():
    """way: (the kernels that ran, what they answered)"""
    from tools.cuda_on_cpu.build import load
    from tools.cuda_on_cpu.control import order

    module, found = load("fast"), {}

    def note(way):
        answers = searched()
        sizes = {(kernel, blocks // 3) for kernel, blocks in module.launches() if "search" in kernel and blocks > 1}
        found[way] = sizes, answers

    ways = {
        "as it comes": {},
        "more SMs": {"multiprocessors": 64},
        "streaming": {"path": "streaming"},
        "too old": {"major": 8},
        "refused": {"clusters": False},
        "no room": {"shared": 16 * 1024},
        "forced": {"path": "cluster"},
    }
    for way, what in ways.items():
        with device(module, **what):
            note(way)
    for name in ("descending", "random"):
        with device(module), order(module, (name, 3), (name, 3)):
            note(name)
    return found


def test_same_bits_by_every_way():
    found = backends.there("cuda-on-cpu", ways)
    clusters = {way for way, (sizes, _) in found.items() if {kernel for kernel, _ in sizes} == {"search_in_cluster"}}
    assert clusters == {"as it comes", "more SMs", "forced", "descending", "random"}
    assert {kernel for way in ("streaming", "too old", "refused") for kernel, _ in found[way][0]} == {"search"}
    assert {kernel for kernel, _ in found["no room"][0]} == {"search", "search_in_cluster"}  # by V
    assert {size for kernel, size in found["more SMs"][0]} == {8}, "as wide as there are SMs for"
    answers = [answers for _, answers in found.values()]
    assert len(answers[0]) == 7 * 2 * 3 and all(other == answers[0] for other in answers)


def errors():
    from tools.cuda_on_cpu.build import load

    module, texts = load("fast"), []
    for what in ({"path": "cluster", "clusters": False}, {"path": "sideways"}):
        with device(module, **what), pytest.raises(RuntimeError) as raised:
            searched()
        texts.append(str(raised.value).splitlines()[0])
    return texts


def test_errors_say_what_was_asked():
    forced, unknown = backends.there("cuda-on-cpu", errors)
    assert (
        "kseq_rho: SPECDEC_CUDA_PATH=cluster, but this GPU takes no cluster of blocks that holds these rows" in forced
    )
    assert "kseq_rho: SPECDEC_CUDA_PATH must be cluster or streaming, got sideways" in unknown


def counts():
    import specdec_kernels as sk
    from tools.cuda_on_cpu.build import load
    from tools.cuda_on_cpu.control import BLOCK_ORDERS, SCHEDULES, counting, order

    module, found = load("checked"), []
    z = torch.randn(2, 20 * 1024 + 72).bfloat16()
    y = (z.float() + torch.randn(2, 20 * 1024 + 72)).bfloat16()
    stats = sk.row_stats(z), sk.row_stats(y)
    for turns in zip(SCHEDULES, BLOCK_ORDERS):
        with order(module, *turns), counting(module, p=z, q=y) as counted:
            sk.kseq_rho(z, y, 5, *stats)
        found += [(counted[name].read.tolist(), counted[name].outside) for name in ("p", "q")]
        assert [kernel for kernel, _ in counted.launches] == ["search_in_cluster"]
    return found


@pytest.mark.thorough
def test_a_cluster_reads_each_row_once():
    """In any order of blocks: what it needs again lies on chip. The flavour that notes every access."""
    row = 2 * (20 * 1024 + 72)
    assert backends.there("cuda-on-cpu-checked", counts) == [([row, row], 0)] * 6
