# SPDX-License-Identifier: Apache-2.0
"""Processes that are the ranks of a gloo group, each with one thread.

Ranks(n).call(function, *args) runs a module-level function on all of them, as function(rank, *args), and returns their
results. Exceptions count as results.

To start a process takes seconds. Those of a group that has been stopped form the next group, so a function leaves its
process as it was, or ends it.
"""

import datetime
import os
import pickle
import sys
import tempfile
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch.distributed as dist

TIMEOUT = 120.0  # seconds of a collective; the first one waits for processes that start


class Member(NamedTuple):
    process: Any
    pipe: Any


_idle: list[Member] = []  # processes of this one that are in no group


def _serve(pipe):
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            rank, path, call = pipe.recv()
        except EOFError:
            os._exit(0)
        sys.path[:] = path
        try:
            function, args = pickle.loads(call)
            result = function(rank, *args)
        except Exception as error:
            result = error
        pipe.send(result)


def _join(rank, ranks, store, seconds):
    if dist.is_initialized():
        dist.destroy_process_group()
    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timeout)
    import specdec_kernels.distributed  # noqa: F401


def _start():
    context = get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return Member(process, mine)


class Ranks:
    def __init__(self, n, seconds=TIMEOUT, path=()):
        """path: folders to import from before others. Such a group has processes of its own."""
        self.n, self.seconds, self.path = n, seconds, [*path, *sys.path]
        self.kept, self.waiting = not path, 0
        self.members = [_idle.pop() for _ in range(min(n, len(_idle)) if self.kept else 0)]
        self.members += [_start() for _ in range(n - len(self.members))]
        self.folder = tempfile.TemporaryDirectory(prefix="specdec-ranks-")
        for error in self.call(_join, n, os.path.join(self.folder.name, "store"), seconds):
            if error is not None:
                self.stop()
                raise RuntimeError(f"a rank of {n} did not join: {error}")

    def call(self, function, *args):
        call = pickle.dumps((function, args))
        for rank, member in enumerate(self.members):
            member.pipe.send((rank, self.path, call))
        self.waiting = self.n
        return [self._result(rank) for rank in range(self.n)]

    def _result(self, rank):
        if not self.members[rank].pipe.poll(10 * self.seconds):
            self.stop()
            raise TimeoutError(f"rank {rank} of {self.n} does not answer")
        try:
            result = self.members[rank].pipe.recv()
        except EOFError:
            self.members[rank].process.join()
            result = "gone"
        self.waiting -= 1
        return result

    def stop(self):
        """End the group. Its processes are kept for the next one, except if they have not answered yet."""
        kept = [x for x in self.members if self.kept and not self.waiting and x.process.is_alive()]
        for process in (x.process for x in self.members if x not in kept):
            process.kill()
            process.join()
        _idle.extend(kept)
        self.members = []
        self.folder.cleanup()
