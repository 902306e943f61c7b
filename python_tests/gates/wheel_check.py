# SPDX-License-Identifier: Apache-2.0
"""Test of a freshly installed wheel with the torch that it finds. Run by wheel_check.sh, outside the source tree."""

import os
import sys

import torch

import specdec_kernels as sk
from specdec_kernels import example_calls, reference, registry


def disagreement(op, call, got):
    """Return where an op's outcome for an example call differs from the shipped reference; None if nowhere."""
    function = getattr(reference.banded, op, None) or getattr(reference, op)
    want = example_calls.outcome(op, function, **call.arguments)
    sure = want.margin > 1 if hasattr(want, "margin") else slice(None)  # the rows on which rounding decides nothing
    got, want = tensors(got), tensors(want)
    for i, (a, b) in enumerate(zip(got, want)):
        a, b = a[sure], b[sure]
        if not a.is_floating_point():
            if a.tolist() != b.tolist():
                return f"result {i}: {a.tolist()} for {b.tolist()}"
        elif not torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-4, equal_nan=True):
            return f"result {i}: {a.tolist()} for {b.tolist()}"
    return None


def tensors(result):
    """Return the tensors of a result. Of Rows only the stats are returned, since the logits are the caller's."""
    parts = [result] if isinstance(result, torch.Tensor) else result
    return [x.stats if isinstance(x, sk.Rows) else x for x in parts if x is not None]


def on_cpu():
    """Compare every op's example calls with the shipped reference; return the number of calls."""
    made = 0
    for op in registry.OPS:
        for call in example_calls.calls(op):
            made += 1
            if wrong := disagreement(op, call, example_calls.outcome(op, getattr(sk, op), **call.arguments)):
                sys.exit(f"{op}, {call.name}: {wrong}")
    return made


def refusal(call):
    """Return the first line of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    sys.exit("a call that must fail went through")


def main():
    assert "site-packages" in sk.__file__, sk.__file__
    print(f"\ntorch {torch.__version__}, Python {sys.version.split()[0]}")
    print(f"  CPU ops: {on_cpu()} calls of {len(registry.OPS)} ops agree with the reference")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    registered = [op for op in registry.OPS if has_kernel(f"specdec::{op}", "CUDA")]
    print(f"  registered for CUDA: {', '.join(registered) or 'none'} (chosen: {sk.backends.chosen()})")
    print(f"  archs in the binary: {', '.join(sk.backends.cuda_archs()) or 'none'}")
    lacking = {name: sk.backends.lacks(name) for name in ("cuda", "triton")}
    print(f"  lacking for cuda: {lacking['cuda'] or 'nothing'}; for triton: {lacking['triton'] or 'nothing'}")
    print(f"  can run here: {', '.join(sk.backends.available())}")
    if lacking["cuda"]:
        assert not registered or sk.backends.chosen() == "triton"
    else:
        assert registered == list(registry.OPS)
    seed = torch.zeros(1, dtype=torch.int64)
    if not torch.cuda.is_available():
        print(f"  tensors on a GPU: {refusal(lambda: sk.uniforms(seed.to('cuda'), 0, 1))}")
    if registered and not torch.cuda.is_available():
        # Call the CUDA kernel on CPU tensors, which must raise an error. torch also logs a backtrace, so stderr is
        # discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
        direct = torch.ops.specdec.uniforms.default
        print(f"  the CUDA kernel: {refusal(lambda: direct.redispatch(keys, seed, seed, 1, 0))}")


if __name__ == "__main__":
    main()
