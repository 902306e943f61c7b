# SPDX-License-Identifier: Apache-2.0
"""A process in which torch.ops.specdec.* belongs to another backend, which replaces the CPU's ops or uses a GPU.

`Worker(name, environment, device).call(function, *args)` runs a module-level function there. Tensors are sent as their
storage with strides and offset, so that an unaligned row stays unaligned, and arrive on the worker's device. A function
that makes tensors itself moves them to the device with here(). Exceptions are raised unchanged in the caller. If a
worker dies or hangs, or its GPU reports an error, its test fails, and the next test gets a new worker.
"""

import contextlib
import faulthandler
import gc
import io
import os
import pickle
import subprocess
import sys
import traceback
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import torch
from support import collector, interpreter, specialisations
from support.paths import PYTHONPATH, TESTS

TIMEOUT = 600.0  # seconds of one call; the first may have to compile
LARGEST = 1 << 30  # bytes of one storage; larger tensors must be made in the worker

device = "cpu"  # the device of tensors that arrive in this process


def _rebuild(raw, dtype, size, stride, offset):
    flat = (
        torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(device, copy=True)
        if raw
        else torch.empty(0, dtype=torch.uint8, device=device)
    )
    return flat.view(dtype).as_strided(size, stride, offset)


class _Pickler(pickle.Pickler):
    def reducer_override(self, x):
        if type(x) is not torch.Tensor:
            return NotImplemented
        storage = x.untyped_storage()
        if storage.nbytes() > LARGEST:
            raise ValueError(f"a storage of {storage.nbytes()} bytes does not travel: make it in the worker")
        raw = torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage).cpu().numpy().tobytes()
        return _rebuild, (raw, x.dtype, tuple(x.shape), x.stride(), x.storage_offset())


def _dumps(x):
    out = io.BytesIO()
    _Pickler(out, protocol=5).dump(x)
    return out.getvalue()


class Worker:
    def __init__(self, name, environment, device="cpu"):
        self.name = name
        self.pipe, theirs = Pipe()
        command = [sys.executable, "-m", "support.worker", name, device, str(theirs.fileno())]
        environment = os.environ | environment
        # The package of this tree, unless another is named.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), PYTHONPATH]))
        self.process = subprocess.Popen(command, cwd=TESTS, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()

    def alive(self):
        return self.process.poll() is None

    def call(self, function, *args, **kwargs):
        try:
            self.pipe.send_bytes(_dumps((function, args, kwargs)))
            if not self.pipe.poll(TIMEOUT):
                self.process.kill()
                raise TimeoutError(f"{self.name}: {function.__name__} did not end within {TIMEOUT:.0f} s")
            returned, result = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, ConnectionError):
            code = self.process.wait()
            raise ChildProcessError(f"{self.name}: the worker died in {function.__name__}, exit code {code}") from None
        if not returned:
            if isinstance(result, torch.AcceleratorError):  # after this, every call of that process fails
                self.process.kill()
                self.process.wait()
            raise result
        return result


@contextlib.contextmanager
def renewed(name, environment):
    """A context with a function that returns the same worker until a call ends it, then a new one."""
    made = []

    def worker():
        if not made or not made[-1].alive():
            made.append(Worker(name, environment))
        return made[-1]

    try:
        yield worker
    finally:
        for one in made:
            one.process.terminate()
            one.process.wait()


def here(x):
    """Move tensors made in this process to its device, as if they had been sent from the caller's process."""
    return x if device == "cpu" else pickle.loads(_dumps(x))


def _answer(request):
    try:
        function, args, kwargs = pickle.loads(request)
        result = function(*args, **kwargs)
        if device == "cuda":
            torch.cuda.synchronize()  # so that a kernel's error is raised in the call that launched it
        return _dumps((True, result))
    except BaseException as error:  # any error fails the test, whose output then has this traceback
        traceback.print_exception(error)
        try:
            return _dumps((False, error))
        except Exception:  # this error cannot be pickled
            return _dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


def specialisations_run():
    """Return what this process's simulated device has run, for specialisations.merge()."""
    if "SPECDEC_CUDA_ON_CPU" in os.environ:
        from tools.cuda_on_cpu.build import CSRC, load

        return specialisations.cuda_state(load(os.environ["SPECDEC_CUDA_ON_CPU"], os.environ.get("SPECDEC_CSRC", CSRC)))
    return specialisations.triton_state() if os.environ.get("TRITON_INTERPRET") == "1" else None


def serve(name, where, descriptor):
    """Serve calls until the caller closes the pipe."""
    global device
    faulthandler.enable()
    torch.set_num_threads(1)
    import specdec_kernels  # noqa: F401

    if "SPECDEC_CUDA_ON_CPU" in os.environ:
        from tools.cuda_on_cpu.build import CSRC, load

        load(os.environ["SPECDEC_CUDA_ON_CPU"], os.environ.get("SPECDEC_CSRC", CSRC))
    if os.environ.get("TRITON_INTERPRET") == "1":
        interpreter.hasten()
        specialisations.note_triton_launches()
    device = where
    collector.leave_out_what_is_there()
    pipe = Connection(descriptor)
    while True:
        try:
            request = pipe.recv_bytes()
        except EOFError:
            gc.unfreeze()
            return
        pipe.send_bytes(_answer(request))


if __name__ == "__main__":
    from support import worker  # pickles must name this module, not __main__

    worker.serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
