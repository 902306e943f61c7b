# SPDX-License-Identifier: Apache-2.0
"""The probe of a model when it is wrapped: each fault is found and named, and rounding is not taken for one."""

import pytest
import torch
from support import architectures, tiny
from transformers import LlamaForCausalLM

from specdec_kernels.decode import (
    BeamDrafter,
    HFModel,
    LookupThenModel,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    Session,
    TreeDrafter,
    adapt,
    beam_search,
    generate,
)
from specdec_kernels.decode.models import probe as probing
from specdec_kernels.decode.models.closeness import Closeness

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = [5, 9, 2, 7, 5, 9, 2]


class Faulty(LlamaForCausalLM):
    """A Llama whose forward changes something of what the loop passes to it."""

    def fault(self, given):
        """Change `given`, the arguments of a pass with a cache. Subclasses override this."""

    def forward(self, input_ids=None, **given):
        if given.get("attention_mask") is not None and given["attention_mask"].dim() == 4:
            self.fault(given)
        return super().forward(input_ids=input_ids, **given)


def faulty(fault):
    model = tiny.llama(0)
    model.__class__ = type("FaultyForCausalLM", (Faulty,), {"fault": fault})
    return model


def positions_from_the_cache(model, given):
    width = given["position_ids"].shape[1]
    given["position_ids"] = given["cache"].get_seq_length() + torch.arange(width)[None]


def positions_by_place(model, given):
    width = given["position_ids"].shape[1]
    given["position_ids"] = given["position_ids"][:, :1] + torch.arange(width)[None]


def window_by_place(model, given):
    mask = given["attention_mask"].clone()
    place = mask.shape[-1] - mask.shape[-2] + torch.arange(mask.shape[-2])[:, None]
    mask.masked_fill_(torch.arange(mask.shape[-1]) < place - 100, torch.finfo(mask.dtype).min)
    given["attention_mask"] = mask


def mask_of_the_first_row(model, given):
    given["attention_mask"] = given["attention_mask"][:1]


def mask_left_out(model, given):
    width, length = given["attention_mask"].shape[-2:]
    seen = torch.arange(length) <= length - width + torch.arange(width)[:, None]
    given["attention_mask"] = torch.zeros(1, 1, width, length).masked_fill(~seen, -1e9)


def raises(model, given):
    raise KeyError("no such thing\nand more of it")


