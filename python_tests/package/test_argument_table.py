# SPDX-License-Identifier: Apache-2.0
"""Every copy of an op's arguments agrees with their table in specdec_kernels/arguments.py."""

from types import SimpleNamespace

import pytest
import torch
from support import argument_copies
from support.argument_copies import READERS

import specdec_kernels as sk
from build_tools import schema
from specdec_kernels import arguments, registry
from specdec_kernels.argument_picker import picker
from specdec_kernels.arguments import LEADS, TABLE, TYPES, Argument
from specdec_kernels.ops._fake import fake
from tools.docs import ops_page


@pytest.fixture
def change(monkeypatch):
    """Return a function that replaces an op's rows of the table until the test ends."""

    def put(op, rows):
        monkeypatch.setitem(TABLE, op, tuple(rows))
        arguments.places.cache_clear()

    yield put
    monkeypatch.undo()
    arguments.places.cache_clear()


def differences(op):
    return (what for reader in READERS for what in reader(op))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@pytest.mark.parametrize("op", registry.OPS)
def test_a_copy_says_what_the_table_says(op, reader):
    assert list(reader(op)) == []


def test_the_table_is_in_order():
    for op, rows in TABLE.items():
        assert len({x.name for x in arguments.taken(op)}) == len(arguments.taken(op)), op
        for x in rows:
            assert x.type in TYPES or x.type == "results", (op, x)
            assert x.per in (*LEADS, "count", "whole", "all") and (x.name or x.public), (op, x)
            if x.per in LEADS:
                assert any(shape.split(", ")[0] == LEADS[x.per] for shape in x.shapes), (op, x)


def test_the_page_of_all_ops_is_made_from_the_table():
    assert ops_page.PAGE.read_text() == ops_page.page(), "python -m tools.docs.ops_page writes it anew"


def test_an_op_with_too_many_arguments_is_named(monkeypatch):
    """Such an op stops the build with an error; torch would abort while loading the library. The build has its own copy
    of the table."""
    table = schema.arguments.TABLE
    row = table["verify_tree"][-3]
    free = schema.MOST - len(schema.arguments.taken("verify_tree")) - len(schema.arguments.results("verify_tree"))
    for more in range(free + 2):
        monkeypatch.setitem(table, "verify_tree", table["verify_tree"] + (row._replace(name="x"),) * (more > 0))
        if more <= free:
            schema.header()
    with pytest.raises(ValueError, match=r"^verify_tree: torch allows 64 arguments of an op, got 60 and 5 outputs$"):
        schema.header()


def test_results_that_are_made_otherwise_are_found(monkeypatch):
    assert [*TABLE] == [*arguments.RESULTS]
    for said in ("stats float32 [N, 3]", "stats float64 [N, 4]"):
        monkeypatch.setitem(arguments.RESULTS, "row_stats", said)
        [what] = argument_copies.of_results("row_stats")
        assert what.endswith(f"in the table {said.removeprefix('stats ')}")


NOT_YET: dict[tuple[str, str], list[str]] = {}  # (op, "triton" or "reference"): arguments not supported there yet


NEW = Argument("throw_away", "float32", "N | 1", "row", True, "throw_away")


def test_a_row_without_its_copies_names_each_missing_place(change):
    change("row_stats", (*TABLE["row_stats"], NEW))
    assert argument_copies.unserved("row_stats") == {"triton": ["throw_away"], "reference": ["throw_away"]}
    assert [*differences("row_stats")] == [
        "_C.so, built before, row_stats.default: lacks Tensor? throw_away=None",
        "_C.so, built before, row_stats.views: lacks Tensor? throw_away=None",
        "csrc/ops/row_stats/row_stats_op.h: lacks throw_away",
        "specdec_kernels/ops/row_stats.py: lacks throw_away",
        "specdec_kernels/ops/row_stats.py, docstring: lacks throw_away",
    ]


def test_what_runs_everywhere_is_given_by_calls(change, monkeypatch):
    """Once Triton and the reference take a new argument, the example calls and the hostile calls must give it too."""
    change("row_stats", (*TABLE["row_stats"], NEW))
    monkeypatch.setattr(argument_copies, "triton_takes", lambda op: [x.name for x in arguments.taken(op)])
    monkeypatch.setattr(argument_copies, "reference_takes", lambda op: [*argument_copies.roots(op)])
    assert {*differences("row_stats")} >= {
        "specdec_kernels/example_calls/row_stats.py: none gives throw_away",
        "python_tests/gates/hostile.py: none gives throw_away",
    }


