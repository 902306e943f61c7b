# SPDX-License-Identifier: Apache-2.0
"""What a freshly installed wheel does beside the torch it finds. Run by wheel_check.sh, outside the source tree."""

import os
import sys

import torch

import specdec_kernels as sk
from specdec_kernels.backends import dispatch

OPS = dispatch.ops()


def on_cpu():
    """Tokens of a small batch, against the shipped reference."""
    B, G, V = 8, 3, 1000
    draw = torch.Generator().manual_seed(0)
    target = torch.randn(B, G + 1, V, generator=draw).to(torch.bfloat16)
    draft = target[:, :G] + 0.5 * torch.randn(B, G, V, generator=draw).to(torch.bfloat16)
    seed, offset = torch.arange(B), torch.zeros(B, dtype=torch.int64)
    stats = sk.row_stats(draft.flatten(0, 1))
    drafts = sk.sample(
        draft.flatten(0, 1), stats, 1, uniforms=torch.rand(B * G, 1, generator=draw, dtype=torch.float64)
    ).tokens
    step = dict(
        target_logits=target, draft_tokens=drafts.view(B, G), draft_logits=draft, top_p=0.9, seed=seed, offset=offset
    )
    got, want = sk.verify_chain(**step), sk.reference.verify_chain(**step)
    assert torch.equal(got.tokens, want.tokens) and 0 < got.num_accepted.sum() < B * G
    p, q = target[:, 0].float().softmax(-1), draft[:, 0].float().softmax(-1)
    rest, mass = sk.residual(p, q)
    torch.testing.assert_close(rest * mass.float()[:, None], (p - q).clamp(min=0))
    u = sk.uniforms(seed, offset, 1)[:, 0]
    assert torch.equal(sk.accept(p[:, 0], q[:, 0], u), u * q[:, 0].double() < p[:, 0].double())


def refusal(call):
    """The first line of the error that a call ends in."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    sys.exit("a call that must fail went through")


assert "site-packages" in sk.__file__, sk.__file__
print(f"\ntorch {torch.__version__}, Python {sys.version.split()[0]}")
on_cpu()
print("  CPU ops: run, tokens equal the reference's")
registered = [op for op in OPS if torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec::{op}", "CUDA")]
print(f"  registered for CUDA: {', '.join(registered) or 'none'} (chosen: {sk.backends.chosen()})")
print(f"  archs in the binary: {', '.join(sk.backends.cuda_archs()) or 'none'}")
print(
    f"  lacking for cuda: {sk.backends.lacks('cuda') or 'nothing'}; "
    f"for triton: {sk.backends.lacks('triton') or 'nothing'}"
)
print(f"  can run here: {', '.join(sk.backends.available())}")
if sk.backends.lacks("cuda"):
    assert not registered or sk.backends.chosen() == "triton"
else:
    assert registered == OPS
if not torch.cuda.is_available():
    print(f"  tensors on a GPU: {refusal(lambda: sk.uniforms(torch.zeros(1, dtype=torch.int64, device='cuda'), 0, 1))}")
if registered and not torch.cuda.is_available():
    # The kernel's own way to the device, on what is no device: it must come back as an error. torch logs a backtrace
    # too.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    seed = torch.zeros(1, dtype=torch.int64)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    print(
        f"  the CUDA kernel: {refusal(lambda: torch.ops.specdec.uniforms.default.redispatch(keys, seed, seed, 1, 0))}"
    )