UNEVEN, TREES = "positions are ignored in rows that stand at different ones", "positions are ignored in trees"
HIDDEN = "a token sees by how many keys there are, not by the mask"
PARTLY = [
    (positions_from_the_cache, {"batches": UNEVEN, "trees": TREES}),
    (positions_by_place, {"trees": TREES}),
    (mask_of_the_first_row, {"batches": UNEVEN}),
    (window_by_place, {"batches": HIDDEN, "trees": HIDDEN}),
    (mask_left_out, {"batches": UNEVEN, "trees": TREES}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault, refuses", PARTLY, ids=lambda x: getattr(x, "__name__", ""))
def test_what_fails_is_named(fault, refuses, dtype):
    assert HFModel(faulty(fault).to(dtype)).refuses == refuses


def test_chains_are_served_by_a_model_that_ignores_positions():
    model = faulty(positions_from_the_cache)
    served, want = adapt(model), tiny.greedy(tiny.llama(0), PROMPT, 20)
    for drafter in (None, PromptLookupDrafter(4, 3, 1), ModelDrafter(adapt(tiny.nearby(tiny.llama(0))), 3)):
        output = generate(served, [Request(PROMPT, 20)] * 2, drafter, max_batch=1)
        assert [result.tokens for result in output.results] == [want, want]


def test_what_is_refused_is_refused_before_anything_is_decoded():
    """Targets and drafts are refused, however deep the draft model is inside its drafter."""
    other, fine = adapt(faulty(positions_from_the_cache)), adapt(tiny.llama(0))
    todo = [Request(PROMPT, 4)]
    deep = LookupThenModel(PromptLookupDrafter(3), ModelDrafter(other, 2))
    for call, text in [
        (lambda: generate(other, todo * 3), f"max_batch must be 1 with FaultyForCausalLM, got 3: in a batch, {UNEVEN}"),
        (lambda: generate(fine, todo * 2, deep), "max_batch must be 1 with FaultyForCausalLM, got 2: in a batch"),
        (lambda: Session(other, max_batch=2), "max_batch must be 1 with FaultyForCausalLM, got 2"),
        (lambda: generate(other, todo, TreeDrafter(fine)), f"TreeDrafter cannot be used .*: in a tree, {TREES}"),
        (lambda: generate(fine, todo, TreeDrafter(other)), "TreeDrafter cannot be used with FaultyForCausalLM"),
        (lambda: beam_search(other, todo, 2), f"beam_search: the model cannot be used: in a tree, {TREES}"),
        (lambda: beam_search(fine, todo, 2, BeamDrafter(other)), "beam_search: the model cannot be used: in a tree"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=text):
            call()
    assert len(generate(fine, todo, deep).results[0].tokens) == 4


def test_what_cannot_be_decoded_at_all():
    class Forgets(Faulty):
        def fault(self, given):
            given["attention_mask"] = given["attention_mask"][..., -1:].expand_as(given["attention_mask"])

    for fault, text in [
        (
            raises,
            r"FaultyForCausalLM cannot be decoded .*under a mask, with a cache, it raises KeyError: 'no such thing",
        ),
        (Forgets.fault, "in a pass under a mask, with a cache, its logits are not those of plain passes"),
    ]:
        with pytest.raises(ValueError, match=text):
            adapt(faulty(fault))


def test_what_does_not_fit_is_said():
    model = tiny.llama(0)
    cases = [
        (lambda: adapt(torch.nn.Linear(2, 2)), "must be a transformers causal LM, got Linear without config"),
        (lambda: adapt(tiny.llama(0).to("meta")), "LlamaForCausalLM must lie on one device, got meta"),
        (lambda: adapt(architectures.build("gpt2", n_positions=8)), "GPT2LMHeadModel must have 12 positions, got 8"),
    ]
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.to("meta"))
    cases.append((lambda: adapt(model), "LlamaForCausalLM must lie on one device, got cpu, meta"))
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_rounding_is_no_failure(make, dtype):
    """Two random models in each dtype: nothing is refused, and a Llama gets the fast path (LeanLlama)."""
    for seed in range(2):
        model = make(seed).to(dtype)
        served = HFModel(model)
        assert not served.refuses and served.max_positions == 512 and served.position_note == ""
        assert make is tiny.gpt2 or type(adapt(model)).__name__ == "LeanLlama"


def test_a_mixture_of_experts_in_bfloat16():
    for name in ("mixtral", "qwen2_moe", "olmoe"):
        model = architectures.build(name, **({"sliding_window": None} if name == "mixtral" else {}))
        assert not adapt(model.to(torch.bfloat16)).refuses


def test_a_model_is_probed_once(monkeypatch):
    """A model is probed once, and again after its hooks or its dtype change."""
    runs, honest = [], probing._Probe.run
    monkeypatch.setattr(probing._Probe, "run", lambda self: runs.append(1) or honest(self))
    model = tiny.gpt2(0)
    for _ in range(3):
        HFModel(model)
    assert len(runs) == 1
    handle = model.lm_head.register_forward_hook(lambda module, args, out: out)
    HFModel(model), handle.remove(), HFModel(model)
    assert len(runs) == 3
    HFModel(model.bfloat16())
    assert len(runs) == 4


def test_closeness_tells_rounding_from_faults():
    """The tolerance is 8 times the noise: a deviation of 7.9 times agrees, 8.2 times does not. A NaN or a lost -inf
    never agrees. Ids that are -inf on both sides do."""
    torch.manual_seed(0)
    want = torch.randn(2, 5, 64)
    noise = 1e-3 * torch.randn(2, 5, 64)
    close = Closeness([(want + noise, want)], torch.float32)
    assert 0.8e-3 < close.noise < 1.4e-3 and close.rows_are_independent
    one = noise / close.deviation(want + noise, want) * close.noise
    assert close.agrees(want + 7.9 * one, want) and not close.agrees(want + 8.2 * one, want)
    hidden = want.masked_fill(torch.arange(64) < 9, -torch.inf)
    assert close.agrees(hidden + noise, hidden) and not close.agrees(want, hidden) and not close.agrees(hidden, want)
    assert not close.agrees(want.where(torch.arange(64) > 0, torch.nan), want)
    assert not Closeness([(want + 0.1 * torch.randn(2, 5, 64), want)], torch.float32).rows_are_independent


LONG = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0] * 4, long_factor=[1.3, 2.0, 4.0, 8.0])
LONG |= dict(original_max_position_embeddings=24, factor=4.0)


