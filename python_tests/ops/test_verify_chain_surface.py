# SPDX-License-Identifier: Apache-2.0
"""verify_chain's wrong arguments, torch.compile, memory use, offsets beyond 2^31, and the bonus position."""

import os
import re
import subprocess
import sys

import pytest
import torch
from support import backends, flat
from support.paths import PYTHONPATH

import specdec_kernels as sk

B, G, V = 4, 5, 11


def good():
    rng = torch.Generator().manual_seed(0)
    return {
        "target_logits": torch.randn(B, G + 1, V, generator=rng),
        "draft_tokens": torch.zeros(B, G, dtype=torch.int64),
        "draft_logits": torch.randn(B, G, V, generator=rng),
        "uniforms": torch.rand(B, G + 1, generator=rng, dtype=torch.float64),
    }


def ragged():
    rng = torch.Generator().manual_seed(0)
    return {
        "target_logits": torch.randn(9, V, generator=rng),
        "draft_tokens": torch.zeros(5, dtype=torch.int64),
        "draft_logits": torch.randn(5, V, generator=rng),
        "cu_draft": torch.tensor([0, 2, 2, 3, 5]),
        "max_draft": 2,
        "uniforms": torch.rand(4, 3, generator=rng, dtype=torch.float64),
    }


I64 = torch.int64
OF_VALUES = (ValueError,)  # for values in tensors, which a device does not check
BAD = [  # base, change, exception, message
    (
        good,
        {"draft_tokens": torch.zeros(4, 7, dtype=I64)},
        ValueError,
        r"verify_chain: draft_tokens must have shape \[B=4, G=5\], got \[4, 7\]",
    ),
    (
        good,
        {"draft_tokens": torch.zeros(3, 5, dtype=I64)},
        ValueError,
        r"draft_tokens must have shape \[B=4, G=5\], got \[3, 5\]",
    ),
    (good, {"draft_tokens": torch.zeros(4, 5)}, ValueError, "draft_tokens must be int32 or int64, got float32"),
    (good, {"draft_tokens": [[0] * 5] * 4}, TypeError, "draft_tokens must be a torch.Tensor, got list"),
    (
        good,
        {"target_logits": torch.zeros(4, 6, 11, dtype=torch.float64)},
        ValueError,
        "target.logits must be float32, bfloat16 or float16, got float64",
    ),
    (
        good,
        {"target_logits": torch.zeros(6, 11)},
        ValueError,
        r"target.logits must have shape \[B, G\+1, V\], got \[6, 11\]",
    ),
    (good, {"target_logits": torch.zeros(4, 6, 0)}, ValueError, "target.logits must have a vocabulary of"),
    (
        good,
        {"target_logits": torch.zeros(4, 11, 6).transpose(1, 2)},
        ValueError,
        "target.logits must be contiguous in its last dimension",
    ),
    (
        good,
        {"draft_logits": torch.zeros(4, 4, 11)},
        ValueError,
        r"draft.logits must have shape \[B=4, G=5, Vq=11\], got \[4, 4, 11\]",
    ),
    (good, {"draft_logits": torch.zeros(4, 5, 11, dtype=I64)}, ValueError, "draft.logits must be .*got int64"),
    (
        good,
        {"uniforms": torch.zeros(4, 5, dtype=torch.float64)},
        ValueError,
        r"uniforms must have shape \[4, 6\], got \[4, 5\]",
    ),
    (good, {"uniforms": torch.zeros(4, 6)}, ValueError, "uniforms must be float64, got float32"),
    (good, {"uniforms": None}, ValueError, "needs seed and offset, or uniforms, got neither"),
    (
        good,
        {"seed": torch.zeros(4, dtype=I64), "offset": torch.zeros(4, dtype=I64)},
        ValueError,
        "uniforms take the place of seed and offset",
    ),
    (good, {"uniforms": None, "seed": torch.zeros(4, dtype=I64)}, ValueError, "seed and offset go together"),
    (
        good,
        {"uniforms": None, "seed": torch.zeros(4, dtype=torch.int32), "offset": torch.zeros(4, dtype=I64)},
        ValueError,
        "seed must be int64, got int32",
    ),
    (
        good,
        {"uniforms": None, "seed": torch.zeros(5, dtype=I64), "offset": torch.zeros(4, dtype=I64)},
        ValueError,
        r"seed must have shape \[4\] or \[1\], got \[5\]",
    ),
    (good, {"temperature": -0.5}, ValueError, "temperature must be .*>= 0, got -0.5"),
    (good, {"temperature": torch.ones(3)}, ValueError, r"temperature must have shape \[4\] or \[1\], got \[3\]"),
    (good, {"temperature": "1"}, TypeError, "temperature must be a number or a tensor, got str"),
    (good, {"temperature": torch.tensor([1.0, 1.0, -1.0, 1.0])}, OF_VALUES, "verify_chain: target.temperature must be"),
    (good, {"top_p": 0.0}, ValueError, r"top_p must be in \(0, 1\], got 0"),
    (good, {"top_p": 1.01}, ValueError, r"top_p must be in \(0, 1\], got 1.01"),
    (good, {"draft_top_p": -1}, ValueError, r"draft.top_p must be in \(0, 1\], got -1"),
    (good, {"draft_top_p": torch.tensor([1.0, 2.0, 1.0, 1.0])}, OF_VALUES, "verify_chain: draft.top_p must be"),
    (good, {"top_k": -2}, ValueError, "top_k must be .*got -2"),
    (good, {"top_k": 1.5}, TypeError, "top_k must be"),
    (good, {"min_p": 1.5}, ValueError, r"min_p must be in \[0, 1\], got 1.5"),
    (good, {"target_kind": "prob"}, ValueError, "target.kind must be 'logits' or 'probs', got 'prob'"),
    (
        good,
        {"target_kind": "probs", "temperature": 0.5},
        ValueError,
        "sampling parameters need target.kind='logits', got 'probs'",
    ),
    (
        good,
        {"draft_kind": "probs", "draft_stats": torch.zeros(4, 5, 4)},
        ValueError,
        "need draft.kind='logits', got 'probs'",
    ),
    (
        good,
        {"target_stats": torch.zeros(4, 5, 4)},
        ValueError,
        r"target.stats must have shape \[B=4, G\+1=6, 4=?4?\], got \[4, 5, 4\]",
    ),
    (
        good,
        {"draft_stats": torch.zeros(4, 5, 4), "draft_temperature": 0.5},
        ValueError,
        "draft.stats already hold the sampling parameters",
    ),
    (good, {"method": "tree"}, ValueError, "method must be 'token', 'block' or 'race', got 'tree'"),
    (
        good,
        {"rule": "chow_lag"},
        ValueError,
        "rule must be a tensor of codes or one of exact, chow, .*, got 'chow_lag'",
    ),
    (good, {"max_draft": 4}, ValueError, "max_draft must be G=5"),
    (ragged, {"max_draft": None}, ValueError, "max_draft must be"),
    (ragged, {"cu_draft": torch.tensor([0, 2, 1, 3, 5])}, OF_VALUES, "verify_chain: cu_draft must ascend"),
    (ragged, {"cu_draft": torch.tensor([0, 2, -(2**63), 3, 5])}, OF_VALUES, "verify_chain: cu_draft must ascend"),
    (
        ragged,
        {"cu_draft": torch.tensor([2, 2, 3, 5])},
        ValueError,
        r"cu_draft must have shape \[B\+1=5\], a leading 0 .*got \[4\]",
    ),
    (
        ragged,
        {
            "cu_draft": torch.tensor([2, 2, 3, 5]),
            "target_logits": torch.zeros(5, V),
            "bonus_tokens": torch.zeros(4, dtype=I64),
        },
        ValueError,
        r"cu_draft must have shape \[B\+1=5\], a leading 0 .*got \[4\]",
    ),
    (ragged, {"cu_draft": torch.tensor([1, 2, 2, 3, 5])}, OF_VALUES, "verify_chain: cu_draft must"),
    (ragged, {"cu_draft": torch.tensor([0, 2, 2, 3, 4])}, OF_VALUES, "verify_chain: cu_draft must"),
    (
        ragged,
        {"max_draft": 1, "uniforms": torch.zeros(4, 2, dtype=torch.float64)},
        OF_VALUES,
        "verify_chain: .*max_draft",
    ),
    (ragged, {"cu_draft": torch.tensor([0.0, 2, 2, 3, 5])}, ValueError, "cu_draft must be int32 or int64, got float32"),
    (
        ragged,
        {"target_logits": torch.zeros(9, 11, 1)},
        ValueError,
        r"target.logits must have shape \[R, V\], got \[9, 11, 1\]",
    ),
    (
        ragged,
        {"draft_logits": torch.zeros(4, 11)},
        ValueError,
        r"draft.logits must have shape \[D=5, Vq=11\], got \[4, 11\]",
    ),
]


