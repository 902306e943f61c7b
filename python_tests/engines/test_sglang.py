# SPDX-License-Identifier: Apache-2.0
"""SGLang's calls on our ops. With the same coins (uniform random numbers) they write the results of SGLang's contract,
token by token, to the buffers that it passes."""

import numpy as np
import peer_walks
import pytest
import torch
from support.backends import there

from specdec_kernels import testing, verify_chain
from specdec_kernels.integrations import sglang
from specdec_kernels.rows import Rows

pytestmark = pytest.mark.one_backend  # wrappers of ops, which other tests run on each backend

B, N, S, V = 48, 9, 5, 7
UNUSED = -7


def probabilities(*shape, seed, sharp=2.0):
    return torch.softmax(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * sharp, -1)


def coins(*shape, seed):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def buffers(B, N, S):
    of = lambda *shape: torch.full(shape, UNUSED, dtype=torch.int32)
    return of(B * N), of(B, S), of(B)


def random_trees(seed, B=B, N=N):
    """Return trees with distinct siblings in any order: (tokens, places, first, sibling). places [B, N]: each node's
    index in the flat outputs; first, sibling: the links."""
    generator = torch.Generator().manual_seed(seed)
    tokens, first, sibling = torch.zeros(B, N, dtype=torch.int64), *torch.full((2, B, N), -1)
    for b in range(B):
        children = [[] for _ in range(N)]
        for i in range(1, N):
            parent = int(torch.randint(i, (), generator=generator))
            taken = {int(tokens[b, c]) for c in children[parent]}
            if len(taken) == V:
                parent, taken = i - 1, set()
            free = [t for t in range(V) if t not in taken]
            tokens[b, i] = free[int(torch.randint(len(free), (), generator=generator))]
            children[parent].insert(int(torch.randint(len(children[parent]) + 1, (), generator=generator)), i)
        for node, of_it in enumerate(children):
            for child, after in zip(of_it, [*of_it[1:], -1]):
                sibling[b, child] = after
            first[b, node] = of_it[0] if of_it else -1
    places = torch.stack([torch.randperm(N, generator=generator) + b * N for b in range(B)])
    return tokens, places, first, sibling


def called(name, out, *args, **kwargs):
    """Make the call in a process of the backend; return what it wrote."""
    assert getattr(sglang, name)(*out, *args, **kwargs) is None
    return out


def wanted(walks, places, B, N, S):
    predicts, accept_index, accept_token_num = buffers(B, N, S)
    for b, (path, tokens) in enumerate(walks):
        for i, (node, token) in enumerate(zip(path, tokens)):
            predicts[places[b, node]] = token
            accept_index[b, i] = places[b, node]
        accept_token_num[b] = len(path) - 1
    return predicts, accept_index, accept_token_num


def same(got, want):
    for name, x, y in zip(("predicts", "accept_index", "accept_token_num"), got, want):
        assert x.dtype == torch.int32 and torch.equal(x, y), name


@pytest.mark.parametrize("thresholds", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.4), (0.6, 0.3), (0.0, 0.0)])
def test_tree_by_the_targets_law(op_backend, thresholds):
    if thresholds != (1.0, 1.0) and op_backend.startswith("triton"):
        pytest.skip("Triton takes no rule on a tree")
    tokens, places, first, sibling = random_trees(1)
    p, u, final = probabilities(B, N, V, seed=2), coins(B, N, seed=3), coins(B, seed=4)
    given = (tokens, places, first, sibling, u, final, p, torch.zeros_like(p), *thresholds)
    got = there(op_backend, called, "tree_speculative_sampling_target_only", buffers(B, N, S), *given)
    single, acc = (max(x, 1e-9) for x in thresholds)
    rows = (first.tolist(), sibling.tolist(), tokens.tolist(), p.double().numpy(), u.tolist(), final.tolist())
    walks = [peer_walks.tree(*row, S - 1, single, acc) for row in zip(*rows)]
    lengths = {len(path) for path, _ in walks}
    assert len(lengths) > 2 or thresholds == (0.0, 0.0)
    same(got, wanted(walks, places, B, N, S))


