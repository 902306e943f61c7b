# SPDX-License-Identifier: Apache-2.0
"""The loading of vLLM's plugin into a process: once, for known versions and signatures, and only if it is turned on."""

import inspect
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest

from specdec_kernels.integrations import vllm as plugin
from specdec_kernels.integrations.vllm import fallback, known, layer_draft, patch, verify


def fake(name, **changed):
    """Return a module with the functions that the plugin knows. They have the right parameters and do nothing."""
    module = ModuleType(name)
    for (where, function), forms in known.PARAMETERS.items():
        if where == name:
            *path, last = function.split(".")
            holder = module
            for part in path:
                holder = holder.__dict__.setdefault(part, type(part, (), {})) if holder is module else holder
            parameters = changed.get(last, forms[0]).split()
            code = eval(f"lambda {', '.join(p if p in ('self', 'sampler') else p + '=None' for p in parameters)}: None")
            setattr(holder, last, code)
    if name == known.SCHEDULER:
        vars(module)["ModelRunnerOutput"] = type("ModelRunnerOutput", (), {})
    if name == known.LOGGERS:
        module.SchedulerStats = dataclass(type("SchedulerStats", (), {"__annotations__": {}}))
    return module


@pytest.fixture
def engine(monkeypatch):
    """Set up a vLLM process with all its modules, and undo it at the end."""

    def start(version="0.32.0", triton=True, **changed):
        vllm = ModuleType("vllm")
        vllm.__version__ = version
        monkeypatch.setitem(sys.modules, "vllm", vllm)
        modules = {name: fake(name, **changed) for name in {name for name, _ in known.PARAMETERS}}
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        served = []
        registry = SimpleNamespace(models=served, register_model=lambda *given: served.append(given))
        modules[known.MODELS] = SimpleNamespace(ModelRegistry=registry)
        modules["vllm.triton_utils"] = SimpleNamespace(HAS_TRITON=triton)
        monkeypatch.setattr(patch.importlib, "import_module", modules.__getitem__)
        return modules

    monkeypatch.setenv("SPECDEC_VLLM", "1")
    return start


def patched(modules):
    """Return (module, name) of each function that is ours."""
    return {key for key in known.PARAMETERS if hasattr(known.find(modules[key[0]], key[1])[2], "specdec_kernels")}


@pytest.mark.parametrize("value", [None, *plugin.OFF, "False", " OFF "])
def test_inert_without_the_variable(engine, monkeypatch, caplog, value):
    modules = engine()
    monkeypatch.delenv("SPECDEC_VLLM") if value is None else monkeypatch.setenv("SPECDEC_VLLM", value)
    plugin.register()
    assert not patched(modules) and not caplog.records and not modules[known.MODELS].ModelRegistry.models


@pytest.mark.parametrize("value", [*plugin.ON, "True", "YES", " on "])
def test_spellings_of_on(engine, monkeypatch, value):
    modules = engine()
    monkeypatch.setenv("SPECDEC_VLLM", value)
    plugin.register()
    assert patched(modules)
    assert modules[known.MODELS].ModelRegistry.models == [(layer_draft.ARCHITECTURE, layer_draft.MODEL)]


@pytest.mark.parametrize("value", ["2", "enable", "y", "-1"])
def test_another_value_is_off_with_a_warning(engine, monkeypatch, caplog, value):
    modules = engine()
    monkeypatch.setenv("SPECDEC_VLLM", value)
    plugin.register()
    assert not patched(modules)
    wanted = f"SPECDEC_VLLM={value!r} is none of 1, true, yes, on, 0, false, no, off: vLLM is not patched"
    assert wanted in caplog.text and caplog.records[0].levelname == "WARNING"


@pytest.mark.parametrize("where", ["a request", "the runner"])
def test_an_engine_that_does_not_speculate(engine, caplog, where):
    """An engine that does not speculate is reported once: when its runner is made (V1), or at its first request (V2
    too)."""
    fallback.no_speculation.cache_clear()
    modules = engine()
    plugin.register()
    caplog.set_level("INFO", "vllm.specdec_kernels")
    plain, speculates = SimpleNamespace(speculative_config=None), SimpleNamespace(speculative_config=object())
    asked = SimpleNamespace(logit_bias=None)
    check = lambda config: modules[known.PARAMS].SamplingParams._validate_spec_decode(asked, config.speculative_config)
    build = lambda config: modules[known.PROCESSORS].build_logitsprocs(config, "cpu", False, False, ["a caller's own"])
    call = check if where == "a request" else build
    call(speculates)
    assert not caplog.records
    call(plain), call(plain)
    (line,) = caplog.messages
    assert "is on, but this engine does not speculate (no speculative_config): nothing to verify" in line


