# SPDX-License-Identifier: Apache-2.0
import torch


def calls(x):
    log_q = x.on_device(x.normal(3, 4, 6).log_softmax(-1))
    yield "few nodes", {"log_q": log_q, "tokens": x.integers(0, 99, 3, 4, 6), "nodes": 20}
    turned = {"log_q": log_q.transpose(1, 2), "tokens": x.integers(-1, 5, 3, 6, 4).to(torch.int32)}
    yield "more nodes than paths", turned | {"nodes": 700}
