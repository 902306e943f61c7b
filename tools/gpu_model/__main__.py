# SPDX-License-Identifier: Apache-2.0
"""Estimate the time of calls on GPUs from machine code: ``python -m tools.gpu_model sass|predict|compare``.

tools/gpu_model/README.md explains the output. No time that it prints was measured on a GPU, except those that `compare`
reads from a file of results."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from tools.gpu_model import compare as comparison
from tools.gpu_model.constants import CONSTANTS, SOURCES
from tools.gpu_model.costs import Costs, costs_of
from tools.gpu_model.predict import Model, predictions, tails
from tools.gpu_model.tails import CLOCKS, add_tails
from tools.machine_code.disassembly import cuobjdump
from tools.machine_code.gpus import ARCHS, GPUS
from tools.machine_code.kernels import analyse
from tools.machine_code.table import table

LIBRARY = Path(__file__).parents[2] / "specdec_kernels" / "_C_cuda.so"
UNMODELLED = (
    "tree_mask|trees_by_rule|row_gap|residual|count_tokens_|grow_tree|budget|race::"  # kernels that no prediction uses
)
LAUNCHES = r"(row_stats|sample|verify_chain)::"

app = typer.Typer(add_completion=False, help=__doc__, rich_markup_mode=None)
Gpu = Annotated[str, typer.Option(help=", ".join(GPUS))]
Library = Annotated[Path, typer.Argument(help="a library, or a cubin")]


def _gpu(name: str, among: Collection[str] = tuple(GPUS)) -> None:
    if name not in among:
        raise typer.BadParameter(f"gpu must be one of {', '.join(among)}, got {name}")


def _read(library: Path, arch: str, gpu: str, **chosen) -> list[dict]:
    if not library.exists():
        raise typer.BadParameter(f"{library} does not exist: it is built where nvcc is found")
    if cuobjdump() is None:
        raise typer.BadParameter("no cuobjdump: set CUOBJDUMP, or install triton or nvidia-cuda-cuobjdump")
    found = analyse(library, arch, gpu, **chosen)
    if not found:
        wanted = f"a kernel of {arch}{' that matches' if chosen.get('only') else ''}"
        built = "build it with TORCH_CUDA_ARCH_LIST=9.0, or 10.0 for a B200"
        raise typer.BadParameter(f"{library} must hold {wanted}, got none: {built}")
    return found


@app.command()
def sass(
    library: Library = LIBRARY,
    arch: Annotated[str, typer.Option(help="of the machine code to read; by default the GPU's")] = "",
    gpu: Gpu = "H200",
    only: Annotated[str, typer.Option(help="kernels whose names match")] = "",
    skip: Annotated[str, typer.Option(help="kernels whose names match")] = "tree_mask",
    all_kernels: Annotated[bool, typer.Option("--all", help="kernels without wide loads too")] = False,
) -> None:
    """Print the loops that stream rows: instructions, bytes, and the bandwidth that they allow."""
    _gpu(gpu)
    found = _read(library, arch or ARCHS[gpu], gpu, only=only, skip=skip)
    print(table([k for k in found if all_kernels or k["wide_bytes"]], gpu))


@app.command()
def predict(
    gpu: Gpu = "H200",
    V: Annotated[int, typer.Option("--V")] = 151_936,
    G: Annotated[int, typer.Option("--G")] = 5,
    B: Annotated[str, typer.Option("--B", help="batches, separated by commas")] = "1,8,16,24,64,256",
    alpha: Annotated[float, typer.Option(help="share of drafts accepted")] = 0.7,
    library: Annotated[Path, typer.Option(help="its kernels are read")] = LIBRARY,
    sources: Annotated[bool, typer.Option(help="print the constants and where they come from")] = False,
) -> None:
    """Print the predicted microseconds of calls: kind, middle, hard."""
    if sources:
        for name, constant in CONSTANTS.items():
            print(f"{name:10s} {' - '.join(f'{x:g}' for x in constant.band):22s} {constant.source:3s} {constant.what}")
        for name, (band, source) in CLOCKS.items():
            print(f"{name:13s} {' - '.join(f'{x:g}' for x in band):15s} clocks of an instruction in a tail: {source}")
        print(f"A: assumed\n{SOURCES}")
        return
    _gpu(gpu)
    costs = costs_of(_read(library, ARCHS[gpu], gpu, skip=UNMODELLED, also=add_tails))
    model = Model(gpu, costs)
    print(
        f"{gpu}, V={V}, G={G}, alpha={alpha}, bf16; scan {costs.scan:.0f} "
        f"and pair {costs.pair:.0f} warp instructions a chunk, {costs.scan_slots} and {costs.pair_slots} blocks an SM; "
        "microseconds, all constants kind - middle - hard; nothing here was measured"
    )
    for line in tails(model):
        print(line)
    for prediction in predictions(model, [int(b) for b in B.split(",")], G, V, alpha):
        print(prediction)


@app.command()
def compare(
    results: Annotated[Path, typer.Argument(help="a folder of results, or its bench.csv")],
    library: Annotated[Path, typer.Option(help="its kernels are read, if it and cuobjdump are there")] = LIBRARY,
) -> None:
    """Print a GPU's measurements beside the predictions for it."""

    def model(gpu: str) -> Model:
        chosen = {"only": LAUNCHES, "skip": "<true>", "also": add_tails}
        found = analyse(library, ARCHS[gpu], gpu, **chosen) if library.exists() and cuobjdump() else []
        if not found:
            print("No machine code could be read: the loops are those of sm_90 that costs.py has.")
        return Model(gpu, costs_of(found) if found else Costs())

    for line in comparison.report(comparison.read(results), model):
        print(line)


if __name__ == "__main__":
    app()
