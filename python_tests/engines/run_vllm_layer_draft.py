# SPDX-License-Identifier: Apache-2.0
"""Compare the passes of the draft that vLLM serves with those of LayerDraft, in float32. Prints JSON: the largest
difference of a logit, the largest logit, and how many first and later tokens of drafts were compared.

run_vllm_layer_draft.py MODELS DRAFT

For each row that vLLM's draft model computes, LayerDraft reads the text before it anew, with the states that vLLM
passed: the target's, then the draft's own.
"""

import json
import sys

import torch
from transformers import LlamaForCausalLM
from vllm import LLM, SamplingParams

from specdec_kernels.decode.models.layer_draft import LayerDraft


class Passes:
    """The rows of one request's draft: each with the text that it follows, and the state that predicted each token."""

    def __init__(self, model):
        self.text, self.rows = {}, []
        self.forward, self.compute_logits = model.forward, model.compute_logits
        model.forward, model.compute_logits = self.read, self.score

    def read(self, input_ids, positions, hidden_states, inputs_embeds=None):
        self.positions = positions.tolist()
        for at in zip(self.positions, input_ids.tolist(), hidden_states.clone(), strict=True):
            self.text[at[0]] = at[1:]
        self.out = self.forward(input_ids, positions, hidden_states, inputs_embeds)
        return self.out

    def score(self, hidden_states):
        logits = self.compute_logits(hidden_states)
        (place,) = (self.out[0] == hidden_states).all(1).nonzero()[:, 0].tolist()
        text = [self.text[i] for i in range(self.positions[place] + 1)]  # rejected tokens come after it
        self.rows.append((text, logits[0].clone(), len(self.positions)))
        return logits


@torch.inference_mode()
def main(models, folder):
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=24, ignore_eos=True)
    llm = LLM(
        model=f"{models}/target",
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=1,
        speculative_config={
            "model": f"{models}/trained",
            "method": "eagle",
            "num_speculative_tokens": 3,
            "draft_sample_method": "probabilistic",
        },
    )
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    passes = Passes(runner.drafter.model)
    llm.generate(["def fibonacci(n):\n"], sampling, use_tqdm=False)
    target = LlamaForCausalLM.from_pretrained(f"{models}/target", dtype=torch.float32)
    draft = LayerDraft.load(folder, target, torch.float32)
    worst, size, compared = 0.0, 0.0, {"first": 0, "later": 0}
    for text, logits, read in passes.rows:
        tokens, states = zip(*text, strict=True)
        wanted = draft(torch.tensor([tokens]), states=torch.stack(states)[None], logits_to_keep=1).logits[0, 0]
        kept = wanted > -torch.inf
        assert torch.equal(kept, logits > -torch.inf)
        worst = max(worst, float((wanted - logits)[kept].abs().max()))
        size = max(size, float(wanted[kept].abs().max()))
        compared["later" if read == 1 else "first"] += 1
    print(json.dumps({"worst": worst, "size": size, **compared}))


if __name__ == "__main__":
    main(*sys.argv[1:])
