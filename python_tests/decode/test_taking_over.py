# SPDX-License-Identifier: Apache-2.0
"""A wrapped model: changes of its forward are kept in effect, and the model itself stays unchanged."""

import copy
import importlib.util
import json
import types

import pytest
import torch
from support import tiny
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from transformers import GenerationConfig

from specdec_kernels.decode import (
    HFModel,
    LeanLlama,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    TreeDrafter,
    adapt,
    generate,
    load_pair,
    stream,
)

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPTS = [[5, 9, 2, 7, 5, 9, 2], [3, 8, 11], [7, 7, 2, 30, 1]]
TOKENS = 12


def own_text(model):
    """Return the text of transformers' generate."""
    model.generation_config = GenerationConfig(pad_token_id=0)
    out = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
        out.append(whole[0, len(prompt) :].tolist())
    return out


def texts(target, drafter=None):
    return [r.tokens for r in generate(target, [Request(p, TOKENS) for p in PROMPTS], drafter).check().results]


class Lora(nn.Module):
    """An adapter as users write it: the base layer inside, with a product of low rank beside it."""

    def __init__(self, base):
        super().__init__()
        self.base, self.a, self.b = base, nn.Linear(base.in_features, 4), nn.Linear(4, base.out_features)

    @property
    def weight(self):
        return self.base.weight

    @property
    def bias(self):
        return self.base.bias

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def attention(model):
    return model.model.layers[1].self_attn


def wrap_in_lora(model):
    attention(model).v_proj = Lora(attention(model).v_proj)


def subclass_linear(model):
    attention(model).o_proj.__class__ = Doubled


def hook(model):
    model.model.layers[0].mlp.register_forward_hook(lambda module, args, out: 3 * out)


def pre_hook(model):
    model.lm_head.register_forward_pre_hook(lambda module, args: (args[0].roll(1, -1),))


def hook_with_keywords(model):
    def double(module, args, kwargs, out):
        return 2 * out[0], *out[1:]

    attention(model).register_forward_hook(double, with_kwargs=True)


class Squared(nn.Module):
    def forward(self, weight):
        return weight * weight.abs() * 4


def parametrized(model):
    parametrize.register_parametrization(attention(model).v_proj, "weight", Squared())


def spectral_norm(model):
    parametrizations.spectral_norm(model.model.layers[1].mlp.down_proj)


def weight_norm(model):
    parametrizations.weight_norm(model.model.layers[1].mlp.down_proj)
    model.model.layers[1].mlp.down_proj.parametrizations.weight.original0.mul_(3)


def old_weight_norm(model):
    nn.utils.weight_norm(model.model.layers[1].mlp.down_proj)
    model.model.layers[1].mlp.down_proj.weight_g.data.mul_(3)


def pruned(model):
    torch.manual_seed(0)
    prune.random_unstructured(model.model.layers[1].mlp.up_proj, "weight", 0.6)


def overridden(model):
    mlp = model.model.layers[0].mlp
    mlp.forward = types.MethodType(lambda self, x: 2 * type(self).forward(self, x), mlp)


def overridden_at_the_top(model):
    honest = model.forward

    def forward(*args, **kwargs):
        out = honest(*args, **kwargs)
        out.logits = out.logits.roll(1, -1)
        return out

    model.forward = forward


def biased(model):
    torch.manual_seed(0)
    attention(model).q_proj.bias = nn.Parameter(3 * torch.randn(32))


def other_activation(model):
    model.model.layers[0].mlp.act_fn = nn.ReLU()


def other_scaling(model):
    attention(model).scaling *= 4


def other_epsilon(model):
    model.model.norm.variance_epsilon = 3.0
    model.model.layers[1].input_layernorm.variance_epsilon = 3.0


def another_norm(model):
    model.model.norm = nn.LayerNorm(32)


