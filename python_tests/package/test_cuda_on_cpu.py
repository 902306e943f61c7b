# SPDX-License-Identifier: Apache-2.0
"""The harness that runs .cu files on the CPU: correct kernels pass under every schedule, and each defect is caught."""

import re
import threading
from itertools import product

import numpy as np
import pytest
from support.kernels_checked import CASES, every_op, row_stats_bytes, turns, turns_of_environment
from support.worker import renewed

from tools.cuda_on_cpu.build import CSRC, load
from tools.cuda_on_cpu.control import BLOCK_ORDERS, SCHEDULES, counting, order
from tools.cuda_on_cpu.mutants import MUTANTS, mutate

pytestmark = pytest.mark.slow

DEFECTS = (
    "none no_barrier divergent_barrier early_exit divergent_shuffle two_ways half_mask deadlock unaligned "
    "unaligned_plain no_fence no_atomic through_l1 read_only order uninitialised out_of_bounds overflow float_to_int "
    "no_first_sync no_cluster_sync one_leaves after_the_last_sync static_shared no_such_rank stop_seen_by_some "
    "copy_not_waited_for copy_waited_for_short copy_not_committed copy_without_barrier copy_over_readers "
    "copy_unaligned copy_to_memory copy_source_written copy_left "
    "no_wait read_before_wait write_before_wait wait_of_one read_only_of_the_first "
    "loaded_by_the_first loaded_past_l1_before "
    "readers_not_released one_reader_not_released read_after_release set_beside_updates read_beside_updates "
    "read_by_ranks update_after_it_was_seen"
).split()
N = 5000  # not a multiple of 256


@pytest.fixture(params=["fast", "checked"])
def module(request):
    return load(request.param, ops=())


@pytest.fixture
def checked():
    return load("checked", ops=())


def sample(module, kernel, x, out, blocks=1, defect="none", n=N):
    scratch = np.full(blocks + 1, np.nan, np.float32)
    module.run_sample(kernel, DEFECTS.index(defect), blocks, x.ctypes.data, n, out.ctypes.data, scratch.ctypes.data)
    return out


