# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose weight is packed for the CPU once, instead of at every call.

`F.linear` passes oneDNN a plain weight, which it repacks at each call. At the row counts of decoding (1 to a few tens)
that costs as much as the product itself. `load_pair` uses this layer in the target and in the draft. On a GPU weights
are not packed, and the layer is F.linear.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .plain_modules import is_plain_linear

__all__ = ["PackedLinear", "can_pack", "pack_linears"]

# The row count that the layout is chosen for, between plain decoding (1) and a drafted chain.
_ROWS = 4


def can_pack(weight: torch.Tensor) -> bool:
    """Return whether oneDNN packs this weight: on the CPU, in float32 or (if the processor supports it) bfloat16."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


class PackedLinear(nn.Module):
    """A linear layer y = x W^T + b with `W [out, in]` packed. Where packing is not possible it is F.linear.

    `add(x, residual)` returns residual + x W^T + b in one pass.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = can_pack(weight)
        weight = weight.detach()
        if self.packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
        self.weight, self.bias = weight, None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise.default(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        return residual + F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, packed={self.packed}"


def pack_linears(model: nn.Module) -> nn.Module:
    """Replace every plain nn.Linear of `model` that can be packed, in place. Only for a model with no other users."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if is_plain_linear(child) and can_pack(child.weight):
                setattr(parent, name, PackedLinear(child.weight, child.bias))
    return model
