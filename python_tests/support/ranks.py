# SPDX-License-Identifier: Apache-2.0
"""Processes that are the ranks of a gloo group, each with one thread.

Ranks(n).call(function, *args) runs a module-level function on all of them, as function(rank, *args), and returns their
results. Exceptions count as results.
"""

import datetime
import os
import pickle
import sys
import tempfile
from multiprocessing import get_context

import torch.distributed as dist

TIMEOUT = 120.0  # seconds of a collective; the first one waits for processes that start


def _serve(rank, ranks, store, seconds, pipe, path):
    sys.path[:] = path
    import torch

    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timeout)
    import specdec_kernels.distributed  # noqa: F401

    while True:
        try:
            call = pipe.recv()
        except EOFError:
            os._exit(0)
        function, args = pickle.loads(call)
        try:
            result = function(rank, *args)
        except Exception as error:
            result = error
        pipe.send(result)


class Ranks:
    def __init__(self, n, seconds=TIMEOUT, path=()):
        self.n, self.seconds = n, seconds
        self.folder = tempfile.TemporaryDirectory(prefix="specdec-ranks-")
        context = get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(n):
            mine, theirs = context.Pipe()
            store = os.path.join(self.folder.name, "store")
            args = (rank, n, store, seconds, theirs, [*path, *sys.path])
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def call(self, function, *args):
        call = pickle.dumps((function, args))
        for pipe in self.pipes:
            pipe.send(call)
        return [self._result(rank) for rank in range(self.n)]

    def _result(self, rank):
        if not self.pipes[rank].poll(10 * self.seconds):
            self.stop()
            raise TimeoutError(f"rank {rank} of {self.n} does not answer")
        try:
            return self.pipes[rank].recv()
        except EOFError:
            return "gone"

    def stop(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.folder.cleanup()
