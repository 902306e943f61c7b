# SPDX-License-Identifier: Apache-2.0
"""Interpreted Triton that behaves as on a GPU, where no tensor's values can be checked before kernels run."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from specdec_kernels.triton import writer_of


class AsOnGpu(TorchDispatchMode):
    """A mode in which arguments are checked on the meta device, without values, and Triton's kernels write results."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        namespace, name = function._schema.name.split("::")
        if namespace != "specdec":
            return function(*args, **(kwargs or {}))
        on_meta = tree_map_only(torch.Tensor, lambda x: x.to("meta"), args)
        made = getattr(torch.ops.specdec_check, name)(*on_meta)
        results = tree_map_only(torch.Tensor, lambda x: torch.empty_like(x, device="cpu"), made)
        writer_of(name)(results, args)
        return results