@pytest.mark.parametrize("thresholds", [(1.0, 1.0), (0.6, 0.3)])
def test_rejected_children_are_written_to_draft_probs(thresholds):
    """p of rejected children is written at each node that was reached and nowhere else, as SGLang's kernel does, also
    if a child occurs twice."""
    tokens, places, first, sibling = random_trees(5)
    tokens[::3, -1] = tokens[::3, -2]
    tokens[1::3, 0] = tokens[1::3].gather(1, first[1::3, :1].clamp(min=0))[
        :, 0
    ]  # the root's own token among its children
    p, scratch = probabilities(B, N, V, seed=6), torch.rand(B, N, V)
    u, final, want = coins(B, N, seed=7), coins(B, seed=8), scratch.clone()
    for b in range(B):
        links = first[b].tolist(), sibling[b].tolist(), tokens[b].tolist()
        coin = u[b].tolist(), final[b].item()
        peer_walks.tree(*links, p[b].double().numpy(), *coin, S - 1, *thresholds, scratch=want[b].numpy())
    assert ((want != scratch).flatten(1).sum(1) > 1).any()
    given = tokens, places, first, sibling, u, final, p, scratch, *thresholds
    sglang.tree_speculative_sampling_target_only(*buffers(B, N, S), *given)
    assert torch.equal(scratch, want)


def strided(x, how):
    """Return the same tensor with other strides."""
    if how == "a column of a wider tensor":
        return torch.stack([x, torch.full_like(x, 9)], -1)[..., 0]
    if how == "transposed":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    return torch.nn.functional.pad(x, (1, 2), value=3)[..., 1:-2]  # padded rows


@pytest.mark.parametrize("how", ["a column of a wider tensor", "transposed", "padded rows"])
@pytest.mark.parametrize(
    "name",
    [
        "chain_speculative_sampling_triton",
        "chain_block_speculative_sampling_triton",
        "tree_speculative_sampling_target_only",
        "tree_speculative_sampling_target_only_triton",
    ],
)
def test_every_argument_may_have_any_strides(name, how):
    tree = name.startswith("tree")
    n = N if tree else S
    tokens, places, first, sibling = random_trees(1) if tree else (torch.randint(V, (B, S)), None, None, None)
    if places is None:
        places = torch.arange(B * S).view(B, S)
    given = [tokens, places, first, sibling, coins(B, n, seed=3), coins(B, seed=4), probabilities(B, n, V, seed=2)]
    given.append(probabilities(B, n if tree else S - 1, V, seed=9))
    out, other = buffers(B, n, S), buffers(B, n, S)
    getattr(sglang, name)(*out, *(x.clone() if x is not None else None for x in given))
    moved = [None if x is None else strided(x, how) if x.dim() > 1 else x for x in given]
    getattr(sglang, name)(*other, *moved)
    same(other, out)


def test_block_under_its_own_name():
    """chain_block_speculative_sampling_triton is the chain's function with block_verification."""
    p, q = probabilities(B, S, V, seed=11), probabilities(B, S - 1, V, seed=12, sharp=1.0)
    given = (torch.randint(V, (B, S)), torch.arange(B * S).view(B, S), None, None, coins(B, S, seed=13))
    out, other = buffers(B, S, S), buffers(B, S, S)
    sglang.chain_block_speculative_sampling_triton(*out, *given, coins(B, seed=14), p, q, 0.5, 0.5, True)
    sglang.chain_speculative_sampling_triton(*other, *given, coins(B, seed=14), p, q, block_verification=True)
    same(out, other)


