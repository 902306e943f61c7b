# SPDX-License-Identifier: Apache-2.0
import torch


def calls(x):
    survival = x.uniforms(5, 4).float().cumprod(1)
    yield "of equal lengths", {"survival": survival, "total": 9}
    yield "of any lengths", {"survival": survival.flip(1), "total": 7, "num_drafts": x.integers(0, 5, 5)}
    turned = {"survival": x.uniforms(4, 5).float().t(), "num_drafts": x.integers(0, 5, 5).to(torch.int32)}
    yield "more than there is", turned | {"total": 1 << 40}
