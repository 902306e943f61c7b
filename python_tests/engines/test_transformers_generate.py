# SPDX-License-Identifier: Apache-2.0
"""custom_generate=speculative: transformers' generate with our loop, against its own."""

import pytest
import torch
from support import tiny
from transformers import GenerationConfig
from transformers.generation import LogitsProcessorList, StoppingCriteriaList

from specdec_kernels import testing
from specdec_kernels.decode import (
    ModelDrafter,
    Output,
    PromptLookupDrafter,
    Request,
    TokenCascade,
    TreeDrafter,
    adapt,
    generate,
)
from specdec_kernels.decode.models.cache_name import cache_name
from specdec_kernels.integrations.transformers import speculative

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]
PAD = 31


@pytest.fixture(scope="module")
def models():
    """Return name -> (model, a draft near it)."""
    return {name: (make(0), tiny.nearby(make(0))) for name, make in (("llama", tiny.llama), ("gpt2", tiny.gpt2))}


def batch(n=5):
    """Return prompts of different lengths, padded on the left."""
    prompts = [request.prompt for request in tiny.requests(n)]
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return {"input_ids": ids, "attention_mask": mask, "pad_token_id": PAD, "max_new_tokens": 24}


def drafter(kind, draft):
    served = adapt(draft, lean=False, pack=False)
    return {
        "none": None,
        "a model": draft,
        "chain": ModelDrafter(served, 3),
        "lookup": PromptLookupDrafter(4),
        "tree": TreeDrafter(served, "greedy", shape=(3, 2, 1)),
        "target_only": TreeDrafter(served, "target_only", shape=(2, 2)),
    }[kind]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", ["none", "a model", "chain", "lookup", "tree", "target_only"])
def test_greedy_is_plain_generate(models, name, kind):
    model, draft = models[name]
    inputs = batch()
    free = model.generate(**inputs, do_sample=False, eos_token_id=None)
    new = free[:, inputs["input_ids"].size(1) :]
    eos = [int(new[1, 7]), int(new[3, 2])]  # so that rows end at different steps, one of them early
    for ends in (None, eos):
        plain = model.generate(**inputs, do_sample=False, eos_token_id=ends)
        ours = Output()
        given = {"drafter": drafter(kind, draft), "output": ours, "custom_generate": speculative}
        got = model.generate(**inputs, do_sample=False, eos_token_id=ends, **given)
        assert torch.equal(got, plain)
        if kind not in ("none", "lookup"):
            assert ours.stats.tokens_per_call > 1.2
    assert plain.shape != free.shape or (plain == PAD).sum() > (free == PAD).sum()


@pytest.mark.parametrize("kind", ["none", "a model", "tree"])
def test_on_a_gpu_that_is_only_remembered(kind):
    """The same tokens on a simulated GPU. Apart from the prompts and the output, the host waits once per step."""
    devices = pytest.importorskip("bench.devices", reason="needs the source tree's bench")
    options = {"do_sample": False, "eos_token_id": None}
    plain = tiny.llama(0).generate(**batch(), **options)
    with devices.watch() as seen:
        model, draft = tiny.llama(0).to("cuda"), tiny.nearby(tiny.llama(0)).to("cuda")
        inputs = {name: x.to("cuda") if isinstance(x, torch.Tensor) else x for name, x in batch().items()}
        ours, steps = Output(), "decode/transfers.py"
        given = {"drafter": drafter(kind, draft), "output": ours, "custom_generate": speculative}
        seen.synchronisations.clear()
        got = model.generate(**inputs, **options, **given)
        assert sum(x.startswith(steps) for x in seen.synchronisations) == ours.stats.target_calls
        assert got.device == torch.device("cuda:0") and got.tolist() == plain.tolist()


ALL = {"top_k": 5, "top_p": 0.9, "min_p": 0.02, "temperature": 0.7}


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {"temperature": 0.4}, ALL])
def test_sampling_is_the_configurations(models, filters):
    """The tokens equal the loop's with these parameters and seeds. A row's tokens do not depend on its batch."""
    model, draft = models["llama"]
    inputs = batch()
    options = {"do_sample": True, "custom_generate": speculative, "eos_token_id": None, "seed": 40} | filters
    plain = {"top_k": 0} | filters  # a configuration's default is top_k=50
    got = model.generate(**inputs, drafter=ModelDrafter(adapt(draft, lean=False, pack=False), 3), **options | plain)
    prompts = [ids[kept].tolist() for ids, kept in zip(inputs["input_ids"], inputs["attention_mask"].bool())]
    todo = [Request(p, 24, seed=40 + b, **{"temperature": 1.0} | filters) for b, p in enumerate(prompts)]
    served = adapt(model, lean=False, pack=False)
    want = generate(served, todo, ModelDrafter(adapt(draft, lean=False, pack=False), 3)).results
    assert got[:, inputs["input_ids"].size(1) :].tolist() == [result.tokens for result in want]
    alone = model.generate(
        torch.tensor([prompts[2]]),
        max_new_tokens=24,
        pad_token_id=PAD,
        drafter=ModelDrafter(adapt(draft, lean=False, pack=False), 3),
        **options | plain | {"seed": 42},
    )
    assert alone[0, len(prompts[2]) :].tolist() == want[2].tokens


