# SPDX-License-Identifier: Apache-2.0
"""The choice between cpu, cuda and triton on simulated machines, with different GPUs, drivers, torch and binaries."""

import ctypes
import os
import re
import subprocess
import sys

import pytest
import torch
from support.paths import ROOT

from specdec_kernels import backends
from specdec_kernels.backends import covers, nvml

PAGE = ROOT / "docs/gpus.md"

COVERED = [  # (architecture built for, a GPU's capability, whether it runs there)
    ("8.0", (8, 0), True),
    ("8.0", (8, 6), True),  # a newer minor version of the same major
    ("8.6", (8, 0), False),  # but no older one
    ("8.0", (9, 0), False),  # and no other major
    ("8.0+PTX", (9, 0), True),  # PTX is compiled for later GPUs
    ("8.0+PTX", (7, 5), False),
    ("12.0+PTX", (12, 1), True),
    ("12.0+PTX", (10, 0), False),
    ("9.0a", (9, 0), True),
    ("9.0a", (9, 1), False),  # an `a` architecture runs on that one only
    ("9.0a+PTX", (10, 0), False),
    ("10.0f", (10, 3), True),  # an `f` architecture runs on its family
    ("10.0f", (12, 0), False),
    ("8.0", (8, 7), False),  # Tegra runs its own machine code only
    ("8.7", (8, 9), False),
    ("8.7", (8, 7), True),
    ("8.0+PTX", (8, 7), True),
]


def test_a_package_without_ops_says_what_it_is(tmp_path, monkeypatch):
    """A source folder without a build gives a clear error, also if it shadows the installed package."""
    source, site = tmp_path / "clone" / "specdec_kernels", tmp_path / "site" / "specdec_kernels"
    site.mkdir(parents=True)
    monkeypatch.setattr(backends, "_PACKAGE", source)
    monkeypatch.setattr(backends, "_LIBRARY", source / "_C.so")
    monkeypatch.setattr(sys, "path", ["", str(source.parent), str(site.parent)])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match=r"^specdec_kernels: _C.so has not been built. From the source tree run `pip"):
        backends.load()
    (site / "_C.so").touch()
    with pytest.raises(ImportError) as caught:
        backends.load()
    assert f"the source folder {source} has no _C.so and shadows the installed package {site}. Start" in str(
        caught.value
    )


@pytest.mark.parametrize("arch, capability, expected", COVERED, ids=str)
def test_covers(arch, capability, expected):
    assert covers(arch, capability) is expected