def test_tree_leaves_unused_places_alone():
    tokens, places, first, sibling = random_trees(5)
    p = probabilities(B, N, V, seed=6)
    out = buffers(B, N, S)
    more = (coins(B, N, seed=7), coins(B, seed=8))
    sglang.tree_speculative_sampling_target_only(*out, tokens, places, first, sibling, *more, p)
    predicts, accept_index, accept_token_num = out
    used = accept_index >= 0
    assert torch.equal(used.sum(1), accept_token_num + 1) and (accept_index[~used] == UNUSED).all()
    assert (predicts >= 0).sum() == used.sum() and set(accept_index[used].tolist()) == set(
        (predicts >= 0).nonzero().view(-1).tolist()
    )


def test_a_coin_of_zero_accepts_nothing_forbidden():
    """With a coin of 0 SGLang's <= would accept a token of probability 0. The difference is documented."""
    tokens, places = torch.tensor([[0, 1, 2]]), torch.tensor([[0, 1, 2]])
    first, sibling = torch.tensor([[1, -1, -1]]), torch.tensor([[-1, 2, -1]])
    p = torch.tensor([0.0, 0.0, 0.3, 0.7]).expand(1, 3, 4)
    for thresholds in ((1.0, 1.0), (0.0, 0.0)):
        predicts, accept_index, accept_token_num = out = buffers(1, 3, 2)
        more = (torch.zeros(1, 3), torch.tensor([0.99]), p, torch.zeros_like(p), *thresholds)
        sglang.tree_speculative_sampling_target_only(*out, tokens, places, first, sibling, *more)
        assert predicts.tolist() == [2, UNUSED, 3] and accept_index.tolist() == [[0, 2]]


def test_equal_siblings_do_not_bias_the_law():
    """With stratified coins and drafts A, A, B, the first token follows the target to within .01."""
    n = 400
    tokens, places = torch.tensor([[0, 1, 1, 2]]).expand(n, 4), torch.arange(4 * n).view(n, 4)
    first, sibling = torch.tensor([[1, -1, -1, -1]]).expand(n, 4), torch.tensor([[-1, 2, 3, -1]]).expand(n, 4)
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    u = ((torch.arange(n) + 0.5) / n).unsqueeze(1).expand(n, 4)
    spread = (torch.arange(n) * 0.6180339887) % 1.0
    predicts, *_ = out = buffers(n, 4, 2)
    sglang.tree_speculative_sampling_target_only(*out, tokens, places, first, sibling, u, spread, p.expand(n, 4, 4))
    law = predicts.view(n, 4)[:, 0].bincount(minlength=4) / n
    assert (law - p).abs().max() < 0.01, law


def test_greedy_tree(op_backend):
    tokens, places, first, sibling = random_trees(9)
    chosen = torch.randint(V, (B, N), generator=torch.Generator().manual_seed(10))
    by_place = torch.empty(B * N, dtype=torch.int64).scatter_(0, places.flatten(), chosen.flatten()).view(B, N)
    given = (tokens, places, first, sibling, by_place)
    got = there(op_backend, called, "verify_tree_greedy", buffers(B, N, S), *given)
    rows = (first.tolist(), sibling.tolist(), tokens.tolist(), chosen.tolist())
    walks = [peer_walks.greedy(*row, S - 1) for row in zip(*rows)]
    assert len({len(path) for path, _ in walks}) > 2
    same(got, wanted(walks, places, B, N, S))


@pytest.mark.parametrize("block", [False, True])
def test_chain(op_backend, block):
    p, q = probabilities(B, S, V, seed=11), probabilities(B, S - 1, V, seed=12, sharp=1.0)
    q = (q + p[:, :-1]) / 2  # near enough to p that some requests accept all
    drafts = torch.multinomial(q.flatten(0, 1), 1, generator=torch.Generator().manual_seed(13)).view(B, S - 1)
    tokens = torch.cat([torch.full((B, 1), 3), drafts], 1)
    places = torch.arange(B * S).view(B, S).flip(1)
    u, final = coins(B, S, seed=14), coins(B, seed=15)
    given = (tokens, places, None, None, u, final, p, q, 1.0, 1.0, True)
    got = there(
        op_backend, called, "chain_speculative_sampling_triton", buffers(B, S, S), *given, block_verification=block
    )
    walks = []
    for b in range(B):
        walk = peer_walks.block if block else peer_walks.chain
        rows = (p[b].double().numpy(), q[b].double().numpy(), drafts[b].tolist(), u[b].tolist(), final[b].item())
        n, last = walk(*rows)
        walks.append((list(range(n + 1)), [*drafts[b, :n].tolist(), last]))
    assert {len(path) for path, _ in walks} == set(range(1, S + 1))
    same(got, wanted(walks, places, B, S, S))


