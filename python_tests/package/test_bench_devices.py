# SPDX-License-Identifier: Apache-2.0
"""bench.devices finds what a GPU would refuse or wait for, and nothing else, in the calls below."""

import re

import pytest
import torch
import torch.nn.functional as F

devices = pytest.importorskip("bench.devices", reason="needs the source tree's bench")

import specdec_kernels as sk  # noqa: E402
from bench import decode_loop  # noqa: E402
from specdec_kernels import decode  # noqa: E402


@pytest.fixture(params=[False, True], ids=["", "inference"])
def seen(request):
    """Yield the watcher, with and without inference mode, under which calls reach the dispatcher as other ops."""
    with devices.watch() as seen, torch.inference_mode(request.param):
        yield seen


def on_gpu(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype).to("cuda", non_blocking=True)


MADE = {
    "asked for": lambda x: torch.zeros(2, device="cuda"),
    "counted": lambda x: torch.arange(3, device=x.device),
    "sum": lambda x: x + 1,
    "like": torch.zeros_like,
    "new": lambda x: x.new_full((2,), 7),
    "row": lambda x: x[0],
    "view": lambda x: x.view(-1),
    "written in place": lambda x: x.index_copy_(0, torch.arange(1, device="cuda"), on_gpu(1, 3)),
    "cast": lambda x: x.to(torch.int64),
    "second of several": lambda x: x.topk(2).indices,
    "piece": lambda x: x.chunk(3, 1)[2],
    "scalar joins": lambda x: x + torch.tensor(3.0),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "module": lambda x: torch.nn.Linear(3, 2).to("cuda").bias,
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "repeats by a number": lambda x: x.repeat_interleave(2, 0),
    "one value under a mask": lambda x: x.masked_fill_(x > 0, 2.0),
    "an op of ours": lambda x: sk.row_stats(x),
}


@pytest.mark.parametrize("name", MADE)
def test_a_tensor_is_remembered(seen, name):
    x = on_gpu(2, 3)
    made = MADE[name](x)
    assert (made.device, made.is_cuda, made.is_cpu) == (torch.device("cuda:0"), True, False) and seen.is_cuda(made)
    waited = [] if name != "module" else ["to to the GPU"] * 2  # a weight and a bias, copied in the usual way
    assert [w.partition(": ")[2] for w in seen.synchronisations] == waited and len(seen.uploads) <= 2


@pytest.mark.parametrize(
    "make", [lambda x: torch.zeros(2), lambda x: torch.zeros_like(x, device="cpu"), torch.Tensor.cpu]
)
def test_what_lies_on_the_cpu_stays_there(seen, make):
    x = on_gpu(2, 3)
    made = make(x)
    assert made.device.type == "cpu" and not made.is_cuda and not seen.is_cuda(made)
    with pytest.raises(devices.MixedDevices):
        made.sum()[None] + x


MIXED = {
    "add": lambda x, y: x + y,
    "cat": lambda x, y: torch.cat((x, y)),
    "matmul": lambda x, y: y @ x.T,
    "embedding": lambda x, y: F.embedding(torch.zeros(2, dtype=torch.int64), x),
    "index_copy_": lambda x, y: x.index_copy_(0, torch.zeros(1, dtype=torch.int64), on_gpu(1, 3)),
    "gather": lambda x, y: x.gather(1, torch.zeros(2, 1, dtype=torch.int64)),
    "uniforms": lambda x, y: torch.ops.specdec.uniforms(on_gpu(2), torch.zeros(2, dtype=torch.int64), 1, 0),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixing_raises(seen, name):
    with pytest.raises(devices.MixedDevices, match=rf"{name}: expected all tensors on one device, got .*cpu \[.* at "):
        MIXED[name](on_gpu(2, 3), torch.ones(2, 3))


def test_our_ops_ask_for_the_device(seen):
    seed = torch.zeros(2, dtype=torch.int64, device="cuda")
    with pytest.raises(
        devices.MixedDevices, match=r"sample.*: expected all tensors on one device, got .*cpu \[2\] at "
    ):
        sk.sample(on_gpu(2, 3), seed=seed, offset=torch.zeros(2, dtype=torch.int64))
    assert sk.sample(on_gpu(2, 3), seed=seed, offset=seed).tokens.device == seed.device


WAITS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).all()),
    "if": lambda x: 1 if (x > 0).any() else 0,
    "int": lambda x: int(x.sum()),
    "tolist": torch.Tensor.tolist,
    "numpy": torch.Tensor.numpy,
    "cpu": torch.Tensor.cpu,
    "to cpu": lambda x: x.to("cpu"),
    "copied into the CPU's": lambda x: torch.ones(2, 3).copy_(x),
    "mask": lambda x: x[x > 0],
    "rows under a mask": lambda x: x.__setitem__(x[:, 0] > 0, on_gpu(2, 3)),
    "nonzero": torch.Tensor.nonzero,
    "unique": torch.Tensor.unique,
    "equal": lambda x: torch.equal(x, x),
    "repeats by a tensor": lambda x: x.repeat_interleave(on_gpu(2, dtype=torch.int64), 0),
    "a blocking copy": lambda x: torch.ones(2, 3).to("cuda"),
    "cuda": lambda x: torch.ones(2, 3).cuda(),
    "made of numbers": lambda x: torch.tensor([1, 2], device="cuda"),
    "index on the CPU": lambda x: x[torch.tensor([0])],
    "index in a list": lambda x: x[[0, 1]],
    "index that is a value": lambda x: x[x.new_zeros((), dtype=torch.int64)],
    "row from the CPU": lambda x: x.__setitem__(0, torch.zeros(3)),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_counted_once(seen, name):
    x = on_gpu(2, 3)
    assert seen.synchronisations == [] and len(seen.uploads) == 1
    WAITS[name](x)
    assert len(seen.synchronisations) == 1 and seen.synchronisations[0].startswith(f"{__name__}.py:"), (
        seen.synchronisations
    )