# hints in errors about the row after the last draft: the row is missing, or bonus tokens replace it
FORGOTTEN, INSTEAD = "one after the last draft", r"\(bonus_tokens take the place of the row after the last draft\)"
REFUSED = (ValueError, RuntimeError)
BONUS = torch.zeros(4, dtype=I64)
OF_EACH, OF_TARGET = f"{FORGOTTEN} of each request", "target must have"
BAD += [
    (good, change, REFUSED, rf"verify_chain: {OF_TARGET} {rows}, got {got}$")
    for change, rows, got in (
        ({"target_logits": torch.zeros(4, 5, 11)}, rf"G\+1=6 rows for G=5 drafts \({FORGOTTEN}\)", 5),
        ({"bonus_tokens": BONUS}, f"G=5 rows for G=5 drafts {INSTEAD}", 6),
        ({"bonus_tokens": BONUS, "target_logits": torch.zeros(4, 4, 11)}, f"G=5 rows for G=5 drafts {INSTEAD}", 4),
    )
]
BAD += [
    (ragged, change, REFUSED, rf"verify_chain: {OF_TARGET} {rows}, got {got}$")
    for change, rows, got in (
        ({"target_logits": torch.zeros(5, 11)}, rf"D\+B=9 rows for D=5 drafts \({OF_EACH}\)", 5),
        ({"target_logits": torch.zeros(8, 11)}, rf"D\+B=9 rows for D=5 drafts \({OF_EACH}\)", 8),
        ({"target_logits": torch.zeros(11, 11)}, rf"D\+B=9 rows for D=5 drafts \({OF_EACH}\)", 11),
        ({"bonus_tokens": BONUS}, f"D=5 rows for D=5 drafts {INSTEAD}", 9),
        ({"bonus_tokens": BONUS, "target_logits": torch.zeros(4, 11)}, f"D=5 rows for D=5 drafts {INSTEAD}", 4),
        ({"bonus_tokens": BONUS, "target_logits": torch.zeros(1, 11)}, f"D=5 rows for D=5 drafts {INSTEAD}", 1),
    )
]
# D+B+1 rows go with B+1 requests, whose offsets lack the 0. The host sees that these begin with 0; a device does not
# look.
LACKS_0_OR_ROWS = rf"{OF_TARGET} D\+B=9 .*, got 10$|cu_draft.* a leading 0"
BAD += [(ragged, {"target_logits": torch.zeros(10, 11)}, REFUSED, LACKS_0_OR_ROWS)]