def test_the_page_says_what_each_gpu_runs():
    """The table of docs/gpus.md agrees with the architectures that are built by default."""
    built = dict(re.findall(r'^(DEFAULT_ARCHS) = "(.*)"', (ROOT / "build_tools/nvcc.py").read_text(), re.M))
    archs = built["DEFAULT_ARCHS"].split(";")
    rows = re.findall(r"^\| ([\d., (sm_)]+) \| .* \| (machine code of ([\d.]+)|Triton: .*) \|$", PAGE.read_text(), re.M)
    named = {}
    for capabilities, _, arch in rows:
        for number in re.findall(r"\d+\.\d", capabilities):
            named[number] = arch
            major, minor = map(int, number.split("."))
            fits = [one for one in archs if covers(one, (major, minor))]
            assert fits == ([each for each in archs if each.split("+")[0] == arch] if arch else []), number
    assert {number for number, arch in named.items() if not arch} == {"8.7", "11.0"}
    assert {"8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"} < set(named)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return machine(...), which makes this machine look like another."""

    def pretend(
        gpus=(),
        driver=(13, 0),
        built="13.0 8.0;9.0;12.0+PTX",
        cuda="13.0",
        hip=None,
        triton=True,
        asked=None,
        interpret=False,
    ):
        library = tmp_path / "_C_cuda.so"
        library.unlink(missing_ok=True)
        if built:
            library.write_bytes(b"\x7fELF\0specdec_cuda " + built.encode() + b"\0...")
        monkeypatch.setattr(backends, "_CUDA_LIBRARY", library)
        monkeypatch.setattr(nvml, "gpus", lambda: None if gpus is None else nvml.Gpus(driver, list(gpus)))
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch, "__version__", "9.9.9")
        find = backends.importlib.util.find_spec
        monkeypatch.setattr(
            backends.importlib.util, "find_spec", lambda n: triton or None if n == "triton" else find(n)
        )
        for name, value in (("SPECDEC_BACKEND", asked), ("TRITON_INTERPRET", "1" if interpret else None)):
            monkeypatch.delenv(name, raising=False)
            if value:
                monkeypatch.setenv(name, value)
        clear()

    yield pretend
    monkeypatch.undo()
    clear()


def clear():
    for cached in (backends.chosen, backends._gpus, backends._built):
        cached.cache_clear()


H100, A10, T4, AMD = (9, 0), (8, 6), (7, 5), dict(cuda=None, hip="7.0", gpus=None, built=None)


@pytest.mark.parametrize(
    "what, chosen, available",
    [
        (dict(gpus=[H100]), "cuda", ["cpu", "cuda", "triton"]),
        (dict(gpus=[H100, A10]), "cuda", ["cpu", "cuda", "triton"]),
        (dict(gpus=[H100, T4]), "triton", ["cpu", "triton"]),  # one GPU that the binary does not cover is enough
        (dict(gpus=[T4], triton=False), "cuda", ["cpu"]),  # then launches report the error
        (dict(gpus=[H100], driver=(12, 8)), "triton", ["cpu", "triton"]),  # the binary needs a newer driver
        (dict(gpus=[H100], driver=(12, 8), built="12.4 9.0"), "cuda", ["cpu", "cuda", "triton"]),
        (dict(gpus=[H100], built=None), "triton", ["cpu", "triton"]),
        (dict(gpus=[H100], built=None, triton=False), "cpu", ["cpu"]),
        (dict(gpus=[]), "cuda", ["cpu"]),  # registered, though nothing can run it
        (dict(gpus=None), "cuda", ["cpu", "cuda", "triton"]),  # no management library: nothing rules it out
        (dict(gpus=[H100], cuda=None), "cpu", ["cpu"]),  # torch for the CPU
        (AMD, "triton", ["cpu", "triton"]),
        (dict(gpus=[H100], asked="triton"), "triton", ["cpu", "cuda", "triton"]),
        (dict(gpus=[H100], asked="cpu"), "cpu", ["cpu", "cuda", "triton"]),
        (dict(gpus=[T4], asked="cuda"), "cuda", ["cpu", "triton"]),
        (dict(cuda=None, asked="triton", interpret=True), "triton", ["cpu", "triton"]),
        (dict(cuda=None, interpret=True), "cpu", ["cpu", "triton"]),  # the interpreter is only chosen on request
    ],
    ids=str,
)
def test_choice(machine, what, chosen, available):
    machine(**what)
    assert backends.chosen() == chosen
    assert backends.available() == available


@pytest.mark.parametrize(
    "what, error, message",
    [
        (dict(asked="gpu"), ValueError, "SPECDEC_BACKEND must be one of cpu, cuda, triton, got gpu"),
        (
            dict(asked="cuda", built=None),
            RuntimeError,
            "SPECDEC_BACKEND=cuda is not available: _C_cuda.so was not built: nvcc was not found when the package was, "
            "or SPECDEC_CUDA=0; available: cpu",
        ),
        (
            dict(asked="cuda", cuda=None),
            RuntimeError,
            "SPECDEC_BACKEND=cuda is not available: torch 9.9.9 has no CUDA; available: cpu",
        ),
        (
            dict(asked="triton", triton=False),
            RuntimeError,
            "SPECDEC_BACKEND=triton is not available: triton is not installed; ",
        ),
        (
            dict(asked="triton", cuda=None),
            RuntimeError,
            "torch 9.9.9 has neither CUDA nor ROCm, and TRITON_INTERPRET is not 1; available: cpu",
        ),
    ],
    ids=["name", "not built", "torch", "triton", "interpreter"],
)
def test_refused(machine, what, error, message):
    machine(**what)
    with pytest.raises(error) as raised:
        backends.chosen()
    assert message in str(raised.value)


def test_misfit_says_what_is_here_and_what_is_built(machine):
    machine(gpus=[H100, T4])
    assert backends.misfit() == "a GPU of arch 7.5 is here, the binary has kernels for 8.0, 9.0, 12.0+PTX"
    machine(gpus=[H100], driver=(12, 8))
    assert backends.misfit() == "the driver runs CUDA up to 12.8, the binary is of CUDA 13.0"
    machine(gpus=[H100])
    assert backends.misfit() is None


def test_archs_are_read_from_the_file(machine):
    machine(built="13.0 8.0;9.0a;12.0+PTX")
    assert backends.cuda_archs() == ["8.0", "9.0a", "12.0+PTX"] and backends.cuda_compiler() == "13.0"
    machine(built=None)
    assert backends.cuda_archs() == [] and backends.cuda_compiler() == ""


def test_archs_of_the_library_that_was_built():
    if not backends._CUDA_LIBRARY.exists():
        pytest.skip("_C_cuda.so was not built")
    assert backends.cuda_archs() and all(covers(arch, capability(arch)) for arch in backends.cuda_archs())


def capability(arch):
    major, minor = arch.removesuffix("+PTX").rstrip("af").split(".")
    return int(major), int(minor)


class Nvml:
    """A management library of two GPUs."""

    GPUS = [(9, 0), (8, 6)]

    def __init__(self, broken=None):
        self.broken, self.open = broken, 0

    def __getattr__(self, name):
        def function(*arguments):
            if name == self.broken:
                return 999
            getattr(self, "do_" + name)(*arguments)
            return 0

        return function

    def do_nvmlInit_v2(self):
        self.open += 1

    def do_nvmlShutdown(self):
        self.open -= 1

    def do_nvmlSystemGetCudaDriverVersion_v2(self, out):
        out._obj.value = 12080

    def do_nvmlDeviceGetCount_v2(self, out):
        out._obj.value = len(self.GPUS)

    def do_nvmlDeviceGetHandleByIndex_v2(self, index, out):
        out._obj.value = 1000 + index

    def do_nvmlDeviceGetCudaComputeCapability(self, device, major, minor):
        major._obj.value, minor._obj.value = self.GPUS[device.value - 1000]


def test_nvml(monkeypatch):
    library = Nvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert nvml.gpus() == nvml.Gpus((12, 8), [(9, 0), (8, 6)])
    assert library.open == 0


def test_nvml_that_fails(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Nvml("nvmlInit_v2"))
    assert nvml.gpus() == nvml.Gpus((0, 0), [])  # a library without a driver
    library = Nvml("nvmlDeviceGetCudaComputeCapability")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert nvml.gpus() is None and library.open == 0


def test_no_nvml(monkeypatch):
    def only(*names):
        def load(name):
            if name not in names:
                raise OSError(name)

        return load

    monkeypatch.setattr(ctypes, "CDLL", only())
    assert nvml.gpus() == nvml.Gpus((0, 0), [])
    monkeypatch.setattr(nvml, "_library", {"libcuda.so.1": object()}.get)
    assert nvml.gpus() is None  # a driver that answers no query


@pytest.mark.parametrize(
    "asked, message", [("gpu", "must be one of cpu, cuda, triton, got gpu"), ("cuda", "is not available")]
)
@pytest.mark.slow
def test_the_import_itself_refuses(asked, message):
    if asked == "cuda" and torch.version.cuda:
        pytest.skip("torch has CUDA here")
    result = subprocess.run(
        [sys.executable, "-c", "import specdec_kernels"],
        env={**os.environ, "SPECDEC_BACKEND": asked},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0 and message in result.stderr


@pytest.mark.thorough
@pytest.mark.slow
def test_importing_does_not_initialise_cuda():
    code = "import torch, specdec_kernels; assert not torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork()"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


REFUSED = """
import torch
import specdec_kernels as sk

for N, V in (1, 50), (2, 50), (1, 1 << 17), (40, 1 << 15):
    for op in (sk.row_stats, torch.ops.specdec.row_stats):
        try:
            op(torch.zeros(N, V), *[None] * 6 * (op is not sk.row_stats))
        except RuntimeError as error:
            print(error)
"""


def test_an_instruction_set_that_is_not_there():
    """The error keeps its text, also if the first row is read in one of torch's threads."""
    env = os.environ | {"SPECDEC_ISA": "sse9", "SPECDEC_BACKEND": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", REFUSED], env=env, capture_output=True, text=True, check=True)
    wanted = "specdec: SPECDEC_ISA must name an instruction set of this CPU (base, avx2, avx512), got sse9"
    assert done.stdout.splitlines() == [wanted] * 8
