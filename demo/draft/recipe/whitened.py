# SPDX-License-Identifier: Apache-2.0
"""The projection of the target's states in the form in which it is trained: on whitened states."""

import torch
import torch.nn.functional as F
from torch import nn

from specdec_kernels.decode.models.layer_draft import dequantize_rows, quantize_rows


class Whitened(nn.Module):
    """A projection of states from which the mean and the correlations are removed first.

    A few entries of a state are ten times the others and hardly change. Without whitening they would dominate every
    step of the optimiser, which has one size for all weights. states [N, d]: a sample.
    """

    def __init__(self, linear, states, floor=0.1):
        super().__init__()
        states = states.float()
        power, axes = torch.linalg.eigh(torch.cov(states.T))
        scale = (power + floor).sqrt()
        self.register_buffer("mean", states.mean(0))
        self.register_buffer("root", axes / scale @ axes.T)
        weight = linear.weight.detach().float()
        self.weight = nn.Parameter(weight @ (axes * scale @ axes.T))
        self.bias = nn.Parameter(linear.bias.detach() + weight @ self.mean)

    def forward(self, states):
        return F.linear((states - self.mean) @ self.root, self.weight, self.bias)

    @torch.no_grad()
    def folded(self):
        """Return the same map as one linear layer. Its bias corrects the error of int8 weights at the mean state."""
        linear = nn.Linear(*self.weight.shape)
        linear.weight.copy_(self.weight @ self.root)
        linear.bias.copy_(self.bias - dequantize_rows(*quantize_rows(linear.weight)) @ self.mean)
        return linear
