# SPDX-License-Identifier: Apache-2.0
"""Table of streaming loops, one line each."""

from __future__ import annotations

from collections import Counter

from tools.machine_code.gpus import GPUS

HEAD = (
    f"{'kernel':34s} {'reg':>3s} {'smem':>5s} {'loc':>3s} {'blk/SM':>6s} | {'loop':>5s} {'kind':8s}r {'stat':>5s} "
    f"{'instr':>5s} {'most':>5s} {'B/thr':>5s} {'/16B':>6s} {'wait':>4s} {'MUFU':>4s} {'F2F64':>5s} {'D*':>3s} "
    f"{'LDS':>3s} {'BSSY':>4s} {'BRA':>3s} | {'TB/s':>5s} {'xHBM':>4s} {'by':5s} {'issue':>5s} {'kB/SM':>6s}"
)


def table(kernels: list[dict], gpu: str) -> str:
    lines = [HEAD]
    for k in kernels:
        head = f"{k['name'][-34:]:34s} {k['registers']:3d} {k['shared']:5d} {k['local']:3d} {k['resident']:6d}"
        if not k["loops"]:
            lines.append(f"{head} | no streaming loop" + " found, though it has wide loads" * bool(k["wide_bytes"]))
        for loop in k["loops"]:
            lines.append(f"{head} | {_loop(loop)}")
            head = " " * len(head)
    g = GPUS[gpu]
    lines.append(
        "counts are those of the cheapest path with the hot state, most: instructions of the dearest with it; "
        f"x HBM of {gpu}: {g.sms} SMs x {g.sustained / 1e9} GHz against {g.memory / 1e12} TB/s; r: rows; wait: memory "
        "latencies one after another in a trip; issue: x HBM by issue slots alone"
    )
    return "\n".join(lines)


def _loop(loop: dict) -> str:
    c = Counter(loop["counts"])
    return (
        f"{loop['at']} {loop['kind']:8s}{loop['rows']} {loop['static']:5d} {loop['instr']:5d} {loop['instr_most']:5d} "
        f"{loop['bytes']:5d} {loop['per16']:6.1f} {loop['batches']:4d} {c['MUFU']:4d} {c['F2F64']:5d} {c['DOUBLE']:3d} "
        f"{c['LDS']:3d} {c['BSSY']:4d} {c['BRA']:3d} | {loop['ceiling']:5.2f} {loop['of_hbm']:4.2f} "
        f"{loop['bound_by']:5s} {loop['issue_of_hbm']:5.2f} {loop['in_flight_kB_per_sm']:6.0f}"
    )
