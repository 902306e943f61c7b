# SPDX-License-Identifier: Apache-2.0
"""The decode loop on a simulated GPU: CPU tensors that carry a device label (bench/devices.py).

No op mixes devices, a step waits for the device once, and the output equals the CPU's. waits_below counts the further
waits of some drafters.
"""

import pytest
import torch
from support import tiny
from support.tiny import WORDS, InDoubles, folder

import specdec_kernels as sk
from specdec_kernels.cli import main
from specdec_kernels.decode import (
    TREE_METHODS,
    Graphed,
    HierarchicalDrafter,
    LookupThenModel,
    ModelDrafter,
    Output,
    PromptLookupDrafter,
    Request,
    Session,
    TokenCascade,
    TreeDrafter,
    adapt,
    generate,
    load_pair,
)
from specdec_kernels.decode.drafters import tree_drafter
from specdec_kernels.decode.models import graphed, load
from specdec_kernels.decode.models.layer_draft import LayerDraft
from specdec_kernels.decode.models.packed_linear import can_pack
from specdec_kernels.decode.transfers import CPU, Readback, at_most, upload

devices = pytest.importorskip("bench.devices", reason="needs the source tree's bench")
pytestmark = pytest.mark.usefixtures("one_thread")


def lookup():
    return PromptLookupDrafter(4, 3, 1)


DRAFTERS = {  # name -> function of a draft model d and a function that returns a smaller one
    "plain": lambda d, s: None,
    "lookup": lambda d, s: lookup(),
    "model": lambda d, s: ModelDrafter(d, 3),
    "adaptive alone": lambda d, s: ModelDrafter(d, "auto"),
    "adaptive text": lambda d, s: LookupThenModel(PromptLookupDrafter("auto", 3, 1), ModelDrafter(d, "auto")),
    "adaptive tree": lambda d, s: TreeDrafter(d, "traversal", 3, 3, "auto"),
    "adaptive": lambda d, s: LookupThenModel(lookup(), ModelDrafter(d, "auto")),
    "both": lambda d, s: LookupThenModel(lookup(), ModelDrafter(d, 3)),
    **{m: lambda d, s, m=m: TreeDrafter(d, m, 3, 3) for m in TREE_METHODS},
    "widths": lambda d, s: TreeDrafter(d, "traversal", shape=(3, 2, 1)),
    "tree and text": lambda d, s: TreeDrafter(d, "target_only", 3, 3, lookup=lookup()),
    "hierarchical": lambda d, s: HierarchicalDrafter(d, ModelDrafter(s(), 2), 4),
    "hierarchical text": lambda d, s: HierarchicalDrafter(d, lookup(), 4),
    "three deep": lambda d, s: HierarchicalDrafter(d, HierarchicalDrafter(s(), lookup(), 3), 5),
    "cascade": lambda d, s: TokenCascade(d, 40),
}
RULES = {"cascade": dict(rule="chow", alpha=0.4)}
TARGET = tiny.llama(0)


def waits_below(drafter, draws, trees):
    """Return how often a drafter has waited for the device so far, beyond the one wait of a step for its output.

    A hierarchy waits at each step of its own models, a cascade at each token that it examines, a tree where looked-up
    text joins it.
    """
    if isinstance(drafter, HierarchicalDrafter):
        return drafter.stats.target_calls + waits_below(drafter.drafter, draws, trees)
    if isinstance(drafter, TokenCascade):
        return len(draws)
    return len(trees) if isinstance(drafter, TreeDrafter) and drafter.lookup else 0


