# SPDX-License-Identifier: Apache-2.0
import torch


def calls(x):
    yield "short drafts among them", {"draft_tokens": x.integers(-1, 3, 2, 3, 4)}
    yield "int32, other strides", {"draft_tokens": x.integers(0, 3, 5, 2, 7).to(torch.int32).transpose(1, 2)}
    yield "many drafts", {"draft_tokens": x.integers(-1, 3, 3, 70, 3)}