def test_chain_takes_rows_behind_the_drafts_and_halves():
    """A draft buffer may have one more row, and inputs may be bfloat16."""
    p, q = probabilities(B, S, V, seed=16).bfloat16(), probabilities(B, S, V, seed=17).bfloat16()
    tokens, places = torch.randint(V, (B, S)), torch.arange(B * S).view(B, S)
    u, final = coins(B, S, seed=18), coins(B, seed=19)
    outs = buffers(B, S, S), buffers(B, S, S)
    for out, rows in zip(outs, (q, q[:, :-1])):
        sglang.chain_speculative_sampling_triton(*out, tokens, places, None, None, u, final, p, rows, 1.0, 1.0, True)
    same(*outs)


@pytest.mark.parametrize("drafted", ["model", "one-hot"])
def test_blockwise_rejection(drafted):
    generator = torch.Generator().manual_seed(20)
    target, draft = (torch.randn(B, n, V, generator=generator) for n in (S, S))
    draft = draft if drafted == "model" else None
    tokens = torch.randint(V, (B, S), generator=generator)
    temperatures = torch.rand(B, 1, generator=generator) + 0.5
    noise = sglang.make_rejection_noise(7, "cpu")
    given = {
        "candidates": tokens,
        "target_logits": target.flatten(0, 1),
        "draft_logits": draft,
        "target_temperatures": temperatures,
        "draft_temperatures": temperatures / 2,
    }
    drawn = None if draft is None else Rows(draft[:, :-1], temperature=temperatures.view(-1) / 2)
    for step in range(2):
        whole = verify_chain(
            Rows(target, temperature=temperatures.view(-1)),
            tokens[:, 1:],
            drawn,
            seed=7 ^ (torch.arange(B) << 40),
            offset=torch.tensor([step]),
        )
        lens = torch.randint(1, S + 1, (B,), generator=generator)
        again = sglang.RejectionNoise(noise.key, noise.counter.clone())
        accepted, bonus, cut = sglang.BlockwiseRejection.execute(**given, noise=noise)
        assert noise.counter.item() == step + 1 and not cut.any()
        assert (accepted.dtype, bonus.dtype, cut.dtype) == (torch.int32, torch.int64, torch.int32)
        assert torch.equal(accepted, whole.num_accepted)
        assert torch.equal(bonus, whole.tokens[torch.arange(B), accepted.long()])
        accepted, bonus, cut = sglang.BlockwiseRejection.execute(**given, noise=again, cutoff_verify_lens=lens)
        assert torch.equal(accepted, whole.num_accepted.minimum(lens - 1)) and cut.any()
        assert torch.equal(accepted + cut, whole.num_accepted)
        for no_limit in (torch.full((B,), 1 << 40), torch.full((B,), (1 << 31) - 1, dtype=torch.int32)):
            once_more = sglang.RejectionNoise(noise.key, noise.counter - 1)
            found = sglang.BlockwiseRejection.execute(**given, noise=once_more, cutoff_verify_lens=no_limit)
            assert torch.equal(found[0], whole.num_accepted)
        assert torch.equal(bonus, whole.tokens[torch.arange(B), accepted.long()])


