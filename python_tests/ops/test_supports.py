# SPDX-License-Identifier: Apache-2.0
"""supports() returns whether a kind of call is supported. Its answers agree with real calls."""

import pytest
import torch
from support import backends

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.rows import Rows

pytestmark = pytest.mark.one_backend

SIDES = {"target": "views", "rows": "views", "p": "views", "draft": "draft_views", "q": "draft_views"}
READERS = [op for op in sk.registry.FUNCTIONS if set(SIDES) & example_calls.calls(op)[0].arguments.keys()]
FIELDS = [name for name in Rows._fields if name not in ("logits", "kind")]


def described(call):
    """Return the arguments of supports() that describe an example call. Tensors and tuples are left out."""
    found = {"draft": False}
    for name, x in call.items():
        if name not in SIDES:
            if not isinstance(x, (torch.Tensor, tuple)) and x is not None:
                found[name] = x
        elif isinstance(x, Rows) or (isinstance(x, torch.Tensor) and x.is_floating_point()):
            rows = x if isinstance(x, Rows) else Rows(x)
            first = SIDES[name] == "views"
            found[SIDES[name]] = [field for field in FIELDS if getattr(rows, field) is not None]
            found |= (
                {"kind": rows.kind, "dtype": rows.logits.dtype}
                if first
                else {"draft_kind": rows.kind, "draft_dtype": rows.logits.dtype}
            )
            found |= {"strides": rows.logits.stride()} if first else {"draft": True}
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", READERS)
def test_every_example_call_is_supported(op, dtype):
    for call in example_calls.calls(op, dtype=dtype, pad=3):
        how = described(call.arguments)
        if isinstance(call.arguments.get("rule"), torch.Tensor) or how.get("rule") in ("synthetic",):
            how.pop("rule", None)  # its rates are left out of the description
        how |= {name: 1 for name in ("max_depth", "max_draft") if name in how}
        answer = sk.supports(op, **how)
        assert answer and answer.reason is None, (call.name, answer)


@pytest.mark.parametrize("op", [op for op in READERS if op not in ("accept", "residual")])
def test_fields_that_no_call_has_are_refused(op):
    """The example calls have every form of a call. So a field that none of them has is one that the op refuses."""
    calls = [described(call.arguments) for call in example_calls.calls(op)]
    assert not [field for field in FIELDS if all(field not in how.get("views", ()) for how in calls) and
                sk.supports(op, views=[field])]  # fmt: skip
    if any(how["draft"] for how in calls):
        assert not [field for field in FIELDS if all(field not in how.get("draft_views", ()) for how in calls) and
                    sk.supports(op, draft_views=[field])]  # fmt: skip


SEEDS = {name: torch.zeros(1, dtype=torch.int64) for name in ("seed", "offset")}


def chain(**how):
    return sk.verify_chain(torch.zeros(1, 2, 64), torch.zeros(1, 1, dtype=torch.int64), **SEEDS, **how)


@pytest.mark.parametrize(
    "call, how",
    [
        (lambda: sk.row_stats(torch.zeros(1, 64, dtype=torch.float64)), {"dtype": torch.float64}),
        (lambda: sk.row_stats(Rows(torch.zeros(2, 64), row=torch.zeros(1, dtype=torch.int32))), {"views": ["row"]}),
        (lambda: sk.row_stats(torch.zeros(64, 2).T), {"strides": (1, 2)}),
        (lambda: sk.row_stats(Rows(torch.ones(1, 64), kind="probs")), {"kind": "probs"}),
        (lambda: sk.sample(torch.zeros(1, 64), race=True, slot=3, **SEEDS), {"race": True, "slot": 3}),
        (lambda: chain(method="nope"), {"method": "nope"}),
        (lambda: chain(draft=torch.zeros(1, 1, 64).double()), {"draft_dtype": torch.float64}),
        (lambda: chain(method="race", rule="lossy"), {"method": "race", "rule": "lossy"}),
    ],
    ids=["float64", "row", "strides", "probs", "slot", "method", "draft", "rule"],
)
def test_the_reason_is_the_error_of_the_call(call, how):
    with pytest.raises((TypeError, ValueError)) as error:
        call()
    wanted = str(error.value).split(", got ")[0]
    assert sk.supports(wanted.split(":")[0], **how).reason.split(", got ")[0] == wanted


def test_devices():
    assert sk.supports("uniforms") == (True, None)
    assert sk.supports("row_stats", device="mps").reason == "row_stats: tensors must be on the CPU or a GPU, got mps"
    if not torch.cuda.is_available():
        answer = sk.supports("row_stats", device="cuda:1")
        assert not answer and answer.reason.startswith("row_stats: ")


def test_what_triton_does_not_serve():
    why = backends.why_not("triton-interpret")
    if why:
        pytest.skip(why)
    ask = lambda **how: backends.there("triton-interpret", sk.supports, "verify_tree", **how)
    assert ask() == (True, None)
    assert ask(rule="lossy") == (False, "verify_tree: Triton does not serve rule")
    assert sk.supports("verify_tree", rule="lossy") == (True, None)


def test_drafts_by_id_that_a_build_left_out(monkeypatch):
    monkeypatch.setattr(sk.backends, "chosen", lambda: "cuda")
    monkeypatch.setattr(sk.backends, "available", lambda: ["cpu", "cuda"])
    monkeypatch.setattr(sk.backends, "cuda_reads_ids", lambda: False)
    text = "verify_chain: the CUDA ops were built with SPECDEC_CUDA_IDS=0"
    assert sk.supports("verify_chain", device="cuda", draft_views=["ids"]) == (False, text)
    assert sk.supports("verify_chain", device="cuda", views=["penalties"])
    assert sk.supports("verify_chain", draft_views=["vocab_map"])


@pytest.mark.parametrize(
    "op, how, text",
    [
        ("verify", {}, "op must be one of uniforms, .*, got verify"),
        ("sample", {"views": ["penalty"]}, "views must be among temperature, .*, got penalty"),
        ("sample", {"method": "race"}, "sample has no argument method"),
        ("uniforms", {"views": ["bias"]}, "uniforms reads no rows, so it takes no views, draft_views or strides"),
    ],
)
def test_questions_that_make_no_sense(op, how, text):
    with pytest.raises(ValueError, match=f"^supports: {text}"):
        sk.supports(op, **how)
