# SPDX-License-Identifier: Apache-2.0
"""Tensors are made with an explicit dtype and device, since torch's defaults belong to the caller. Ops make no tensors
from host data, since a copy to a GPU waits, and a CUDA graph cannot capture it."""

import ast

import pytest
from support.paths import ROOT

OF_FLOATS = {  # functions whose results have torch's default dtype, for some arguments or for all
    *("zeros", "ones", "empty", "full", "rand", "randn", "normal", "linspace", "logspace", "eye"),
    *("tensor", "scalar_tensor", "empty_strided", "hann_window", "range"),
}
OF_INTEGERS = {"arange", "randint", "randperm", "tril_indices", "triu_indices"}


def careless(source: str) -> list[str]:
    """Return the calls of torch's factories that leave the dtype or the device to the defaults."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not isinstance(node.func.value, ast.Name) or node.func.value.id != "torch":
            continue
        given = {keyword.arg for keyword in node.keywords}
        wanted = {"dtype", "device"} if node.func.attr in OF_FLOATS else {"device"} & {*_where(node.func.attr)}
        if not {None, "out"} & given and wanted - given:
            found.append(f"line {node.lineno}: {ast.unparse(node)} lacks {', '.join(sorted(wanted - given))}")
    return found


def _where(name):
    return ["device"] if name in OF_INTEGERS else []


def test_no_tensor_is_made_by_defaults():
    files = sorted((ROOT / "specdec_kernels").rglob("*.py"))
    found = {str(path.relative_to(ROOT)): lines for path in files if (lines := careless(path.read_text()))}
    assert len(files) > 150 and not found


FROM_HOST = {f"torch.{name}" for name in ("tensor", "as_tensor", "asarray", "from_numpy", "frombuffer")}


def copies(source: str) -> list[str]:
    """Return the calls that make a tensor from host data."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [ast.unparse(x) for x in calls if ast.unparse(x.func) in FROM_HOST]


def test_ops_copy_nothing_from_the_host():
    files = [path for folder in ("ops", "triton") for path in sorted((ROOT / "specdec_kernels" / folder).rglob("*.py"))]
    assert len(files) > 50 and not {path.name: found for path in files if (found := copies(path.read_text()))}
    assert copies("torch.tensor(rates, dtype=f, device=d).view(1, -1)") == ["torch.tensor(rates, dtype=f, device=d)"]


@pytest.mark.parametrize(
    "source, lacks",
    [
        ("torch.zeros(3)", ["device, dtype"]),
        ("torch.zeros(3, device=x.device)", ["dtype"]),
        ("torch.tensor([1], dtype=torch.int64)", ["device"]),
        ("torch.arange(3)", ["device"]),
        ("torch.arange(3, device=d) + torch.rand(3, dtype=f)", ["device"]),
        ("torch.zeros(3, dtype=f, device=d), torch.full((2,), 1, **whole), torch.arange(3, device=d)", []),
        ("x.new_zeros(3), np.zeros(3), torch.zeros_like(x)", []),
    ],
)
def test_careless_calls_are_found(source, lacks):
    assert [line.partition(" lacks ")[2] for line in careless(source)] == lacks