def normals(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def aligned(rows, n):
    """Return normal numbers at a multiple of 16 bytes."""
    room = np.empty(rows * n + 4, np.float32)
    x = room[(-room.ctypes.data % 16) // 4 :][: rows * n].reshape(rows, n)
    x[:] = normals(rows, n)
    return x


def log_sum_exp(module, defect="none", rows=3):
    x = normals(rows, N)
    out = sample(module, "log_sum_exp", x, np.zeros(rows, np.float32), rows, defect)
    return np.allclose(out, np.log(np.exp(x.astype(np.float64)).sum(1)), rtol=1e-6)


def scan(module, defect="none"):
    x = np.random.default_rng(4).integers(1, 100, 256, np.int32)
    return bool((sample(module, "scan", x, np.zeros(256, np.int32), defect=defect) == x.cumsum()).all())


def grid_sum(module, defect="none"):
    x = normals(N + 4)
    return np.allclose(
        sample(module, "grid_sum", x, np.zeros(1, np.float32), 5, defect), x[:N].astype(np.float64).sum(), rtol=1e-5
    )


def cluster_sum(module, defect="none"):
    x = normals(N)
    out = sample(module, "cluster_sum", x, np.zeros(3, np.float32), 3, defect)
    return np.allclose(out, x.astype(np.float64).sum(), rtol=1e-5)


def staged_sum(module, defect="none"):
    x = aligned(3, N)
    out = sample(module, "staged_sum", x, np.zeros(3, np.float32), 3, defect)
    return np.allclose(out, x.astype(np.float64).sum(1), rtol=1e-4, atol=1e-3)


def two_launches(module, defect="none"):
    x = normals(3, N)
    out = sample(module, "two_launches", x, np.zeros(3, np.float32), 3, defect)
    return np.allclose(out, x[:, 1:].astype(np.float64).sum(1), rtol=1e-4, atol=1e-3)


def take_turns(module, defect="none"):
    x = normals(4)
    return np.allclose(sample(module, "take_turns", x, np.zeros(1, np.float32), 5, defect), x.sum(), rtol=1e-6)


def count_threads(module, defect="none"):
    return sample(module, "count_threads", np.zeros(1), np.zeros(1, np.int32), 1, defect) == 256


def count_blocks(module, defect="none"):
    return sample(module, "count_blocks", np.zeros(1), np.zeros(1, np.int32), 1, defect) == 4


@pytest.mark.parametrize("schedule, blocks", list(product(SCHEDULES, BLOCK_ORDERS)), ids=str)
@pytest.mark.parametrize(
    "kernel",
    [log_sum_exp, scan, grid_sum, cluster_sum, staged_sum, two_launches, take_turns, count_threads, count_blocks],
)
def test_right_under_every_schedule(module, kernel, schedule, blocks):
    with order(module, schedule, blocks):
        assert kernel(module)


def test_every_intrinsic(module):
    for schedule in SCHEDULES:
        with order(module, schedule):
            assert sample(module, "intrinsics", np.zeros(1), np.zeros(1, np.int32), 2) == 0


def test_schedules_differ(module):
    """A kernel without barriers runs in a different order under each schedule: the order that the schedule's name
    describes."""
    taken = {}
    for schedule, blocks in product(SCHEDULES, BLOCK_ORDERS):
        with order(module, schedule, blocks):
            taken[schedule, blocks] = turns(module, 4)
    assert all(sorted(t) == list(range(1024)) for t in taken.values())
    assert len({tuple(t) for t in taken.values()}) == len(taken)
    up, down = ("ascending", 1), ("descending", 1)
    assert taken[up, up] == taken[down, down][::-1] == list(range(1024))
    assert taken[("interleaved", 1), up][:64:32] == [0, 1]


COPY, AT = r"that thread \d+", r"cp.async \(sample_copies.cu:\d+\)"
CAUGHT = {
    "no_barrier": (log_sum_exp, "uninitialised|race: .* shared memory"),
    "uninitialised": (log_sum_exp, "thread 3: uninitialised: it reads shared memory"),
    "divergent_barrier": (log_sum_exp, r"divergent: it is at __syncthreads \(sample.cu:\d+\)"),
    "early_exit": (log_sum_exp, "exits while thread|has exited"),
    "divergent_shuffle": (scan, r"deadlock: thread 0 waits at __syncthreads \(.*; thread 1 waits at __shfl_up_sync \("),
    "half_mask": (scan, "a mask that is not full"),
    "two_ways": (scan, "called from elsewhere"),
    "deadlock": (scan, "divergent: it is at __syncthreads"),
    "out_of_bounds": (scan, r"undefined: index out of bounds \(sample.cu:"),
    "overflow": (scan, r"undefined: signed addition overflows \(sample.cu:"),
    "float_to_int": (scan, r"undefined: the float does not fit the integer \(sample.cu:"),
    "unaligned": (grid_sum, "misaligned: __ldg of 16 bytes"),
    "unaligned_plain": (grid_sum, "misaligned access, the type needs 16 bytes"),
    "no_fence": (grid_sum, "race: it reads memory .* no __threadfence"),
    "no_atomic": (grid_sum, "race: .* no atomic orders"),
    "through_l1": (grid_sum, "race: it reads .* L1 may hold"),
    "read_only": (grid_sum, "race: __ldg reads memory that this launch wrote"),
    "order": (grid_sum, "race: .* no atomic orders"),
    "no_first_sync": (cluster_sum, "another block's memory before its cluster has met"),
    "no_cluster_sync": (cluster_sum, "uninitialised: .* no thread of the cluster wrote|race: it reads|has exited"),
    "one_leaves": (
        cluster_sum,
        "3 of 4 blocks of a cluster wait for the others, which have exited|of its cluster that has exited",
    ),
    "after_the_last_sync": (cluster_sum, "race: |writes shared memory of a block .* that has exited"),
    "static_shared": (cluster_sum, "by what is not dynamic shared memory"),
    "no_such_rank": (cluster_sum, "asks for block 4 of a cluster of 4"),
    "stop_seen_by_some": (
        cluster_sum,
        "3 of 4 blocks of a cluster wait for the others, which have exited|of its cluster that has exited|"
        "1 of 4 blocks of a cluster wait",
    ),
    "copy_not_waited_for": (staged_sum, rf"touches the destination of a copy {COPY} has not waited for: {AT}"),
    "copy_waited_for_short": (staged_sum, rf"touches the destination of a copy {COPY} has not waited for: {AT}"),
    "copy_not_committed": (staged_sum, rf"touches the destination of a copy {COPY} has not committed: {AT}"),
    "copy_without_barrier": (staged_sum, r"destination of a copy|race: it reads shared|uninitialised: it reads"),
    "copy_over_readers": (staged_sum, r"race: it writes shared memory .* read|destination of a copy"),
    "copy_unaligned": (staged_sum, "misaligned: cp.async from memory of 16 bytes"),
    "copy_to_memory": (staged_sum, rf"{AT} to what is no shared memory of its block"),
    "copy_source_written": (staged_sum, rf"writes to the source of a copy {COPY} has not waited for: {AT}"),
    "copy_left": (staged_sum, rf"exits with a copy {COPY} has not committed: {AT}"),
    "no_wait": (two_launches, "race: it reads memory that the launch before wrote, and has not waited"),
    "read_before_wait": (two_launches, "race: it reads memory that the launch before wrote, and has not waited"),
    "write_before_wait": (two_launches, "race: it writes memory and has not waited for the launch before"),
    "wait_of_one": (two_launches, "race: it reads memory that the launch before wrote, and has not waited"),
    "read_only_of_the_first": (two_launches, "race: __ldg reads .* or the one that it runs beside"),
    "loaded_by_the_first": (
        two_launches,
        "race: it reads memory that the launch before loaded and wrote, and L1 may hold",
    ),
    "loaded_past_l1_before": (
        two_launches,
        "race: it reads memory that the launch before loaded and wrote, and L1 may hold",
    ),
    "readers_not_released": (take_turns, "race: it (reads|writes) memory .* (read|wrote), "),
    "one_reader_not_released": (take_turns, "race: it (reads|writes) memory .* no atomic orders the two blocks"),
    "read_after_release": (take_turns, "race: it writes memory .* read, "),
    "set_beside_updates": (count_threads, "uninitialised|race: it updates shared memory .* wrote, with no barrier"),
    "read_beside_updates": (count_threads, "race: it (reads|updates) shared memory .* (updated|read), with no barrier"),
    "read_by_ranks": (count_blocks, "race: it (reads|writes) memory .* (read|wrote), "),
    "update_after_it_was_seen": (count_blocks, "race: it (reads|updates) memory .* (read|updated), "),
}


@pytest.mark.parametrize("schedule, blocks", list(zip(SCHEDULES, 2 * BLOCK_ORDERS)), ids=str)
@pytest.mark.parametrize("defect", CAUGHT)
def test_defect_is_caught(checked, defect, schedule, blocks):
    kernel, pattern = CAUGHT[defect]
    who = f"cuda_on_cpu: {kernel.__name__}, block \\d+, (deadlock: )?(thread \\d+|divergent: \\d of \\d blocks)"
    with order(checked, schedule, blocks), pytest.raises(RuntimeError, match=who) as raised:
        kernel(checked, defect)
    assert re.search(pattern, str(raised.value)), raised.value
    assert kernel(checked), "the next launch starts afresh"


def test_every_defect_is_listed():
    assert set(CAUGHT) == set(DEFECTS) - {"none"}


SHOWN_FAST = (
    "divergent_barrier early_exit divergent_shuffle half_mask deadlock unaligned no_barrier uninitialised order "
    "one_leaves stop_seen_by_some copy_not_waited_for copy_not_committed copy_left no_wait wait_of_one"
).split()


@pytest.mark.parametrize("defect", SHOWN_FAST)
def test_defects_that_the_fast_flavour_shows(defect):
    """Each of these defects shows as an error, or as a wrong result under some order of threads or blocks."""
    module = load("fast", ops=())
    kernel, shown = CAUGHT[defect][0], False
    for schedule, blocks in product(SCHEDULES, BLOCK_ORDERS):
        with order(module, schedule, blocks):
            try:
                shown |= not kernel(module, defect)
            except RuntimeError:
                shown = True
    assert shown


def test_counts(checked):
    x = normals(3, N + 8)  # eight floats between the rows belong to none
    out = np.zeros(3, np.float32)
    with counting(checked, x=x[:, :N], out=out) as counts:
        checked.run_sample("log_sum_exp", 0, 1, x.ctypes.data, N, out.ctypes.data, 0)
        checked.run_sample("log_sum_exp", 0, 1, x.ctypes.data, N, out.ctypes.data, 0)
        checked.run_sample("log_sum_exp", 0, 1, x[1].ctypes.data, N + 1, out.ctypes.data, 0)
    assert counts["x"].read.tolist() == [8 * N, 4 * N, 0]
    assert counts["x"].distinct.tolist() == [4 * N, 4 * N, 0]
    assert counts["x"].loads == {4: 3 * N + 1}
    assert (counts["x"].written, counts["x"].outside) == (0, 4)
    assert (counts["out"].written, counts["out"].read.sum()) == (12, 0)
    assert counts.launches == [("log_sum_exp", 1)] * 3


@pytest.mark.parametrize("defect, before", [("none", 0), ("unaligned_plain", 4)])
def test_counts_of_vector_loads(checked, defect, before):
    """Loads of 16 bytes are counted, by __ldg or plain. Rows that share memory share their counts."""
    x = normals(4096)
    x = x[(-x.ctypes.data % 16) // 4 :][4:4004]
    out, scratch = np.zeros(1, np.float32), np.zeros(3, np.float32)
    with counting(checked, x=np.broadcast_to(x, (2, 4000))) as counts:
        checked.run_sample(
            "grid_sum", DEFECTS.index(defect), 2, x.ctypes.data - before, 4000, out.ctypes.data, scratch.ctypes.data
        )
    assert counts["x"].loads == {16: 1000}
    assert counts["x"].read.tolist() == counts["x"].distinct.tolist() == [16000, 16000]


def test_launch_from_any_thread(module):
    wrong = []
    threads = [threading.Thread(target=lambda: wrong.extend([1] * (not log_sum_exp(module)))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_bad_orders_and_grids(module):
    with pytest.raises(RuntimeError, match="must be ascending, descending, random, interleaved, got sideways"):
        module.set_schedule("sideways")
    with pytest.raises(RuntimeError, match="must be ascending, descending, random, got interleaved"):
        module.set_block_order("interleaved")
    with pytest.raises(RuntimeError, match="scan: invalid grid: 0 blocks|intrinsics: invalid grid: 0 blocks"):
        sample(module, "intrinsics", np.zeros(1), np.zeros(1, np.int32), 0)


@pytest.fixture(scope="module")
def workers():
    """Yield a function that returns a process whose ops are replaced by the checked kernels: the same one until it
    ends, then a new one. Its allocations are filled with 0x7F7F..., not zeros."""
    environment = {
        "OMP_NUM_THREADS": "1",
        "MALLOC_PERTURB_": "128",
        "SPECDEC_SCHEDULE": "descending",
        "SPECDEC_BLOCK_ORDER": "descending",
    }
    with renewed("checked", environment) as worker:
        yield worker


@pytest.fixture
def worker(workers):
    return workers()


@pytest.mark.thorough
def test_schedule_of_the_environment(worker):
    assert worker.call(turns_of_environment) == list(range(1024))[::-1]


@pytest.mark.thorough
def test_every_op_under_every_schedule(worker):
    """No race and no undefined behaviour occurs, and the bits are the same in four orders of threads and blocks."""
    first = worker.call(every_op, SCHEDULES[0], BLOCK_ORDERS[0])
    assert len(first) > 20
    for schedule, blocks in list(zip(SCHEDULES, 2 * BLOCK_ORDERS))[1:]:
        again = worker.call(every_op, schedule, blocks)
        assert {k for k in first if first[k] != again[k]} == set(), (schedule, blocks)


@pytest.mark.thorough
def test_bytes_of_row_stats(worker):
    read, distinct, loads, outside = worker.call(row_stats_bytes, 2, 2048)
    assert read == distinct == [4 * 2048] * 2
    assert (loads, outside) == ({16: 1024}, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("op", CASES)
def test_the_cases_that_mutants_meet(worker, op):
    assert worker.call(CASES[op], CSRC, (op,)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(worker, name):
    mutant = MUTANTS[name]
    csrc = mutate(CSRC, mutant.file, mutant.old, mutant.new)
    found = worker.call(CASES[mutant.op], csrc, (mutant.op,))
    assert found and re.search(mutant.caught, found[0]), found