def test_what_must_be_given_is_taken_everywhere(change):
    change("row_stats", (*TABLE["row_stats"], NEW._replace(optional=False)))
    assert {*differences("row_stats")} >= {
        "specdec_kernels/triton/row_stats.py: lacks throw_away",
        "specdec_kernels/reference/row_stats.py: lacks throw_away",
    }


@pytest.mark.parametrize(
    "row, off, on",
    [(NEW, None, torch.ones(1)), (NEW._replace(type="flag", optional=False, default=False), False, True)],
    ids=["optional", "default"],
)
def test_triton_refuses_what_its_function_does_not_name(change, monkeypatch, row, off, on):
    ops, seen = pytest.importorskip("specdec_kernels.triton"), []
    change("row_stats", (*(x for x in TABLE["row_stats"] if not x.is_view), row))
    function = SimpleNamespace(row_stats=lambda results, num_rows, logits: seen.append((logits, num_rows)))
    monkeypatch.setattr(ops.importlib, "import_module", lambda name: function)
    write, given = ops.writer_of("row_stats"), ("logits", *[None] * 6, "num_rows")
    write(None, given)
    write(None, (*given, off))
    write(None, given[:1])
    assert seen == [("logits", "num_rows")] * 2 + [("logits", None)]
    for call, name in (((*given, on), "throw_away"), (("logits", on), "temperature")):
        with pytest.raises(NotImplementedError, match=f"row_stats: Triton does not serve {name}$"):
            write(None, call)
    assert len(seen) == 3


def test_the_fields_of_a_side_follow_one_another():
    pick = picker("row_gap", [("q", "q_stats"), "p"])
    assert pick(("p", 1, "q")) == (("q", None), "p")
    with pytest.raises(ValueError, match="row_gap: p, q must follow one another"):
        picker("row_gap", [("p", "q")])


def test_which_arguments_do_not_run_everywhere():
    lacking = {(op, what): names for op in TABLE for what, names in argument_copies.unserved(op).items() if names}
    assert lacking == NOT_YET


def other(rows, name, **fields):
    return [x._replace(**fields) if x.name == name else x for x in rows]


@pytest.mark.parametrize(
    "op, name, fields, said",
    [
        ("residual", "q", {"optional": True}, "residual.default: lacks Tensor? q"),
        ("sample", "slot", {"type": "float32"}, "slot is torch.int64, in the table float32"),
        ("verify_chain", "uniforms", {"shape": "B, G"}, "uniforms [B, G+1], which is not in the table"),
        ("verify_chain", "uniforms", {"shape": "B, G"}, "in the table B, G"),
        ("uniforms", "n", {"type": "code"}, "uniforms.default: lacks int n"),
        ("verify_tree", "max_depth", {"public": "depth"}, "specdec_kernels/ops/verify_tree.py: lacks depth"),
        ("sample", "seed", {"optional": False}, "seed must have no default"),
        ("tree_mask", "format", {"default": 0}, "tree_mask.default: lacks int format=0"),
    ],
)
def test_a_row_that_says_something_else_is_found(change, op, name, fields, said):
    change(op, other(TABLE[op], name, **fields))
    assert any(said in what for what in differences(op)), [*differences(op)]  # the quick readers come first


def test_another_order_is_found(change):
    first, second, *rest = TABLE["residual"]
    change("residual", (second, first, *rest))
    orders = [what for what in differences("residual") if "another order: p, q, num_rows" in what]
    assert [what.split(":")[0].rpartition("/")[2] for what in orders] == ["residual_op.h", "residual.py"]


# ---- fakes ----------------------------------------------------------------------------------------------------------


def test_a_fake_takes_arguments_by_name(monkeypatch):
    """A fake receives the arguments that it names, in any order. The values here are the arguments' own names."""
    known = {}
    monkeypatch.setattr("specdec_kernels.ops._fake._are_known", lambda given: False)
    monkeypatch.setattr(torch.library, "register_fake", lambda name: lambda function: known.update({name: function}))
    fake("verify_tree")(lambda max_depth, parents, target_logits: (max_depth, parents, target_logits))
    names = [x.name for x in arguments.taken("verify_tree")]
    assert known["specdec::verify_tree"](*names) == ("max_depth", "parents", "target_logits")
    assert known["specdec::verify_tree.out"](*names, tokens=None) is None
    assert known["specdec::verify_tree"](*names[:-3]) == ("max_depth", "parents", "target_logits")
    with pytest.raises(ValueError, match="depth"):
        fake("verify_tree")(lambda depth: depth)


def test_an_op_called_by_name_has_a_fake():
    p = torch.zeros(3, 7, device="meta")
    assert torch.ops.specdec.row_gap(q=p, p_stats=None, q_stats=None, p=p).shape == (3, 6)
    assert sk.residual(p, q=p)[1].dtype == torch.float64