def test_the_cpu_alone_is_left_in_peace(seen):
    x = torch.ones(2, 3)
    assert [x.sum().item(), x[x > 0].tolist(), x.nonzero().shape[0], torch.equal(x, x)] == [6, [1.0] * 6, 6, True]
    assert not seen.synchronisations and not seen.uploads


def test_the_place_is_the_packages():
    """A synchronisation on the package's behalf is attributed to its line in the package."""
    from specdec_kernels.decode.transfers import Readback

    with devices.watch() as seen:
        assert Readback().ask(on_gpu(2, dtype=torch.int64)).rows == [1, 1]
    assert len(seen.synchronisations) == 1 and seen.synchronisations[0].startswith("decode/transfers.py:")


def test_memory_that_is_used_again_is_not_mistaken():
    """Thousands of tensors are made and freed, so that their addresses are reused by CPU tensors."""
    with devices.watch() as seen:
        for _ in range(3000):
            on_gpu(3)
        assert not any(seen.is_cuda(torch.ones(3)) for _ in range(100)) and seen.is_cuda(on_gpu(3))


def test_the_decode_loop_on_a_gpu(capsys):
    """gpu_check.sh's step for the decode loop runs without a GPU. Its numbers mean nothing."""
    with devices.watch(), pytest.raises(SystemExit) as done:
        decode_loop.main()
    printed = capsys.readouterr().out
    assert not done.value.code and "6 drafters, 0 wrong; " in printed.splitlines()[-1], printed
    assert printed.count("tokens/s  ") == 12


def test_the_decode_loop_can_fail(monkeypatch, capsys):
    """The step finds a value that is read on the way, and accepted keys that are not moved to their place."""
    honest = decode.PromptLookupDrafter.propose

    def propose(self, batch):
        batch.offset.sum().item()
        return honest(self, batch)

    monkeypatch.setattr(decode.PromptLookupDrafter, "propose", propose)
    monkeypatch.setattr(decode.SlotCache, "compact", lambda *_: None)
    found_by = {name: decode_loop.DRAFTERS[name] for name in ("plain", "prompt lookup", "top tokens")}
    monkeypatch.setattr(decode_loop, "DRAFTERS", found_by)
    with devices.watch(), pytest.raises(SystemExit) as done:
        decode_loop.main()
    printed = capsys.readouterr().out
    assert done.value.code and re.search(r"prompt lookup: (\d+) of \1 steps waited more than once", printed), printed
    assert re.search(r"top tokens: [12] of 2 requests unlike plain decoding", printed), printed


def test_a_watch_within_another():
    """The outer watch goes on when the inner one ends, also by an error. Both know the tensors of either."""
    with devices.watch() as outer:
        x = on_gpu(3)
        with pytest.raises(ZeroDivisionError), devices.watch() as inner:
            assert devices.watching is inner and inner.is_cuda(x) and x.device.type == "cuda"
            y = on_gpu(3)
            assert (x + y).to("cuda").sum().item() == 6
            with pytest.raises(devices.MixedDevices):
                x + torch.ones(3)
            x.copy_(torch.ones(3), non_blocking=True)
            assert len(inner.synchronisations) == 1 and len(inner.uploads) == 2  # y, and the copy to x
            raise ZeroDivisionError
        assert devices.watching is outer and outer.is_cuda(y) and y.device.type == "cuda"
        assert outer.synchronisations == inner.synchronisations and outer.uploads[1:] == inner.uploads
        assert (x + y).sum().item() == 6
        with pytest.raises(devices.MixedDevices):
            y + torch.ones(3)
        assert len(outer.synchronisations) == 2 and len(inner.synchronisations) == 1
    assert devices.watching is None and torch.zeros(1).device.type == "cpu"