@pytest.mark.parametrize(
    "base, change, error, message", BAD, ids=[f"{i}-{'-'.join(c)}" for i, (_, c, _, _) in enumerate(BAD)]
)
def test_bad_arguments(op_backend, base, change, error, message):
    verify = backends.call("verify_chain", op_backend)
    try:
        out = verify(**base() | change)
    except (TypeError, ValueError) as caught:
        assert (
            isinstance(caught, error) and re.search(message, str(caught)) and str(caught).startswith("verify_chain: ")
        )
        return
    # Invalid values inside tensors raise where the host can read them. On a device that would need synchronisation.
    assert error is OF_VALUES and op_backend != "cpu", "nothing was raised"
    assert ((out.tokens >= -1) & (out.tokens < V)).all() and (out.tokens[:, 0] >= 0).all()
    want = verify(**base())
    if "cu_draft" not in change and "max_draft" not in change:
        wrong = 2 if "temperature" in change else 1
        others = [b for b in range(B) if b != wrong]
        assert out.status[wrong] & sk.STATUS_INVALID_ROW and torch.equal(out.tokens[others], want.tokens[others])


def test_offsets_that_begin_with_0_do_not_lack_it():
    with pytest.raises(ValueError, match=r"^verify_chain: target must have D\+B=9 rows for D=5 drafts .*, got 10$"):
        flat.call(sk.verify_chain, **ragged() | {"target_logits": torch.zeros(10, V)})


