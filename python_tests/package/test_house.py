# SPDX-License-Identifier: Apache-2.0
"""The structure of the product code: lengths of files, functions and lines, and the directions of imports and
includes."""

import re

import pytest
from support.house import circle, cpp_functions, floors, imported, imports, python_functions
from support.paths import ROOT, TESTS

from specdec_kernels.registry import OPS

PRODUCT = ("csrc", "specdec_kernels", "bench", "tools")
MAX_FILE, MAX_FUNCTION, MAX_LINE = 300, 60, 120
MAX_FLOORS, MAX_PARAMETERS = 11, 25  # the longest chain of imports in triton/; a Triton kernel's parameters
CPP = (".h", ".cuh", ".cpp", ".cu")
MAY_INCLUDE = {
    "core": {"core"},
    "rules": {"rules", "core"},
    "binding": {"binding", "rules", "core", "threads.h"},
    "cpu": {"cpu", "rules", "core", "threads.h"},
    "cuda": {"cuda", "rules", "core"},
}


def product():
    for folder in PRODUCT:
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".sh", *CPP))
    yield ROOT / "setup.py"


READ_MEMORY = {"csrc/core/row.h", "csrc/cpu/row_reader.h", "csrc/cpu/listed_reader.cpp", "csrc/cuda/groups.cuh"}
# The first file defines the pointer.


def where(path):
    return str(path.relative_to(ROOT))


def test_files_are_short():
    long = {where(path): n for path in product() if (n := len(path.read_text().splitlines())) > MAX_FILE}
    assert not long


def test_lines_are_short():
    lines = [(f"{where(path)}:{i}", len(line)) for path in product() for i, line in enumerate(path.open(), 1)]
    assert len(lines) > 10_000
    assert not {place: n - 1 for place, n in lines if n - 1 > MAX_LINE}


def test_functions_are_short():
    found = []
    for path in product():
        measure = python_functions if path.suffix == ".py" else cpp_functions if path.suffix in CPP else lambda text: ()
        found += [(f"{where(path)} {name}", lines) for name, lines, *_ in measure(path.read_text())]
    assert len(found) > 1000
    assert not {name: lines for name, lines in found if lines > MAX_FUNCTION}


def test_no_import_circle():
    graph = imports(ROOT, "specdec_kernels")
    assert "specdec_kernels.ops.verify_chain" in graph["specdec_kernels"]
    assert circle(graph) is None
    assert circle(imports(ROOT, "bench")) is None
    tools = imports(ROOT, "tools")
    assert "tools.machine_code.control_flow" in tools["tools.machine_code.kernels"] and circle(tools) is None


def test_machine_code_is_read_without_the_model():
    """The gates read machine code; models of a GPU's time are in tools.gpu_model."""
    tools = imports(ROOT, "tools")
    reader = {name: to for name, to in tools.items() if name.startswith("tools.machine_code")}
    assert len(reader) > 8
    assert not {to for found in reader.values() for to in found if to.startswith("tools.gpu_model")}


def test_the_decode_loop_is_read_without_adaptive_drafting():
    graph, room = imports(ROOT, "specdec_kernels"), "specdec_kernels.decode.adaptive"
    loop = {name: to for name, to in graph.items() if re.fullmatch(r"specdec_kernels\.decode\.\w+", name)}
    assert "specdec_kernels.decode.session" in loop["specdec_kernels.decode.loop"]
    assert any(x.startswith(room) for x in graph["specdec_kernels.decode.drafters.model_drafter"])
    assert not {name: to for name, to in loop.items() if any(x.startswith(room) for x in to)}


@pytest.mark.parametrize("room", MAY_INCLUDE)
def test_includes_go_down(room):
    seen, upward = 0, []
    for path in sorted((ROOT / "csrc" / room).rglob("*")):
        for name in re.findall(r'^#include "(.*)"', path.read_text(), re.M) if path.suffix in CPP else ():
            included = (path.parent / name).resolve()
            assert included.exists(), f"{where(path)} includes {name}"
            seen += 1
            if included.relative_to(ROOT / "csrc").parts[0] not in MAY_INCLUDE[room]:
                upward.append(f"{where(path)} includes {name}")
    assert seen and not upward


def read_by(path, known):
    """Add the files that a C++ file includes to `known`, and those that they include."""
    for name in re.findall(r'^#include "(.*)"', path.read_text(), re.M):
        included = (path.parent / name).resolve()
        if included not in known:
            known.add(included)
            read_by(included, known)
    return known


def test_kernels_are_compiled_without_torch():
    """nvcc takes 4 s a file to read torch's headers. X_op_cuda.cpp and launch.cpp read them."""
    kernels = {path: read_by(path, {path}) for path in (ROOT / "csrc").rglob("*.cu")}
    assert all(len(files) > 4 for files in kernels.values()) and len(kernels) > 20
    assert not {where(x) for files in kernels.values() for x in files if "#include <torch/" in x.read_text()}


def test_torchs_threads_are_called_in_one_place():
    """Other files call parallel_for() of csrc/threads.h, which keeps the text of an exception."""
    threads = "stable::parallel_for"
    found = {where(path) for path in (ROOT / "csrc").rglob("*") if path.is_file() and threads in path.read_text()}
    assert found == {"csrc/threads.h"}


def test_a_rows_pointer_is_touched_in_one_place():
    """Other files get entries, chunks and ids from a Row's functions, not from its pointer."""
    asks = re.compile(r"(\.|->)pointer\(\)|\bpointer\(\) const|\bfriend\b.*\bRow\b")
    found = {where(path) for path in (ROOT / "csrc").rglob("*") if path.suffix in CPP and asks.search(path.read_text())}
    assert found == READ_MEMORY


