# SPDX-License-Identifier: Apache-2.0
"""AOTInductor example: compile the step of export.py ahead of time into a package, load it, and compare it to the step.

In the package verify_chain stays a call through torch's dispatcher. So a program must load the ops before it loads the
package: in Python by importing specdec_kernels, in C++ as examples/cpp does.

python examples/aot_inductor.py
"""

import tempfile
from pathlib import Path

import torch
from export import Step, exported, inputs


def main():
    torch.manual_seed(0)
    step = Step().eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        package = str(Path(folder) / "step.pt2")
        torch._inductor.aoti_compile_and_package(exported(step), package_path=package)
        loaded = torch._inductor.aoti_load_package(package)
        for B in (1, 3, 8):
            given = inputs(B)
            assert all(map(torch.equal, loaded(*given), step(*given)))
    print("compiled: equal to the step for 1, 3 and 8 requests")


if __name__ == "__main__":
    main()