def decoded(kind, make, device, todo, seen=None, verify=None):
    """Return the output with three requests at a time, and count every step's synchronisations."""
    target, draft = (make(model.to(device)) for model in (tiny.llama(0), tiny.nearby(tiny.llama(0))))
    smaller = lambda: make(tiny.nearby(tiny.llama(0), 0.05).to(device))
    drafter, draws, trees = DRAFTERS[kind](draft, smaller), [], []
    session = Session(target, drafter, max_batch=3, capacity=48, verify=verify)
    for request in todo:
        session.submit(request)
    with pytest.MonkeyPatch.context() as patch:
        for module, name, calls in ((sk, "sample", draws), (tree_drafter, "with_lookup", trees)):
            honest = getattr(module, name)
            patch.setattr(module, name, lambda *a, f=honest, c=calls, **k: (c.append(1), f(*a, **k))[1])
        while session.busy and seen is not None:
            below = waits_below(drafter, draws, trees)
            seen.synchronisations.clear()
            for event in session.step():
                if event.error is not None:
                    raise ValueError(event.error)
            expected = 1 + waits_below(drafter, draws, trees) - below
            assert len(seen.synchronisations) == expected, (kind, seen.synchronisations)
            assert {place.partition(":")[0] for place in seen.synchronisations} == {"decode/transfers.py"}
        list(session.events())
    return Output([*session.results.values()], session.stats).check()


@pytest.mark.parametrize("kind", [k for k in DRAFTERS if k != "cascade"])
def test_greedy_is_the_models_own(kind):
    """Slots are freed, moved and reused. Kills: a CPU tensor that meets one of the device, and a value that is read
    during the step."""
    todo = tiny.requests(n=5)
    with devices.watch() as seen:
        output = decoded(kind, adapt, "cuda", todo, seen)
    for request, result in zip(todo, output.results):
        assert result.tokens == tiny.greedy(TARGET, request.prompt, request.max_new_tokens)
    assert kind == "plain" or output.stats.accepted > 0 and output.stats.seconds > 0


# Adaptive lengths depend on measured seconds, and tokens on the lengths.
@pytest.mark.parametrize("kind", [k for k in DRAFTERS if k != "greedy" and not k.startswith("adaptive")])
@pytest.mark.thorough
def test_sampled_is_what_the_cpu_draws(kind):
    """Every token equals the CPU's; distributions are tested there. Fixed shapes, and draft columns that the CPU never
    drew, change nothing.

    Logits are rounded from float64, so that a sum's rounding, which depends on shapes, has no effect.
    """
    todo = lambda: [*tiny.requests(n=4, temperature=1.0, **RULES.get(kind, {}))]
    cpu = decoded(kind, InDoubles, "cpu", todo())
    with devices.watch() as seen:
        output = decoded(kind, InDoubles, "cuda", todo(), seen)
    assert kind == "plain" or 0 < cpu.stats.accepted
    assert [r.tokens for r in output.results] == [r.tokens for r in cpu.results]
    counted = "new_tokens", "accepted", "drafted", "tested", "widths", "status", "target_calls"
    assert [getattr(output.stats, c) for c in counted] == [getattr(cpu.stats, c) for c in counted]


VIEWED = ["plain", "model", "kseq", "traversal", "target_only", "hierarchical"]


@pytest.mark.parametrize("kind", VIEWED)
def test_penalties_and_biases_wait_no_more(kind):
    """The lists of used tokens, the biases and the bad words go to the device without a wait, and logprobs come back in
    the step's one transfer."""
    views = dict(repetition_penalty=1.3, frequency_penalty=0.5, logit_bias={3: 1.0}, min_tokens=9, eos=(1, 2, 4, 7))
    views |= dict(bad_words=((6,), (3, 5), (3, 3)), logprobs=2, logprobs_mode="processed")
    todo = lambda: tiny.requests(n=4, **views)
    cpu = decoded(kind, InDoubles, "cpu", todo())
    with devices.watch() as seen:
        output = decoded(kind, InDoubles, "cuda", todo(), seen)
    for name in ("tokens", "drafted", "logprobs"):
        assert [getattr(r, name) for r in output.results] == [getattr(r, name) for r in cpu.results], name