def longrope(**more):
    options = dict(max_position_embeddings=96, original_max_position_embeddings=24, rope_parameters=dict(LONG))
    return architectures.build("phi3", sliding_window=None, **options, **more)


def dynamic():
    rope = dict(rope_type="dynamic", rope_theta=10000.0, factor=4.0)
    return architectures.build("llama", max_position_embeddings=24, rope_parameters=rope)


@pytest.mark.parametrize("make", [longrope, dynamic])
def test_what_is_decided_by_the_longest_row(make):
    """Up to the length at which a pass changes the positions of all tokens, the text is plain generate's, in a batch
    and with drafts that reach further. Longer requests are refused with the reason."""
    model = make()
    served = adapt(model)
    assert isinstance(served, HFModel) and served.max_positions == 24 and not served.refuses
    prompts = [PROMPT, [3, 8, 11, 4, 6, 1], [7]]
    want = [architectures.plain(model, p, 24 - len(p)) for p in prompts]
    for drafter in (PromptLookupDrafter(6, 3, 1), TreeDrafter(served, "greedy", 3, 4), ModelDrafter(served, 5)):
        output = generate(served, [Request(p, 24 - len(p)) for p in prompts], drafter)
        assert [result.tokens for result in output.results] == want
    reason = (
        r"24 positions \(of 96: a token past them changes" if make is longrope else "24 positions, request 0 needs 25"
    )
    with pytest.raises(ValueError, match="prompt and max_new_tokens must fit the model's " + reason):
        generate(served, [Request(PROMPT, 18)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_longrope_is_found_in_any_dtype(dtype):
    assert HFModel(longrope().to(dtype)).max_positions == 24


def test_fixed_scaling_is_not_limited():
    """yarn and llama3 give their training length too, but do not depend on the pass."""
    for kind in ("yarn", "llama3"):
        rope = dict(rope_type=kind, rope_theta=10000.0, factor=4.0, original_max_position_embeddings=24)
        rope |= dict(low_freq_factor=1.0, high_freq_factor=4.0) if kind == "llama3" else {}
        model = architectures.build("llama", max_position_embeddings=96, rope_parameters=rope)
        assert adapt(model).max_positions == 96 == HFModel(model).max_positions


def test_attention_that_takes_no_mask_of_numbers():
    """Of all implementations in transformers, those that take a dense mask are accepted, and others are refused,
    whatever their name."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    names = {*ALL_MASK_ATTENTION_FUNCTIONS.valid_keys(), *ALL_ATTENTION_FUNCTIONS.valid_keys()}
    assert {"eager", "sdpa", "flash_attention_2", "flex_attention", "paged|eager"} <= names
    served = set()
    for name in names:
        model = architectures.build("qwen2")
        model.config._attn_implementation_internal = name
        if "paged" not in name and ALL_MASK_ATTENTION_FUNCTIONS.get(name) in (eager_mask, sdpa_mask):
            assert adapt(model).refuses == {}
            served.add(name)
            continue
        with pytest.raises(
            ValueError, match="attn_implementation of Qwen2ForCausalLM must take a mask .*got '" + name[:5]
        ):
            adapt(model)
        assert model.config._attn_implementation == name
    assert served == {"eager", "sdpa"}


def test_float64_models():
    """Float64 models are accepted: the ops take their logits in float32."""
    for make, lean in ((tiny.llama, True), (tiny.llama, False), (tiny.gpt2, False)):
        model = make(0)
        want = tiny.greedy(model, PROMPT, 12)
        served = adapt(model.double(), lean=lean)
        draft = adapt(tiny.nearby(make(0)).double(), lean=lean)
        todo = [Request(PROMPT, 12), Request(PROMPT, 12, temperature=0.7, seed=3)]
        for drafter in (ModelDrafter(draft, 3), TreeDrafter(draft, "traversal", 2, 2)):
            assert generate(served, todo, drafter).results[0].tokens == want