def draft_on_another_device(args):
    return flat.call(sk.verify_chain, **args | {"draft_tokens": args["draft_tokens"].to("meta")})


def test_wrong_device(op_backend):
    with pytest.raises(
        (ValueError, NotImplementedError), match="verify_chain: draft_tokens must be on (cpu|cuda:0), got meta"
    ):
        backends.there(op_backend, draft_on_another_device, good())


def step(p, q, seed):
    drawn = sk.sample(sk.Rows(q, temperature=0.8), k=1, seed=seed, offset=seed)
    return sk.verify_chain(
        p, drawn.tokens, sk.Rows(q[:, None], stats=drawn.rows.stats[:, None]), seed=seed, offset=seed
    )[:2]


def compiled_step(*args):
    return torch.compile(step, fullgraph=True, backend="aot_eager")(*args), step(*args)


@pytest.mark.one_backend
@pytest.mark.slow
def test_a_step_compiles_whole(op_backend):
    """torch.compile makes one graph of a draft step and its verification with given stats."""
    a = good()
    compiled, eager = backends.there(
        op_backend, compiled_step, a["target_logits"][:, :2], a["draft_logits"][:, 0], torch.arange(B)
    )
    for got, want in zip(compiled, eager):
        assert torch.equal(got, want)


# ---- memory and size ------------------------------------------------------------------------------------------------

# Limits the process's address space to half a megabyte above its current size, after filling all free heap memory.
MEMORY = """
import ctypes
import resource
import torch

import specdec_kernels as sk
torch.set_num_threads(1)
B, G, V = 64, 5, 151_936
target = torch.randn(B, 1, V).bfloat16().expand(B, G + 1, V)
draft = torch.randn(1, G, V).bfloat16().expand(B, G, V)
args = dict(target=sk.Rows(target, {target}), draft_tokens=draft[0].argmax(-1).expand(B, G),
            draft=sk.Rows(draft, {draft}), seed=torch.arange(B), offset=torch.arange(B))
sk.verify_chain(**args)  # the first call's allocations that happen once are not measured

malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
pages = int(open("/proc/self/statm").read().split()[0])
def leave(spare):
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + spare, resource.RLIM_INFINITY))
leave(0)
free = ctypes.CDLL(None).free
free.argtypes = [ctypes.c_void_p]
ours = malloc(1 << 16)  # kept free for Python itself
for size in 1 << 18, 1 << 16, 1 << 14:
    while malloc(size):
        pass
free(ours)
leave((1 << 19) - (1 << 16))  # half a megabyte with those 64 kB
sk.verify_chain(**args)
print("verified", "full" if malloc(4 * V) is None else "not full")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("target, draft", [
    ("", ""),
    ("temperature=0.7, top_p=0.9", "top_k=50"),
    ("row=torch.arange(B * (G + 1)).view(B, -1).flip(1)", "row=torch.arange(B * G).view(B, -1).flip(0)"),
])  # fmt: skip
@pytest.mark.slow
def test_no_row_is_copied(target, draft):
    """A call with B=64, G=5 and V=151,936 needs less than half a megabyte. One float32 row takes 608 kB, one row per
    request 39 MB."""
    code = MEMORY.format(target=target, draft=draft)
    env = os.environ | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "verified full\n"


def far_apart(rows, drafts, u, layout):
    """Return the ops' results for rows side by side, and for the same rows more than 2^31 elements apart."""
    far, width = 2**31 + 12_345, rows.shape[-1]
    storage = torch.empty(far + 4 * width, dtype=rows.dtype, device=rows.device)
    view = storage.as_strided(rows.shape, (far, width, 1) if layout == "request stride" else (2 * width, far, 1))
    view.copy_(rows)
    return [
        [
            *sk.verify_chain(x, drafts, None, uniforms=u)[:3],
            *sk.verify_chain(x, drafts, x[:, :1], uniforms=u)[:3],
            sk.row_stats(x[:, 0]),
            sk.row_stats(sk.Rows(x[:, 0], top_k=5)),
            sk.sample(x[:, 1], uniforms=u[:, :1].contiguous()).tokens,
            *sk.residual(x[:, 0], x[:, 1]),
        ]
        for x in (rows, view)
    ]


