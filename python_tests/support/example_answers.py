# SPDX-License-Identifier: Apache-2.0
"""Results of ops for example calls, in this process or in another one."""

import torch
from torch.utils._pytree import tree_leaves

import specdec_kernels as sk


def tensors(op, arguments):
    return [x for x in tree_leaves(getattr(sk, op)(**arguments)) if isinstance(x, torch.Tensor)]


def write(path):
    """Replace the calls {op: [arguments of each]} in the file `path` by Triton's results {op: [tensors of each]}."""
    assert sk.backends.chosen() == "triton"
    inputs = torch.load(path, weights_only=False)
    torch.save({op: [tensors(op, each) for each in given] for op, given in inputs.items()}, path)