@pytest.mark.parametrize("kind", VIEWED)
def test_masks_are_made_of_drafts_that_are_read(kind):
    """A function on the host needs the drafts, so they are read as they are drawn. Tokens are the CPU's."""
    even = torch.tensor([0x55555555], dtype=torch.int32)
    todo = lambda: tiny.requests(n=4, allowed=lambda text: even if len(text) % 3 else None)
    cpu = decoded(kind, InDoubles, "cpu", todo())
    with devices.watch():
        output = decoded(kind, InDoubles, "cuda", todo())
    assert [r.tokens for r in output.results] == [r.tokens for r in cpu.results]
    assert all(t % 2 == 0 for r in output.results for i, t in enumerate(r.tokens) if i % 3)


LOSSY = [("model", "token_v3", 0.5), ("hierarchical", "token_v3", 0.5), ("model", "typical", None)]


@pytest.mark.parametrize("kind, rule, alpha", LOSSY)
def test_rules(kind, rule, alpha):
    """token_v3 needs the draft's row after the last draft, typical does not."""
    todo = lambda: tiny.requests(n=3, temperature=1.0, rule=rule, alpha=alpha)
    cpu = decoded(kind, InDoubles, "cpu", todo())
    with devices.watch() as seen:
        assert [r.tokens for r in decoded(kind, InDoubles, "cuda", todo(), seen).results] == [
            r.tokens for r in cpu.results
        ]


