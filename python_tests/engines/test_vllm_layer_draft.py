# SPDX-License-Identifier: Apache-2.0
"""The demo's trained draft in vLLM: the folder that vLLM loads, and the draft in the engine itself."""

import json
import os
import subprocess
from types import SimpleNamespace

import pytest
import torch
from support.paths import ROOT, TESTS
from support.vllm_engine import FOLDER, call, draft, engine

from bench.engines.environment import of_vllm
from specdec_kernels.integrations.vllm import layer_draft

CODE = [
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "class Stack:\n    def __init__(self):\n",
    "import json\n\ndef read_config(path):\n",
    "def is_prime(n: int) -> bool:\n",
]
in_engine = [
    pytest.mark.thorough,
    pytest.mark.skipif("SPECDEC_TEST_VLLM" not in os.environ, reason="SPECDEC_TEST_VLLM names no environment"),
]


@pytest.fixture
def target(tmp_path):
    """Return a tiny random Llama and its folder."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=60, num_hidden_layers=3, tie_word_embeddings=True, **sizes)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "target")
    return model, tmp_path / "target"


@pytest.mark.parametrize("reads_states", [True, False])
def test_the_folder_holds_the_drafts_weights(tmp_path, target, reads_states):
    """The weights equal those that LayerDraft.load gives in float32, and have the names of the model class."""
    from safetensors.torch import load_file

    from specdec_kernels.decode.models.layer_draft import LayerDraft

    model, folder = target
    made = LayerDraft(model, torch.arange(0, 60, 7), (0, 2), reads_states).copy_layers(model)
    if reads_states:
        torch.nn.init.normal_(made.state.weight), torch.nn.init.normal_(made.state.bias)
    made.save(tmp_path / "draft")
    layer_draft.write(tmp_path / "draft", folder, tmp_path / "served")
    saved = load_file(tmp_path / "served" / "model.safetensors")
    loaded = LayerDraft.load(tmp_path / "draft", model, torch.float32)
    wanted = {f"model.{name}": x for name, x in loaded._trained().items()}
    wanted |= {"head_ids": loaded.head_ids, "lm_head.weight": loaded.head.weight}
    assert saved.keys() == wanted.keys() and all(torch.equal(saved[name], x) for name, x in wanted.items())
    assert ("model.state.weight" in saved) == reads_states
    config = json.loads((tmp_path / "served" / "config.json").read_text())
    assert config["architectures"] == [layer_draft.ARCHITECTURE] and config["architectures"][0].startswith("Eagle")
    counts = (config["num_hidden_layers"], config["draft_vocab_size"], config["vocab_size"])
    assert counts == (2, 9, 60) and config["reads_states"] == reads_states
    assert config["rope_parameters"] == model.config.to_dict()["rope_parameters"]


def test_a_draft_for_another_target_is_refused(tmp_path, target):
    with pytest.raises(ValueError, match="draft must be a folder written by LayerDraft.save, got"):
        layer_draft.write(target[1], target[1], tmp_path / "served")
    with pytest.raises(ValueError, match="is for a target with vocab_size=49152, got 60"):
        layer_draft.write(ROOT / "demo" / "draft", target[1], tmp_path / "served")
    (target[1] / "model.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="target must hold lm_head.weight or model.embed_tokens.weight, got"):
        layer_draft.output_rows(target[1])


def test_the_registered_class_is_in_its_file():
    named = []
    layer_draft.register(SimpleNamespace(register_model=lambda *given: named.append(given)))
    ((architecture, place),) = named
    module, name = place.split(":")
    assert architecture == name == layer_draft.ARCHITECTURE
    assert f"class {name}(" in (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()


class TestInTheEngine:
    pytestmark = in_engine

    def test_the_demos_draft_is_served(self):
        """Its texts at temperature 0, in float32, are those without speculation. At temperature 1 a seed repeats its
        text, alone and among others. Between .25 and .95 of the drafts are accepted."""
        greedy = call(CODE, None, temperature=0.0)
        sampled = [call(CODE, temperature=1.0), call(CODE, temperature=1.0), call(CODE[1:2], [12], temperature=1.0)]
        filtered = call(CODE, temperature=0.8, top_k=40, top_p=0.9)
        trained = draft("trained", method="eagle")
        (plain, zero, one, few), log = engine(
            (None, [greedy]), (trained, [greedy]), (trained, sampled), (trained, [filtered])
        )
        assert "verifies for vLLM: RejectionSampler.__init__, RejectionSampler.forward" in log
        assert zero["tokens"] == plain["tokens"] and plain["tokens"][0][0] != plain["tokens"][0][1]
        assert one["tokens"][0] == one["tokens"][1] and one["tokens"][2] == one["tokens"][0][1:2]
        shares = {name: x["accepted"] / x["drafted"] for name, x in (("0", zero), ("1", one), (".8", few))}
        print("accepted of drafted, by temperature:", shares)
        assert all(0.25 < x < 0.95 for x in shares.values()), shares

    def test_its_passes_are_those_of_layer_draft(self):
        """Logits differ by rounding alone: the first draft's, which reads the target's states, and the later ones',
        which read the draft's own."""
        command = [FOLDER / "bin" / "python", TESTS / "engines" / "run_vllm_layer_draft.py", FOLDER / "models"]
        environment = of_vllm(True, FOLDER)
        given = [*command, ROOT / "demo" / "draft"]
        done = subprocess.run(given, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        found = json.loads(done.stdout.splitlines()[-1])
        print(found)
        assert found["first"] >= 5 and found["later"] >= 10
        assert found["worst"] < 1e-5 * found["size"]