@pytest.mark.parametrize("layout", ["request stride", "row stride"])
@pytest.mark.slow
def test_offsets_past_2_31(op_backend, layout):
    """The memory is reserved, but most of it is never touched."""
    rng = torch.Generator().manual_seed(3)
    rows = torch.randn(2, 2, 1500, generator=rng).bfloat16()
    drafts, u = torch.tensor([[7], [9]]), torch.rand(2, 2, generator=rng, dtype=torch.float64)
    want, got = backends.there(op_backend, far_apart, rows, drafts, u, layout)
    for a, b in zip(got, want):
        assert torch.equal(a, b)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_draft_row_at_the_bonus_position_is_not_read(backend, ragged):
    """Some rules need q at the bonus position. The exact rule accepts the same tensors and gives the same tokens."""
    verify = backends.call("verify_chain", backend)
    B, G, V = 4, 2, 5
    generator = torch.Generator().manual_seed(0)
    target, draft = (torch.randn(B, G + 1, V, generator=generator) for _ in range(2))
    draft[:, G] = torch.nan
    tokens = torch.randint(V, (B, G), generator=generator)
    seed, offset = torch.arange(B), torch.zeros(B, dtype=torch.int64)
    want = verify(target, tokens, draft[:, :G], seed=seed, offset=offset)
    if ragged:
        cu = torch.arange(B + 1) * G
        got = verify(
            target.flatten(0, 1),
            tokens.flatten(),
            draft.flatten(0, 1),
            cu_draft=cu,
            max_draft=G,
            seed=seed,
            offset=offset,
        )
    else:
        got = verify(target, tokens, draft, seed=seed, offset=offset)
    assert all(torch.equal(a, b) for a, b in zip(want, got))


@pytest.mark.parametrize("ragged", [False, True])
def test_a_column_of_bonus_tokens(backend, ragged):
    """bonus_tokens may have shape [B, 1], as samplers return them."""
    G, bonus = 2, torch.tensor([3, 4])
    z, ids = torch.zeros(2, G, 5).index_fill_(2, torch.tensor([1]), 9.0), torch.ones(2, G, dtype=torch.int64)
    args = {"target_logits": z, "draft_tokens": ids, "temperature": 0}
    if ragged:
        args |= {"target_logits": z.flatten(0, 1), "draft_tokens": ids.flatten(), "max_draft": G}
        args["cu_draft"] = torch.tensor([0, G, 2 * G])
    for given in (bonus, bonus[:, None], torch.stack([bonus, bonus], 1)[:, 1:]):
        out = backends.run("verify_chain", backend, **args, bonus_tokens=given)
        assert out.tokens.tolist() == [[1, 1, 3], [1, 1, 4]]