def test_triton_is_no_tower():
    graph = {
        name: {x for x in below if x.startswith("specdec_kernels.triton.")}
        for name, below in imports(ROOT, "specdec_kernels").items()
        if name.startswith("specdec_kernels.triton.")
    }
    assert circle(graph) is None
    way = floors(graph)
    assert len(way) <= MAX_FLOORS, " -> ".join(way)


def test_triton_is_small():
    shared = len(list((ROOT / "specdec_kernels" / "triton").rglob("*.py"))) - len(OPS)  # each op has its own file
    assert 16 < shared <= 28
    graph = imports(ROOT, "specdec_kernels")
    reached, open_ = set(), {"specdec_kernels.triton.verify_chain"}
    while open_:
        name = open_.pop()
        reached.add(name)
        open_ |= {x for x in graph[name] if x.startswith("specdec_kernels.triton.") and x in graph} - reached
    others = {f"specdec_kernels.triton.core.{name}" for name in ("views", "penalties", "ids", "race")}
    assert 8 < len(reached - others) <= 15, sorted(reached)


def test_one_file_of_triton_reads_rows():
    """Other files call load_chunk and load_entry, so that a view of a row is added in one place."""
    files = (ROOT / "specdec_kernels" / "triton").rglob("*.py")
    pointers = r"\b(side|rows|target|draft)\.data *(\+|,)"
    assert {path.name for path in files if re.search(pointers, path.read_text())} == {"memory.py"}


def test_triton_kernels_have_few_parameters():
    found = {}
    for path in sorted((ROOT / "specdec_kernels" / "triton").rglob("*.py")):
        for name, _, parameters, decorators in python_functions(path.read_text()):
            if any(re.search(r"\b(jit|kernel)\b", decorator) for decorator in decorators):
                found[f"{where(path)} {name}"] = parameters
    assert len(found) > 50
    assert not {name: n for name, n in found.items() if n > MAX_PARAMETERS}


def imports_of_tests(folder):
    """Return (file, the test file that it imports) for every Python file below the folder."""
    files = sorted(folder.rglob("*.py"))
    tests = {path.stem for path in files if path.name.startswith("test_")}
    return {(path.name, name) for path in files for name in imported(path.read_text()) if name in tests}


def test_no_test_file_is_imported():
    """Code that test files share is in support/."""
    assert not imports_of_tests(TESTS)


@pytest.mark.parametrize(
    "line",
    [
        "import test_a",
        "import ops.test_a as a",
        "from test_a import f",
        "from ops import test_a",
        "def f():\n    from test_a import g",
        "importlib.import_module('test_a')",
        "run(f'import os; from test_a import {name}')",
        "run('import os, test_a as a')",
    ],
)
def test_an_imported_test_file_is_found(tmp_path, line):
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "test_a.py").write_text("from support import cases\nfrom tools import test_all\n")
    assert imports_of_tests(tmp_path) == set()
    (tmp_path / "b.py").write_text(line)
    assert imports_of_tests(tmp_path) == {("b.py", "test_a")}


CPP_SAMPLE = """namespace a {
#define TWICE(x) \\
  { x }
constexpr int TABLE[] = {1, 2};
struct B {
  int c = 0;  // {
  B() : c(1) {}
  template <typename T>
  int one(T f) const {
    return g([&] { return 1; });
  }
};
int two(const char* s = "{") {
  if (s) {
    return 1;
  }
  return B{}.c;
}
}  // namespace a
"""


def test_the_measures_measure():
    """The measures find what the tests above look for."""
    assert list(cpp_functions(CPP_SAMPLE)) == [("B", 1), ("one", 4), ("two", 6)]
    text = 'def f(a, *b, c=1):\n    """Two\n    lines."""\n    return 1\n\n\n@jit\ndef g():\n    pass\n'
    assert list(python_functions(text)) == [("f", 2, 3, []), ("g", 2, 0, ["jit"])]
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"] and circle({"a": {"b"}, "b": set()}) is None
    assert floors({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ["a", "b", "c"]


def test_imports_are_found(tmp_path):
    for name, text in {
        "p/__init__.py": "from .a import x\n",
        "p/a.py": "from p.q import b\nfrom . import c\n",
        "p/c.py": "import p\n",
        "p/q/__init__.py": "",
        "p/q/b.py": "def f():\n    from ..c import g\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    assert imports(tmp_path, "p") == {
        "p": {"p.a"},
        "p.a": {"p.q.b", "p.c"},
        "p.c": {"p"},
        "p.q": set(),
        "p.q.b": {"p.c"},
    }


def test_kernels_that_read_by_id_are_compiled_twice():
    """Only nvcc compiles the second copies (csrc/cuda/by_id.h), and a missing one shows when the library is loaded."""
    sources = {path.name: path.read_text() for path in (ROOT / "csrc").glob("ops/*/*_cuda.cu")}
    first = {name for name, text in sources.items() if re.search(r"^\S.*<kReadsIds>\(", text, re.M)}
    second = {name.replace("_by_id", "") for name in sources if name.endswith("_by_id_cuda.cu")}
    assert first == second and len(first) > 4
    for name in first:
        text = sources[name.replace("_cuda.cu", "_by_id_cuda.cu")]
        assert f'#define SPECDEC_READS_IDS\n#include "{name}"\n' in text
