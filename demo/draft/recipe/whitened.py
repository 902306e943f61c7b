# SPDX-License-Identifier: Apache-2.0
"""The projection of a target's states as it is trained: steps of one size suit what has no mean and no correlations."""

import torch
import torch.nn.functional as F
from torch import nn

from specdec_kernels.decode.models.layer_draft import dequantize_rows, quantize_rows


class Whitened(nn.Module):
    """The projection of the states, trained on what is left of them without their mean and correlations.

    A few entries of a state are ten times the others and hardly change: steps of one size for all weights would follow
    these alone. states [N, d]: a sample.
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
        """The same as one linear layer, whose bias makes up for what int8 takes from the mean."""
        linear = nn.Linear(*self.weight.shape)
        linear.weight.copy_(self.weight @ self.root)
        linear.bias.copy_(self.bias - dequantize_rows(*quantize_rows(linear.weight)) @ self.mean)
        return linear
