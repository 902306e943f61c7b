# SPDX-License-Identifier: Apache-2.0
"""Sources that put together wrongly what the ranks tell are caught by the comparison with whole rows."""

import pytest
from support.ranks import Ranks
from test_scales_mutants import cpu_package
from test_sharded_ops import differ, other_log_norms

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


def test_every_mutant_finds_its_line():
    for name, (file, old, _) in MUTANTS.items():
        assert len(places((CSRC / file).read_text(), old)) == 1, name