def test_blockwise_rejection_draws_anew_for_each_row_and_step():
    """Rows of one distribution and one key: with a wrong seed every request would get the same tokens."""
    noise, n = sglang.make_rejection_noise(3, "cpu"), 2000
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    seen = []
    for _ in range(2):
        _, bonus, _ = sglang.BlockwiseRejection.execute(
            candidates=torch.zeros(n, 1, dtype=torch.int64),
            target_logits=p.log().expand(n, 4),
            draft_logits=None,
            target_temperatures=torch.ones(n),
            draft_temperatures=torch.ones(n),
            noise=noise,
        )
        seen.append(bonus)
        assert testing.check_counts(bonus.bincount(minlength=4), p)
    assert 0.6 < (seen[0] != seen[1]).double().mean() < 0.8  # 0.7 of independent draws


def plain_tree(groups, selected, parent_numbers):
    """Return parents by node, with children in order."""
    node_of = {number: i + 1 for i, number in enumerate(selected)}
    parents = [-1] + [0 if number < 0 else node_of[number] for number in parent_numbers]
    return parents


SHAPES = [(1, 4, 5), (3, 1, 4), (2, 3, 6), (4, 4, 16), (5, 3, 20), (8, 3, 32), (8, 3, 33)]
MODES = [(*shape, mode) for shape in SHAPES for mode in (0, 1, 2) if mode < 2 or shape[2] <= 32]  # 32 bits a row


@pytest.mark.parametrize("topk, depth, nodes, mode", MODES)
def test_build_tree(topk, depth, nodes, mode):
    B, rng = 3, np.random.default_rng(nodes)
    made = [peer_walks.eagle(rng, topk, depth, nodes - 1) for _ in range(B)]
    parents = [plain_tree(*one) for one in made]
    lens = torch.tensor([5, 0, 11])
    size = 4 if nodes > 16 else 2 if nodes > 8 else 1
    sizes = (nodes * int(lens.sum() + nodes * B), B * nodes * nodes, B * nodes * size)
    mask = torch.full((sizes[mode],), mode != 2, dtype=torch.uint8 if mode == 2 else torch.bool)
    positions = torch.empty(B * nodes, dtype=torch.int64)
    places, first, sibling = torch.full((3, B, nodes), -1)
    groups, chosen = torch.tensor([one[0] for one in made]), torch.tensor([one[1] for one in made])
    assert groups.size(1) == topk * (depth - 1) + 1
    out = (mask, positions, places, first, sibling)
    groups = groups[:, :0] if depth == 1 else groups
    assert sglang.build_tree_kernel_efficient(groups, chosen, lens, *out, topk, depth, nodes, mode) is None
    assert torch.equal(places, torch.arange(B * nodes).view(B, nodes))
    at = 0
    for b, parent in enumerate(parents):
        ancestors = []
        for i in range(nodes):
            ancestors.append({i} | (ancestors[parent[i]] if i else set()))
            assert positions[b * nodes + i] == lens[b] + len(ancestors[i]) - 1
            children, child = [], int(first[b, i])
            while child >= 0:
                children.append(child)
                child = int(sibling[b, child])
            assert children == [c for c in range(nodes) if parent[c] == i]
        bits = torch.tensor([[j in ancestors[i] for j in range(nodes)] for i in range(nodes)])
        if mode == 0:
            n = nodes * (int(lens[b]) + nodes)
            rows, at = mask[at : at + n].view(nodes, -1), at + n
            assert rows[:, : int(lens[b])].all() and torch.equal(rows[:, int(lens[b]) :], bits)
        elif mode == 1:
            assert torch.equal(mask.view(B, nodes, nodes)[b], bits)
        else:
            words = [sum(1 << j for j in ancestors[i]) for i in range(nodes)]
            bytes_ = [list(word.to_bytes(size, "little")) for word in words]
            assert mask.view(B, nodes, size)[b].tolist() == bytes_


def test_build_tree_without_a_parent():
    """The parent of draft 4 is draft 1, which was not selected. Draft 4 becomes padding, which is nobody's child; the
    other nodes stay the same."""
    groups, chosen = torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 2, 4]])
    mask, positions = torch.ones(16, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)
    places, first, sibling = torch.full((3, 1, 4), 9)
    out = (mask, positions, places, first, sibling)
    sglang.build_tree_kernel_efficient(groups, chosen, torch.tensor([7]), *out, 2, 2, 4, 1)
    assert first.tolist() == [[1, 2, -1, -1]] and (sibling == -1).all()
    assert mask.view(4, 4).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    assert positions[:3].tolist() == [7, 8, 9]


