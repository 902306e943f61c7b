# SPDX-License-Identifier: Apache-2.0
"""Sources that put together wrongly what the ranks tell are caught by the comparison with whole rows."""

from pathlib import Path

import pytest
from support.ranks import Ranks
from test_scales_mutants import cpu_package
from test_sharded_ops import differ, other_log_norms

from specdec_kernels.distributed import whole_rows
from tools.cuda_on_cpu.build import CSRC
from tools.cuda_on_cpu.mutants import mutate
from tools.mutate import places

MUTANTS = {
    "the first rank's total in place of its chunks": (
        "cpu/row_stats.cpp",
        "total.sum += sum_[c];",
        "if (task_ && c == task_->split.first[1]) total.sum = float(total.sum);\n    total.sum += sum_[c];",
    ),
    "an id that counts from its shard": (
        "cpu/row_executor.cpp",
        "const int64_t id = chunk * kChunk + drawn.within;",
        "const int64_t id = (chunk - task_->split.begin(chunks_)) * kChunk + drawn.within;",
    ),
    "a cutoff found on one rank": (
        "cpu/row_filters.cpp",
        "std::vector<float> some(task_->split.ranks() * k);",
        "std::vector<float> some(k);",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, monkeypatch):
    ranks = Ranks(2, path=[str(cpu_package(mutate(CSRC, *MUTANTS[name]), monkeypatch))])
    found = ranks.call(other_log_norms, 2) + ranks.call(differ, 0, 300, 2)
    ranks.stop()
    assert any(isinstance(x, Exception) or x for x in found)


# Of whole rows (distributed/whole_rows.py): what stands there, and what takes its place
WHOLE_ROWS = {
    "requests that are not there counted from the batch's first": ("x.clamp(begin, end) - begin", "x"),
    "slices side by side from the last rank's": ("zip(parts, out.split", "zip(parts[::-1], out.split"),
    "a rank's requests are those of the next": (
        "begin, end = shares[shards.rank]",
        "begin, end = shares[shards.rank - 1]",
    ),
    "padding of a short share kept": ("own[: end - begin]", "own"),
    "a tree of all requests split among them": ("known.is_cut(x.dim()) and ", ""),
}


def differ_with(rank, old, new):
    """The calls that differ once the text of whole_rows.py is another."""
    from specdec_kernels.distributed import ops, whole_rows

    text = Path(whole_rows.__file__).read_text()
    wrong = dict(vars(whole_rows))
    exec(compile(text.replace(old, new), whole_rows.__file__, "exec"), wrong)
    right, ops.call_on_whole_rows = ops.call_on_whole_rows, wrong["call_on_whole_rows"]
    try:
        return differ(rank, 0, 200, 2, "rows")
    finally:
        ops.call_on_whole_rows = right


@pytest.fixture(scope="module")
def ranks():
    group = Ranks(2)
    yield group
    group.stop()


@pytest.mark.parametrize("name", WHOLE_ROWS)
def test_mutant_of_whole_rows_is_caught(ranks, name):
    assert any(isinstance(x, Exception) or x for x in ranks.call(differ_with, *WHOLE_ROWS[name]))


def test_whole_rows_as_they_stand(ranks):
    assert ranks.call(differ_with, "", "") == [[], []]


def test_every_mutant_finds_its_line():
    for name, (file, old, _) in MUTANTS.items():
        assert len(places((CSRC / file).read_text(), old)) == 1, name
    for name, (old, _) in WHOLE_ROWS.items():
        assert Path(whole_rows.__file__).read_text().count(old) == 1, name
