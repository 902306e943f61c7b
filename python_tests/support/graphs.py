# SPDX-License-Identifier: Apache-2.0
"""The functions that test_cuda_graph runs in the process with the GPU.

Each takes arguments on a device and returns tensors to compare.
"""

import torch
from support.surface import tensors
from torch.utils._pytree import tree_leaves, tree_map

import specdec_kernels as sk
from specdec_kernels import example_calls


def call(op, inputs):
    return tensors(example_calls.outcome(op, getattr(sk, op), **inputs))


def each_tensor(function, inputs):
    return tree_map(lambda x: function(x) if isinstance(x, torch.Tensor) else x, inputs)


def replayed(op, sets):
    """Capture one call and replay it on each set of inputs; return the results of replays, and of plain calls."""
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
    """Run many calls on several streams at once. Return the last result of each stream, and those of plain calls."""
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
    """Make the call; raise if anything waits for the device."""
    call(op, inputs)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        return call(op, inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_second_device(op, inputs):
    """Make a call on cuda:1 while cuda:0 is current.

    Return its result, that of a plain call, the devices of the result, and the current device.
    """
    got = call(op, each_tensor(lambda x: x.to("cuda:1"), inputs))
    places = [str(x.device) for x in got]
    torch.cuda.synchronize("cuda:1")
    return [x.cpu() for x in got], call(op, inputs), places, torch.cuda.current_device()


def devices():
    return torch.cuda.device_count()
