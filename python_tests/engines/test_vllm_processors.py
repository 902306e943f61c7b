# SPDX-License-Identifier: Apache-2.0
"""min-p and logit bias with speculation, which vLLM refuses and the plugin supports."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from support import vllm_step, vllm_stub

from specdec_kernels.integrations.vllm import processors, verify

pytestmark = pytest.mark.usefixtures("vllm_modules")

V = vllm_step.V
MIN_P = {"temperature": 0.9, "top_k": 4, "top_p": 0.95, "min_p": 0.35}
WITHOUT = vllm_step.law


def law(z, temperature, top_k, top_p, min_p):
    """Return a row's distribution by definition: ids with at least min_p of the largest probability, then the other
    filters."""
    z = torch.as_tensor(z, dtype=torch.float64)
    p = (z / temperature).softmax(0)
    return WITHOUT(z.where(p >= min_p * p.max(), -torch.inf).numpy(), temperature, top_k, top_p)


def of_a_step(method="standard"):
    """Return the chi-square of steps with min-p against their joint distribution."""
    return vllm_step.chi_square_of_a_step(method, parameters=MIN_P, law=law)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["standard", "block"])
def test_joint_law_with_min_p(method):
    """Drafting and verification both use the request's min-p, which removes more than the other filters do."""
    rows = vllm_step.tables(1)[0]
    assert any((law(row, **MIN_P) > 0).sum() < (WITHOUT(row, 0.9, 4, 0.95) > 0).sum() for row in rows)
    result = of_a_step(method)
    assert result.passed and result.detects < 0.03, result


@pytest.mark.slow
def test_without_min_p_the_law_is_another(monkeypatch):
    monkeypatch.setattr(processors, "min_p", lambda sampling_metadata: None)
    assert not of_a_step().passed


def biased(biases):
    """Return a stand-in for vLLM's LogitBiasLogitsProcessor with {request: {token: bias}}."""
    every = [(request, token, x) for request, of in biases.items() for token, x in of.items()]
    places = tuple(torch.tensor([e[i] for e in every], dtype=torch.int32) for i in (0, 1))
    return SimpleNamespace(biases=biases, logits_slice=places, bias_tensor=torch.tensor([e[2] for e in every]))


@pytest.mark.parametrize("num_draft", [[2, 0, 3, 1], [0, 1, 0, 2], [0, 0, 1, 0]])
def test_a_bias_is_added_to_every_row_of_its_request(num_draft):
    biases = {0: {1: 2.0, 4: -1.0}, 2: {0: 0.5, 1: 3.0}, 3: {2: -100.0}}
    sampling = vllm_stub.sampling(4)
    sampling.logitsprocs.non_argmax_invariant.append(biased(biases))
    D = sum(num_draft)
    rows = torch.randn(D, V, generator=torch.Generator().manual_seed(3))
    want = rows.clone()
    for d, request in enumerate(request for request, n in enumerate(num_draft) for _ in range(n)):
        for token, x in biases.get(request, {}).items():
            want[d, token] += x
    seen = []

    def upstream(self, logits, sampling_metadata, metadata):  # penalties come after biases
        seen.append(logits.clone())
        return logits * 2

    metadata = vllm_stub.metadata(num_draft, torch.zeros(D, dtype=torch.int64))
    got = processors.apply_logits_processors(upstream, None, rows.clone(), sampling, metadata)
    assert torch.equal(seen[0], want) and torch.equal(got, want * 2)


def test_min_p_for_vllms_own_verification():
    """If verification falls back to vLLM, logits that min-p removes at the request's temperature are -inf. A greedy row
    keeps its argmax only."""
    sampling = vllm_stub.sampling(3, min_p=0.3)
    sampling.temperature = torch.tensor([0.5, 2.0, 0.0])
    sampling.logitsprocs.argmax_invariant[0].min_p[1] = 0.0
    rows = torch.randn(4, V, generator=torch.Generator().manual_seed(5))
    metadata = vllm_stub.metadata([2, 1, 1], torch.zeros(4, dtype=torch.int64))
    got = processors.apply_logits_processors(lambda self, z, *rest: z, None, rows.clone(), sampling, metadata)
    p = (rows[:2] / 0.5).softmax(1)
    assert torch.equal(got[:2].isfinite(), p >= 0.3 * p.amax(1, keepdim=True)) and torch.equal(got[2], rows[2])
    assert got[3].isfinite().sum() == 1 and got[3].argmax() == rows[3].argmax()
    kept = got.isfinite()
    assert torch.equal(got[kept], rows[kept])


def test_bias_and_min_p_in_one_step():
    """A bias moves the argmax, and min-p keeps only that."""
    sampling = vllm_stub.sampling(1, temperature=1.0, min_p=1.0)
    sampling.logitsprocs.non_argmax_invariant.append(biased({0: {3: 50.0}}))
    metadata = vllm_stub.metadata([2], torch.tensor([3, 3]))
    sampler = vllm_stub.rejection_sampler()
    out = verify.forward(vllm_step.never, sampler, metadata, None, torch.randn(3, V), sampling)
    assert out.sampled_token_ids.tolist() == [[3, 3, 3]]


def test_all_processors_are_built_where_vllm_speculates(monkeypatch):
    module = ModuleType("vllm.v1.sample.logits_processor")
    module.BUILTIN_LOGITS_PROCESSORS = [lambda *given: ("a", given), lambda *given: ("b", given)]
    module.LogitsProcessors = list
    monkeypatch.setitem(sys.modules, "vllm.v1.sample", ModuleType("vllm.v1.sample"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    speculates, plain = SimpleNamespace(speculative_config=object()), SimpleNamespace(speculative_config=None)
    upstream = lambda *given: given
    built = processors.build_logitsprocs(upstream, speculates, "cpu", False, False)
    assert built == [("a", (speculates, "cpu", False)), ("b", (speculates, "cpu", False))]
    for given in [(plain, "cpu", False, False), (speculates, "cpu", False, True)]:
        assert processors.build_logitsprocs(upstream, *given)[:4] == given
    assert processors.build_logitsprocs(upstream, speculates, "cpu", False, False, ["x"])[4] == ["x"]


@pytest.mark.parametrize("x", [float("nan"), float("inf")])
def test_a_bias_that_is_no_number_is_refused(x):
    check = lambda bias: processors.validate_spec_decode(vllm_step.never, SimpleNamespace(logit_bias=bias), object())
    assert check(None) is None and check({3: -float("inf"), 4: 2.0}) is None
    with pytest.raises(ValueError, match=f"logit_bias: values must be finite or -inf, got {x} for token 4"):
        check({3: 1.0, 4: x})