@pytest.mark.parametrize("verify", ["block", "race"])
def test_other_verification_and_parameters_of_requests(verify):
    options = [dict(temperature=0.7, top_k=5), dict(temperature=0.0), dict(temperature=1.3, top_p=0.8, min_p=0.05)]
    todo = [Request(r.prompt, 12, seed=9, **o) for r, o in zip(tiny.requests(), options)]
    cpu = decoded("model", InDoubles, "cpu", todo, verify=verify)
    with devices.watch() as seen:
        output = decoded("model", InDoubles, "cuda", todo, seen, verify=verify)
    assert [r.tokens for r in output.results] == [r.tokens for r in cpu.results]


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_shapes_depend_on_the_batch_and_the_width_alone(make, monkeypatch):
    """In transformers' own forward passes, attention reads the keys of whole slots at every position, and no pass
    waits."""
    shapes, honest = [], torch.nn.functional.scaled_dot_product_attention

    def attention(q, k, v, *args, **options):
        shapes.append((tuple(q.shape), tuple(k.shape)))
        return honest(q, k, v, *args, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    with devices.watch() as seen:
        model = adapt(make(0).to("cuda"), lean=False)
        cache = model.new_cache(2, 24)
        seen.synchronisations.clear(), shapes.clear()
        for start in ([0, 0], [5, 2], [19, 20]):
            logits = model.forward(torch.zeros(2, 3, dtype=torch.int64, device="cuda"), start, cache)
        assert logits.device == model.device == torch.device("cuda:0") and not seen.synchronisations
    assert len(set(shapes)) == 1 and shapes[0][1][2] == 24 and len(shapes) == 3 * 2
    with pytest.raises(ValueError, match="rows 0..1 up to position 24 do not fit 2 slots of 24 positions"):
        model.forward(torch.zeros(2, 3, dtype=torch.int64), [0, 22], model.new_cache(2, 24))


def faulty(monkeypatch, fault):
    """Decode with a lookup drafter whose proposals are passed through fault(draft)."""
    honest = PromptLookupDrafter.propose

    def propose(self, batch):
        draft = honest(self, batch)
        return draft if draft is None else fault(draft)

    monkeypatch.setattr(PromptLookupDrafter, "propose", propose)
    with devices.watch() as seen:
        decoded("lookup", adapt, "cuda", tiny.requests(n=3), seen)


def test_a_value_that_is_read_on_the_way_is_found_out(monkeypatch):
    with pytest.raises(AssertionError, match="lookup"):
        faulty(monkeypatch, lambda draft: draft if draft.tokens.max().item() >= 0 else None)


def test_a_tensor_on_the_wrong_device_is_found_out(monkeypatch):
    from dataclasses import replace

    with pytest.raises((devices.MixedDevices, ValueError), match="cpu"):
        faulty(monkeypatch, lambda draft: replace(draft, tokens=torch.zeros(draft.tokens.shape, dtype=torch.int64)))


def test_a_copy_that_waits_is_found_out(monkeypatch):
    from dataclasses import replace

    tokens = lambda draft: torch.tensor([[1]] * len(draft.tokens), device="cuda")
    with pytest.raises(AssertionError, match="lookup"):
        faulty(monkeypatch, lambda draft: replace(draft, tokens=tokens(draft)))


def test_readback_copies_once():
    """Requests made before the first value is needed come in one copy, each in its own shape. Later ones come in the
    next."""
    with devices.watch() as seen:
        readback, x = Readback(), upload([[1, -2], [3, 4]], torch.device("cuda"))
        asked = [readback.ask(x), readback.ask(x[:, 0].int()), readback.ask(x[:, :0]), readback.ask(x > 2)]
        assert not seen.synchronisations and len(seen.uploads) == 1
        assert asked[1].rows == [1, 3] and asked[0].rows == [[1, -2], [3, 4]]
        assert asked[2].rows == [[], []] and asked[3].rows == [[0, 0], [1, 1]]
        assert len(seen.synchronisations) == 1
        assert readback.ask(x[0]).rows == [1, -2] and len(seen.synchronisations) == 2
        assert at_most(x.flatten(), 7) == 7 and len(seen.synchronisations) == 2
    assert at_most(torch.tensor([1, 4]), 7) == 4


def test_a_draft_elsewhere_is_refused():
    with devices.watch():
        target = adapt(tiny.llama(0).to("cuda"))
        for drafter in (ModelDrafter(tiny_draft(), 2), LookupThenModel(lookup(), ModelDrafter(tiny_draft(), 2))):
            with pytest.raises(ValueError, match="a draft model must be on the target's device, cuda:0, got cpu"):
                generate(target, tiny.requests(n=1), drafter)


def tiny_draft():
    return adapt(tiny.llama(1))


def test_load_pair_says_which_devices_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cases = [
        ("gpu", 'load_pair: device must be "cpu" or "cuda", got \'gpu\''),
        ("mps", 'load_pair: device must be "cpu" or "cuda", got \'mps\''),
        ("cuda", r"load_pair: device cuda is not there: torch .* (was built without CUDA|finds no GPU)"),
    ]
    for name, text in cases:
        with pytest.raises(ValueError, match=text):
            load_pair("smollm2", device=name)
    with devices.watch():
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        with pytest.raises(ValueError, match="load_pair: device must be one of 1 GPUs, got cuda:1"):
            load_pair("smollm2", device="cuda:1")
        assert load.find_device("cuda") == torch.device("cuda:0")
        assert load.default_dtype(torch.device("cuda:0")) == torch.bfloat16
    assert load.find_device("cpu") == CPU


@pytest.mark.parametrize("draft", ["model", "layers"])
def test_load_pair_on_a_device(tmp_path, draft):
    """Loaded models lie on the device, unpacked, and decode as on the CPU."""
    target = folder(tmp_path / "target", 0)
    other = folder(tmp_path / "other", 1) if draft == "model" else str(tmp_path / "layers")
    if draft == "layers":
        hf = tiny.llama(0, vocab=len(WORDS))
        LayerDraft(hf, range(5, 20), layers=(0, 1)).copy_layers(hf).save(other)
    todo = tiny.requests(n=3)
    found = []
    with devices.watch() as seen:
        for device in ("cpu", "cuda"):
            pair = load_pair(target, other, torch.float32, device=device)
            assert {str(m.device) for m in (pair.target, pair.draft)} == {{"cpu": "cpu", "cuda": "cuda:0"}[device]}
            packed = {layer.packed for layer in pair.target.layers[0] if hasattr(layer, "packed")}
            assert packed == {can_pack(torch.ones(1, 1)) if device == "cpu" else False}
            seen.synchronisations.clear()
            output = generate(pair.target, todo, ModelDrafter(pair.draft, 3))
            found.append([result.tokens for result in output.results])
    assert found[0] == found[1] and 0 < len(seen.synchronisations) <= output.stats.rows


def test_generate_on_a_device(tmp_path, capsys):
    """The command line gives the same text, or the reason why there is none."""
    target = folder(tmp_path / "target", 0)
    arguments = ["generate", "--target", target, "--prompt", "def f(x): def f", "--max-new-tokens", "9"]
    arguments += ["--dtype", "float32", "--device"]

    def text():
        return capsys.readouterr().out.partition("new tokens")[0]

    with devices.watch() as seen:
        assert main([*arguments, "cpu"]) == 0
        plain, waited = text(), len(seen.synchronisations)
        assert main([*arguments, "cuda"]) == 0 and text() == plain != "" and len(seen.synchronisations) > waited == 0
        assert main([*arguments, "cuda", "--graphs", "--draft", target]) == 0 and text() == plain
    assert main([*arguments, "cuda:7"]) == 2
    assert "error: --device " in capsys.readouterr().err
    assert main([*arguments, "cpu", "--graphs"]) == 2
    assert "error: --graphs needs a GPU, got --device cpu" in capsys.readouterr().err


GRAPHED = {
    "plain": lambda d: None,
    "model": lambda d: ModelDrafter(d, 3),
    "traversal": lambda d: TreeDrafter(d, "traversal", 3, 3),
    "kseq": lambda d: TreeDrafter(d, "kseq", 3, 3),
    "hierarchical": lambda d: HierarchicalDrafter(d, lookup(), 4),
}


@pytest.mark.parametrize("kind", GRAPHED)
@pytest.mark.parametrize("lean", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["lean", "transformers"])
@pytest.mark.slow
def test_passes_in_graphs(lean, kind, monkeypatch):
    """Captured passes are replayed at other positions with other tokens, in slots that are freed and reused."""
    from bench import rehearsal

    replays, honest = [], rehearsal._Graph.replay
    monkeypatch.setattr(rehearsal._Graph, "replay", lambda self: (replays.append(self), honest(self)))
    todo = tiny.requests(n=5)
    with devices.watch() as seen:
        models = (tiny.llama(0), tiny.nearby(tiny.llama(0)))
        target, draft = (Graphed(adapt(model.to("cuda"), lean=lean)) for model in models)
        seen.synchronisations.clear()
        output = generate(target, todo, GRAPHED[kind](draft), max_batch=3)
    for request, result in zip(todo, output.results):
        assert result.tokens == tiny.greedy(TARGET, request.prompt, request.max_new_tokens)
    assert len(replays) > 2 * len(set(replays)) > 2
    if kind != "hierarchical":
        assert len(seen.synchronisations) == output.stats.target_calls  # one step each


def test_a_graph_of_old_inputs_is_found_out(monkeypatch):
    monkeypatch.setattr(graphed._Pass, "__call__", lambda self, inputs: (self.graph.replay(), self.logits.clone())[1])
    todo = tiny.requests()
    expected = [tiny.greedy(TARGET, request.prompt, request.max_new_tokens) for request in todo]
    with devices.watch():
        results = generate(Graphed(adapt(tiny.llama(0).to("cuda"))), todo).results
    assert len(set(map(tuple, expected))) > 4 and [result.tokens for result in results] != expected


def test_graphs_are_for_gpus():
    with pytest.raises(ValueError, match="Graphed: model must be on a GPU, got one on cpu"):
        Graphed(tiny_draft())
