# SPDX-License-Identifier: Apache-2.0
"""Mutants that combine the ranks' results wrongly differ from the results on whole rows."""

from pathlib import Path

import pytest
from support.mutant_packages import cpu_package
from support.ranks import Ranks
from support.sharded_checks import differ, rows_with_other_stats, views_differ
from support.sharded_mutants import MUTANTS, WHOLE_ROWS

from tools.cuda_on_cpu.build import CSRC
from tools.cuda_on_cpu.mutants import mutate
from tools.mutate import changed


@pytest.mark.thorough
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, monkeypatch):
    ranks = Ranks(2, path=[str(cpu_package(mutate(CSRC, *MUTANTS[name]), monkeypatch))])
    found = ranks.call(rows_with_other_stats, 2) + ranks.call(views_differ, 2) + ranks.call(differ, 0, 300, 2)
    ranks.stop()
    assert any(isinstance(x, Exception) or x for x in found)


def differ_with(rank, *change):
    """Return the calls whose results differ if this change is made to whole_rows.py."""
    from specdec_kernels.distributed import ops, whole_rows

    text = Path(whole_rows.__file__).read_text()
    text = changed(text, *change) if change else text
    wrong = dict(vars(whole_rows))
    exec(compile(text, whole_rows.__file__, "exec"), wrong)
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


@pytest.mark.thorough
@pytest.mark.parametrize("name", WHOLE_ROWS)
def test_mutant_of_whole_rows_is_caught(ranks, name):
    assert any(isinstance(x, Exception) or x for x in ranks.call(differ_with, *WHOLE_ROWS[name][1:]))


def test_whole_rows_as_they_stand(ranks):
    assert ranks.call(differ_with) == [[], []]