CHANGES = [
    wrap_in_lora, subclass_linear, hook, pre_hook, hook_with_keywords, parametrized, spectral_norm, weight_norm,
    old_weight_norm, pruned, overridden, overridden_at_the_top, biased, other_activation, other_scaling,
    other_epsilon, another_norm,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.filterwarnings("ignore")
def test_what_changes_a_forward_is_served(change):
    """The model's class is unchanged, but a module computes something else: the text is that of the model's own
    generate, plain and with drafts. Each change alters the text, so dropping it would be found."""
    model = tiny.llama(0)
    before = own_text(model)
    assert isinstance(adapt(model), LeanLlama) and texts(adapt(model)) == before
    change(model)
    want = own_text(model)
    assert want != before
    target = adapt(model)
    assert texts(target) == want and isinstance(target, HFModel)
    assert texts(target, PromptLookupDrafter(3, 2, 1)) == want
    assert texts(target, TreeDrafter(adapt(tiny.nearby(tiny.llama(0))), "greedy", 2, 2)) == want


def test_what_depends_on_the_whole_pass_is_refused():
    """Dynamic quantization uses one scale for all tokens of a pass, so a row's logits depend on other rows."""
    model = tiny.llama(0)
    torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8, inplace=True)
    with pytest.raises(ValueError, match="cannot be decoded by this loop: a row's logits depend on what else is in a"):
        adapt(model)


def test_layers_that_share_their_place_in_the_cache_are_refused():
    model = tiny.llama(0)
    model.model.layers[0] = model.model.layers[1]
    with pytest.raises(ValueError, match="cannot be decoded by this loop: in a pass under a mask, with a cache, it"):
        adapt(model)


def test_hooks_for_all_modules():
    model = tiny.llama(0)
    before = own_text(model)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: 2 * out if type(module) is nn.Linear else None
    )
    try:
        want = own_text(model)
        assert want != before and texts(adapt(model)) == want
    finally:
        handle.remove()
    assert texts(adapt(model)) == before


def test_a_patch_of_the_library(monkeypatch):
    """A change that the modules do not show is found in the logits."""
    from transformers.models.llama import modeling_llama

    model = tiny.llama(0)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, *args, **options: (q, k))
    want = own_text(model)
    target = adapt(model)
    assert isinstance(target, HFModel) and texts(target) == want


def test_lean_llama_says_what_it_is_not_for():
    model = tiny.llama(0)
    wrap_in_lora(model)
    with pytest.raises(ValueError, match="LeanLlama: model must be a LlamaForCausalLM without adapters, hooks"):
        LeanLlama.from_hf(model)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs peft")
@pytest.mark.parametrize("wrapped", [False, True])
def test_adapters_of_peft(wrapped):
    import peft

    model = tiny.llama(0)
    before = own_text(model)
    config = peft.LoraConfig(target_modules=["v_proj", "up_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    torch.manual_seed(0)
    model = peft.get_peft_model(model, config) if wrapped else peft.inject_adapter_in_model(config, model)
    want = own_text(model)
    assert want != before and texts(adapt(model)) == want


def adapter_folder(path, base):
    """Write an adapter folder as peft does beside a base model."""
    base.save_pretrained(path)
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(path)}))


def test_load_pair_does_not_drop_an_adapter(tmp_path, monkeypatch):
    from specdec_kernels.decode.models import load

    monkeypatch.setattr(load, "is_peft_available", lambda: False)
    adapter_folder(tmp_path, tiny.llama(0))
    with pytest.raises(ValueError, match=r"holds an adapter \(adapter_config.json\), which needs the package peft"):
        load_pair(str(tmp_path))