def test_patched_once_and_said_so(engine, caplog):
    modules = engine()
    plugin.register()
    upstream = verify.forward
    plugin.register()
    sampler = modules[known.SAMPLER].RejectionSampler(None, SimpleNamespace(rejection_sample_method="block"))
    modules[known.SAMPLER].RejectionSampler(None)
    modules[known.SAMPLER_V2].RejectionSampler(None)
    assert sampler.specdec_method == "block" and sampler.specdec_step is None
    assert len(patched(modules)) == len(known.PARAMETERS)
    forward = modules[known.SAMPLER].RejectionSampler.forward
    assert inspect.unwrap(forward) is forward.__wrapped__ and verify.forward is upstream  # one layer
    with caplog.at_level("INFO", "vllm.specdec_kernels"):
        modules[known.SAMPLER].RejectionSampler(None)
    assert "RejectionSampler.forward" in caplog.text and "GPUModelRunner._sample" in caplog.text


@pytest.mark.parametrize(
    "version, changed, why",
    [
        ("0.34.1", {}, "vLLM 0.34.1 is not one of 0.32, 0.33"),
        ("0.320.0", {}, "vLLM 0.320.0 is not one of"),
        ("0.32.0", {"forward": "self metadata logits"}, "RejectionSampler.forward takes (self metadata logits), not"),
    ],
)
def test_a_strange_vllm_is_left_alone(engine, caplog, version, changed, why):
    modules = engine(version, **changed)
    plugin.register()
    assert known.SAMPLER not in dict(patched(modules)) and why in caplog.text and "not patched" in caplog.text
    assert bool(patched(modules)) == bool(changed)  # V2's sampler is another module


def test_a_strange_drafter_is_left_alone_beside_a_known_sampler(engine, caplog):
    modules = engine(propose="self anything")
    plugin.register()
    modules[known.SAMPLER].RejectionSampler(None)
    assert "SpecDecodeBaseProposer.propose takes (self anything)" in caplog.text
    # V2's is patched together with V2's sampler, which is missing here
    names = {known.PROPOSER, known.RUNNER, known.RUNNER_V2, known.SPECULATOR_V2}
    assert {name for name, _ in set(known.PARAMETERS) - patched(modules)} == names


@pytest.mark.parametrize(
    "changed, left",
    [
        ("sample_draft", {known.SPECULATOR_V2}),
        ("sample", {known.SPECULATOR_V2, known.RUNNER_V2}),  # drafts' filters reach verification by the runner
    ],
)
def test_the_second_runner_and_its_drafter_are_checked_apart(engine, caplog, changed, left):
    modules = engine(**{changed: "self anything"})
    plugin.register()
    for _ in range(2):
        modules[known.SAMPLER_V2].RejectionSampler(None)
    v2 = {known.SAMPLER_V2, known.OUTPUT_V2, known.RUNNER_V2, known.SPECULATOR_V2}
    assert {name for name, _ in patched(modules)} & v2 == v2 - left
    assert f"{changed} takes (self anything), not" in caplog.text and "not patched" in caplog.text


def test_without_triton_no_second_runner(engine, caplog):
    """Without Triton vLLM has no V2 model runner, so its modules are not imported."""
    modules = engine(triton=False)
    del modules[known.SAMPLER_V2]
    plugin.register()
    assert modules[known.SAMPLER].rejection_sample.specdec_kernels and "not patched" not in caplog.text


@pytest.mark.parametrize("speculates", [True, False])
def test_a_race_of_the_second_runner_is_refused(engine, monkeypatch, speculates):
    """A race with V2's runner is refused when the engine makes its scheduler, with speculation and without."""
    scheduler = engine()[known.SCHEDULER].Scheduler
    plugin.register()
    config = lambda v2: SimpleNamespace(use_v2_model_runner=v2, speculative_config=object() if speculates else None)
    scheduler(config(True))
    monkeypatch.setenv("SPECDEC_VLLM_METHOD", "race")
    scheduler(config(False))
    with pytest.raises(ValueError, match="SPECDEC_VLLM_METHOD=race: the model runner must be V1's .* got V2's"):
        scheduler(vllm_config=config(True))


def test_the_second_runner_says_so_too(engine, caplog):
    modules = engine()
    plugin.register()
    with caplog.at_level("INFO", "vllm.specdec_kernels"):
        modules[known.SAMPLER_V2].RejectionSampler(None)
    assert "verifies for vLLM" in caplog.text


def test_without_vllm_a_warning(monkeypatch, caplog):
    monkeypatch.setenv("SPECDEC_VLLM", "1")
    plugin.register()
    assert "vLLM is not patched" in caplog.text