@pytest.mark.parametrize("number", [2, 3])
def test_build_tree_of_a_parent_that_does_not_come_before(number):
    """Draft 2 names itself or draft 3 as its parent, so that it becomes no node's child."""
    groups, chosen = torch.tensor([[-1, number, 1]]), torch.tensor([[0, 2, 3]])
    places, first, sibling = torch.full((3, 1, 4), -1)
    out = (torch.ones(16, dtype=torch.bool), torch.zeros(4, dtype=torch.int64), places, first, sibling)
    sglang.build_tree_kernel_efficient(groups, chosen, torch.tensor([0]), *out, 2, 2, 4, 1)
    assert first[0, 0] == 1 and not (first[0, 1:] == 2).any() and out[0].view(4, 4)[2].tolist() == [0, 0, 1, 0]


def test_the_built_tree_is_what_the_others_take():
    """A tree built from SGLang's numbers is verified, and the expected tokens are kept."""
    # the root's two children, drafts 0 and 1, and both children of draft 0
    groups, chosen = torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 1, 2, 3]])
    places, first, sibling = torch.full((3, 1, 5), -1)
    out = (torch.ones(25, dtype=torch.bool), torch.zeros(5, dtype=torch.int64), places, first, sibling)
    sglang.build_tree_kernel_efficient(groups, chosen, torch.tensor([0]), *out, 2, 2, 5, 1)
    predicts, accept_index, accept_token_num = written = buffers(1, 5, 3)
    tokens = torch.tensor([[0, 10, 11, 12, 13]])
    sglang.verify_tree_greedy(*written, tokens, places, first, sibling, torch.tensor([[10, 13, 0, 0, 42]]))
    assert accept_index.tolist() == [[0, 1, 4]] and accept_token_num.tolist() == [2]
    assert predicts.tolist() == [10, 13, UNUSED, UNUSED, 42]


def test_no_requests():
    out, ids = buffers(0, N, S), torch.empty(0, N, dtype=torch.int64)
    p = torch.empty(0, N, V)
    sglang.tree_speculative_sampling_target_only(*out, ids, ids, ids, ids, torch.empty(0, N), torch.empty(0), p)
    sglang.verify_tree_greedy(*out, ids, ids, ids, ids, ids)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"accept_index": torch.zeros(2, 0, dtype=torch.int32)}, r"accept_index must have the root's column"),
        ({"accept_index": torch.zeros(3, S, dtype=torch.int32)}, r"accept_index must have shape \[B=2, S=5\]"),
        ({"accept_token_num": torch.zeros(3, dtype=torch.int32)}, r"accept_token_num must have shape \[B=2\]"),
    ],
)
def test_buffers_that_do_not_fit(change, says):
    tokens, places, first, sibling = random_trees(21, B=2)
    names = ("predicts", "accept_index", "accept_token_num")
    out = dict(zip(names, buffers(2, N, S))) | change
    with pytest.raises(ValueError, match="verify_tree_greedy: " + says):
        sglang.verify_tree_greedy(
            **out,
            candidates=tokens,
            retrive_index=places,
            retrive_next_token=first,
            retrive_next_sibling=sibling,
            target_predict=tokens,
        )


def test_modes_that_do_not_exist():
    ids = torch.zeros(1, 33, dtype=torch.int64)
    for mode, nodes, says in ((3, 4, "tree_mask_mode must be 0, 1 or 2, got 3"), (2, 33, "at most 32")):
        with pytest.raises(ValueError, match=says):
            given = (ids, ids[:, : nodes - 1], ids[0, :1], *[ids] * 5)
            sglang.build_tree_kernel_efficient(*given, 1, 2, nodes, mode)