def state_of(model):
    """Return everything that belongs to a model, to be compared by value and by address."""
    tensors = {
        name: (id(x), x.data_ptr(), x.dtype, x.device, x.requires_grad, x.clone().detach())
        for name, x in (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    }
    modules = {name: (id(m), type(m), m.training) for name, m in model.named_modules(remove_duplicate=False)}
    hooks = {
        (name, kind): [*value.values()]
        for name, m in model.named_modules()
        for kind, value in vars(m).items()
        if kind.endswith("_hooks")
    }
    configs = model.config.to_json_string(), model.generation_config.to_json_string(), model.config._attn_implementation
    attributes = {name: {key: id(x) for key, x in vars(m).items()} for name, m in model.named_modules()}
    for kept in attributes.values():
        kept.pop("training", None)
    return tensors, modules, hooks, configs, attributes, [*model.state_dict()]


def same(before, after):
    for name, x in before[0].items():
        y = after[0][name]
        assert x[:-1] == y[:-1] and torch.equal(x[-1], y[-1]), name
    assert before[0].keys() == after[0].keys() and before[1:] == after[1:]


def mixed_modes(model):
    """Set training mode, except for one layer that is frozen."""
    model.train()
    model.requires_grad_(True)
    layers = model.model.layers if hasattr(model, "model") else model.transformer.h
    layers[0].eval().requires_grad_(False)
    return model


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("change", [None, hook])
def test_a_model_stays_as_it_was(make, lean, change):
    """A model is unchanged after it is wrapped and between the steps of a run. Dropout is off during passes."""
    model = make(0)
    want = own_text(model)
    model.config.attention_dropout = model.config.attn_pdrop = 0.9
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.9
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.9 if isinstance(module.attention_dropout, float) else module.attention_dropout
    mixed_modes(model)
    handle = None
    if change:  # a hook that changes nothing
        handle = model.register_forward_hook(lambda module, args, out: None)
    before = state_of(model)
    target = adapt(model, lean=lean)
    same(before, state_of(model))
    drafter = ModelDrafter(adapt(make(1), lean=lean), 2)
    tokens = [[] for _ in PROMPTS]
    for event in stream(target, [Request(p, TOKENS) for p in PROMPTS], drafter):
        tokens[event.index] += event.tokens
        same(before, state_of(model))
    assert tokens == want
    if handle:
        assert handle.id in model._forward_hooks


def test_a_pass_that_fails_leaves_the_mode():
    model = mixed_modes(tiny.gpt2(0))
    target = adapt(model)
    before = state_of(model)

    def fails(*_):
        raise RuntimeError("a hook of the caller's")

    handle = model.lm_head.register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="a hook of the caller's"):
        texts(target)
    handle.remove()
    same(before, state_of(model))


def test_a_checkpoint_behind_it(tmp_path):
    """Qwen2's linears have biases, so its own forward is used; its saved checkpoint is complete."""
    from support import architectures

    model = architectures.build("qwen2")
    before = copy.deepcopy(model.state_dict())
    assert texts(adapt(model)) == [architectures.plain(model, prompt, TOKENS) for prompt in PROMPTS]
    model.save_pretrained(tmp_path)
    kept = type(model).from_pretrained(tmp_path).state_dict()
    assert kept.keys() == before.keys() and all(torch.equal(kept[name], before[name]) for name in kept)


def test_packing_is_for_a_model_that_is_given_away():
    """Only plain linears are packed: one with a hook stays as it is."""
    model = tiny.gpt2(0)
    hook_of = model.lm_head.register_forward_pre_hook(lambda module, args: None)
    packed = adapt(model, pack=True)
    assert type(packed.model.lm_head) is nn.Linear
    hook_of.remove()
    model = tiny.llama(0)
    want = own_text(model)
    packed = adapt(model, lean=False, pack=True)
    assert type(model.lm_head) is not nn.Linear and texts(packed) == want


def test_modes_under_passes_that_overlap():
    from specdec_kernels.decode.models.evaluating import evaluating

    model = mixed_modes(tiny.llama(0))
    before = state_of(model)
    first, second = evaluating(model), evaluating(model)
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert not any(module.training for module in model.modules())
    second.__exit__(None, None, None)
    same(before, state_of(model))
