# SPDX-License-Identifier: Apache-2.0
"""What test_cuda_graph runs where the GPU is: each function takes arguments on a device and returns tensors to
compare."""

import torch
from support.surface import tensors
from torch.utils._pytree import tree_leaves, tree_map

import specdec_kernels as sk


def call(op, inputs):
    return tensors(getattr(sk, op)(**inputs))


def each_tensor(function, inputs):
    return tree_map(lambda x: function(x) if isinstance(x, torch.Tensor) else x, inputs)


def replayed(op, sets):
    """Captures one call, then replays it on each set of inputs in turn: what the replays leave, and what plain calls
    return."""
    static = each_tensor(torch.clone, sets[0])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(op, static)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        outputs = call(op, static)
    left = []
    for inputs in sets:
        for held, x in zip(tree_leaves(static), tree_leaves(inputs), strict=True):
            if isinstance(x, torch.Tensor):
                held.copy_(x)
        captured.replay()
        left.append([x.clone() for x in outputs])
    return left, [call(op, inputs) for inputs in sets]


def on_streams(op, sets, times=20):
    """Many calls in flight on several streams at once: the last result of each stream, and what plain calls return."""
    want = [call(op, inputs) for inputs in sets]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in sets]
    for _ in range(times):
        got = []
        for stream, inputs in zip(streams, sets):
            with torch.cuda.stream(stream):
                got.append(call(op, inputs))
    torch.cuda.synchronize()
    return got, want


def without_waiting(op, inputs):
    """The call, where anything that waits for the device raises."""
    call(op, inputs)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = getattr(sk, op)(**inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return tensors(result)


def on_second_device(op, inputs):
    """The call on cuda:1 while cuda:0 is current: its result, a plain one, and where results and current device are."""
    got = call(op, each_tensor(lambda x: x.to("cuda:1"), inputs))
    places = [str(x.device) for x in got]
    torch.cuda.synchronize("cuda:1")
    return [x.cpu() for x in got], call(op, inputs), places, torch.cuda.current_device()


def devices():
    return torch.cuda.device_count()
