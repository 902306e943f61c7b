# SPDX-License-Identifier: Apache-2.0
"""Every causal LM class of the installed transformers, if it can be built small, is refused with a reason, or decodes
the text of plain generate.

The tiers below `all` test a tenth of them, selected by SPECDEC_SEED.
"""

import pytest
import torch
from support import architectures, tiers

from specdec_kernels.decode import ModelDrafter, PromptLookupDrafter, Request, TreeDrafter, adapt, generate

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
NAMES = architectures.names()
TENTH = tiers.TURN % 10
PROMPTS = [[5, 9, 2, 7, 5, 9, 2], [3, 8, 11, 4, 6, 1, 13, 3, 8, 11, 4], [7, 7, 2]]
TOKENS = 10
BUILT, SERVED = 150, 100  # the least numbers of classes that are built and served


def drafters(draft, trees):
    """Return name -> (function that makes a drafter, prefill_chunk), for each kind of pass."""
    kinds = {
        "plain": (lambda: None, 4),
        "lookup": (lambda: PromptLookupDrafter(4, 3, 1), 512),
        "model": (lambda: ModelDrafter(draft, 3), 3),
    }
    return kinds | ({"tree": (lambda: TreeDrafter(draft, "greedy", 3, 3), 512)} if trees else {})


def check_served(name, model, served, options):
    """Check that greedy text in float32 equals plain generate's, without a drafter and with those of drafters().

    Prompts differ in length, and share a batch if the model supports batches. They are read in one pass and in several.
    """
    want = [architectures.plain(model, prompt, TOKENS) for prompt in PROMPTS]
    other = architectures.build(name, **options)
    for weight in other.parameters():
        weight.add_(0.02 * torch.randn_like(weight))
    refuses = getattr(served, "refuses", {})
    batch = 1 if "batches" in refuses else len(PROMPTS)
    for kind, (make, chunk) in drafters(adapt(other), "trees" not in refuses).items():
        todo = [Request(prompt, TOKENS) for prompt in PROMPTS]
        output = generate(served, todo, make(), max_batch=batch, prefill_chunk=chunk)
        assert [result.tokens for result in output.results] == want, (name, kind)
    for what, size, drafter in (("batches", 2, None), ("trees", 1, TreeDrafter(adapt(other), "greedy", 2, 2))):
        if what in refuses:
            with pytest.raises(ValueError, match="max_batch must be 1|TreeDrafter cannot be used with"):
                generate(served, [Request(prompt, TOKENS) for prompt in PROMPTS], drafter, max_batch=size)


def walk(names):
    found = {}
    for name in names:
        kind, said, model, served, options = architectures.outcome(name)
        if kind == "served":
            check_served(name, model, served, options)
            said = "; ".join(f"no {what}: {why}" for what, why in getattr(served, "refuses", {}).items())
        found[name] = kind, said
    return found


@pytest.mark.parametrize(
    "tenth", [TENTH, *(pytest.param(i, marks=pytest.mark.thorough) for i in range(10) if i != TENTH)]
)
def test_refused_or_plain_text(tenth, capsys):
    found = walk(NAMES[tenth::10])
    with capsys.disabled():
        print(f"\ntenth {tenth}: " + ", ".join(f"{name} {kind}" for name, (kind, _) in found.items()))
    assert sum(kind == "served" for kind, _ in found.values()) >= len(found) // 4


@pytest.mark.thorough
def test_most_are_built_and_served(capsys):
    found = {name: architectures.outcome(name)[:2] for name in NAMES}
    counts = {kind: sum(k == kind for k, _ in found.values()) for kind in ("unbuilt", "refused", "served")}
    with capsys.disabled():
        print("\n", counts)
        for name, (kind, said) in found.items():
            if kind != "served":
                print(f"  {kind} {name}: {said}")
    assert len(found) - counts["unbuilt"] >= BUILT and counts["served"] >= SERVED


# (class, options, what the probe must refuse). Reports name these models, so they are all tested, not a tenth of them.
KNOWN = [
    ("gpt_neo", {}, {"batches", "trees"}),
    ("bart", {}, {"batches", "trees"}),
    ("trocr", {}, {"batches", "trees"}),
    ("mpt", {}, {"trees"}),
    ("bloom", {}, None),
    ("falcon", {"alibi": True}, None),
    ("xlnet", {}, None),
    ("openai-gpt", {}, None),
    ("falcon", {}, set()),
    ("gpt_neox", {}, set()),
]


@pytest.mark.parametrize("name, options, refuses", KNOWN, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_known_to_fail(name, options, refuses):
    """The probe refuses batches or trees as KNOWN lists. None means that the model is refused altogether."""
    kind, said, model, served, options = architectures.outcome(name, **options)
    if refuses is None:
        assert kind == "refused" and "cannot be decoded by this loop: " in said
        return
    assert served.refuses.keys() == refuses
    if "trees" in refuses:
        check_served(name, model, served, options)
