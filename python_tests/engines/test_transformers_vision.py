# SPDX-License-Identifier: Apache-2.0
"""Text-only prompts of vision-language models through custom_generate=speculative, class by class."""

import inspect

import pytest
import torch
from support import vision

from specdec_kernels.decode import Output, PromptLookupDrafter
from specdec_kernels.integrations.transformers import speculative

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]
IDS = torch.tensor([[5, 6, 7, 8, 5, 6], [3, 3, 9, 10, 3, 3]])
PLAIN = {"max_new_tokens": 8, "pad_token_id": 0, "do_sample": False, "eos_token_id": None}
# From different families; the first has positions in three dimensions. Each is also in the test of every class.
SERVED = ["Qwen2VLForConditionalGeneration", "LlavaForConditionalGeneration", "Idefics3ForConditionalGeneration"]
SERVED += ["InternVLForConditionalGeneration", "Mistral3ForConditionalGeneration", "FuyuForCausalLM"]


def same(model, inputs=IDS, **more):
    """Return whether the tokens are those of plain generate, and the statistics."""
    ours = Output()
    plain = model.generate(inputs, **PLAIN | more)
    given = {"custom_generate": speculative, "drafter": PromptLookupDrafter(3), "output": ours}
    return torch.equal(model.generate(inputs, **PLAIN | more, **given), plain), ours.stats


@pytest.mark.parametrize("name", SERVED)
def test_text_alone_is_plain_generate(name):
    """Text-only prompts give plain generate's tokens, also with padding, and with the argument by which a processor
    marks which tokens are text."""
    model = vision.tiny(name)
    equal, stats = same(model)
    assert equal and stats.drafted > 0
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    assert same(model, attention_mask=mask)[0]
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        assert same(model, mm_token_type_ids=torch.zeros_like(IDS))[0]


@pytest.mark.thorough
def test_every_class():
    """Each class equals plain generate, is refused with a reason, or cannot be made this small. At least 30 are
    equal."""
    found = {}
    for name in vision.classes():
        try:
            model = vision.tiny(name)
            model.generate(IDS, **PLAIN)
        except Exception as error:
            found[name] = f"not made: {error!r:.80}"
            continue
        try:
            found[name] = "equal" if same(model)[0] else "different"
        except ValueError as error:
            found[name] = f"refused: {error!s:.80}"
    assert not [name for name, how in found.items() if how == "different" or "mm_encoder_outputs" in how], found
    assert sum(how == "equal" for how in found.values()) >= 30, found