@pytest.mark.parametrize("method", ["chain", "tree"])
@pytest.mark.slow
def test_joint_law_of_two_tokens(method):
    """4,000 rows of one prompt at temperature 0.8, drafted by another model: chi-square against the model's own
    distribution."""
    V, n = 4, 4000
    model, other = tiny.llama(3, V, 0.15), tiny.llama(4, V, 0.15)
    served = adapt(other, lean=False, pack=False)
    how = ModelDrafter(served, 2) if method == "chain" else TreeDrafter(served, "recursive", 3, 2)
    got = model.generate(
        torch.ones(1, 1, dtype=torch.int64),
        num_return_sequences=n,
        max_new_tokens=2,
        do_sample=True,
        temperature=0.8,
        top_k=0,
        eos_token_id=None,
        custom_generate=speculative,
        drafter=how,
        seed=0,
    )
    check = testing.check_tokens(got[:, 1:].numpy(), testing.enumerate_law(tiny.laws(model, [1], 0.8), 2))
    assert check.passed and check.cells > 8, check


def test_seeds_and_outputs(models):
    model, draft = models["llama"]
    inputs = batch(2) | {"do_sample": True, "custom_generate": speculative, "drafter": draft, "eos_token_id": None}
    torch.manual_seed(1)
    first = model.generate(**inputs)
    second = model.generate(**inputs)
    torch.manual_seed(1)
    assert torch.equal(first, model.generate(**inputs)) and not torch.equal(first, second)
    told = model.generate(**inputs, seed=3, return_dict_in_generate=True)
    assert torch.equal(told.sequences, model.generate(**inputs, seed=3))
    several = model.generate(**inputs, seed=3, num_return_sequences=2)
    assert len(several) == 4 and not torch.equal(several[0], several[1])


def test_rules_methods_and_a_target_of_ones_own(models):
    model, draft = models["llama"]
    inputs = batch(2) | {"do_sample": True, "custom_generate": speculative, "eos_token_id": None, "seed": 5}
    of = lambda **more: model.generate(**inputs, drafter=ModelDrafter(adapt(draft), 4), **more)
    exact = of()
    assert torch.equal(exact, of(rule="lossy", alpha=0.0)) and not torch.equal(exact, of(rule="lossy", alpha=0.9))
    assert torch.equal(exact, of(target=adapt(model), max_batch=1))
    assert of(verify="block").shape == exact.shape
    cascade = model.generate(**inputs, drafter=TokenCascade(adapt(draft), 32), rule="chow", alpha=0.5)
    assert cascade.shape == exact.shape


def refused(model, **more):
    """Return the error that generate raises for a prompt of three tokens."""
    inputs = {"input_ids": torch.tensor([[1, 2, 3]]), "max_new_tokens": 4, "pad_token_id": PAD}
    with pytest.raises(ValueError) as error:
        model.generate(**inputs | more, custom_generate=speculative)
    return str(error.value)


def test_what_it_cannot_do_raises(models):
    model, _ = models["llama"]
    assert "num_beams=2" in refused(model, num_beams=2)
    assert "prompt_lookup_num_tokens=3, give a drafter" in refused(model, prompt_lookup_num_tokens=3)
    assert "output_scores=True" in refused(model, output_scores=True, return_dict_in_generate=True)
    assert "got TypicalLogitsWarper" in refused(model, do_sample=True, typical_p=0.5)
    assert "ends in 0" in refused(
        model, input_ids=torch.tensor([[1, 2, PAD], [1, 2, 3]]), attention_mask=torch.tensor([[1, 1, 0], [1, 1, 1]])
    )
    assert "position_ids must count" in refused(model, position_ids=torch.tensor([[4, 5, 6]]))
    assert "rule must be one of" in refused(model, rule="chow", drafter=PromptLookupDrafter(3))
    cache = model(torch.tensor([[1]]), use_cache=True)[cache_name(model)]
    assert "a cache that holds tokens" in refused(model, **{cache_name(model): cache})


def test_called_without_generate(models):
    """`speculative` called directly, with the arguments that transformers passes but without criteria and
    processors."""
    model, _ = models["llama"]
    with pytest.raises(ValueError, match="stopping_criteria must hold max_length"):
        speculative(model, torch.tensor([[1]]), LogitsProcessorList(), StoppingCriteriaList(), GenerationConfig())
