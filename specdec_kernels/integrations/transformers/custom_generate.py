# SPDX-License-Identifier: Apache-2.0
"""The decode loop as a ``custom_generate`` of transformers' ``generate``, which has prepared everything by then."""

from __future__ import annotations

from typing import Any

import torch

_OP = "speculative"
_NO_CHANGE = ("LogitNormalization",)  # of the law that is drawn from
_CACHES = ("cache", "past_key_values")  # what transformers calls it from 5.24 on, and before
_PREPARED = {"attention_mask", "position_ids", *_CACHES, "use_cache", "logits_to_keep", "cache_position"}
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_DRAFTS = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")  # here a drafter says it


def speculative(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any = (),
    stopping_criteria: Any = (),
    generation_config: Any = None,
    *,
    drafter: Any = None,
    target: Any = None,
    verify: str = "token",
    rule: str = "exact",
    alpha: float | tuple[float, float] | None = None,
    seed: int | None = None,
    max_batch: int | None = None,
    output: Any = None,
    **model_kwargs: Any,
) -> Any:
    """``model.generate(..., custom_generate=speculative, drafter=...)`` decodes by ``specdec_kernels.decode``.

    Any batch, padded on the left or by an attention mask; greedy or, with do_sample, by the configuration's
    temperature, top_k, top_p and min_p, the last of which comes first here (the law differs from transformers' own
    where both min_p and top_p cut something off). Greedy tokens are those of plain ``generate``, up to the rounding of
    the model, which may be on a GPU, its drafter beside it. Row b of a batch draws by ``seed + b``, so its tokens do
    not depend on the others.

    What this loop cannot do raises, before anything is decoded: beams, other processors and criteria than max_length
    and eos, scores and hidden states, a cache that holds something already, models with a sliding window. ``generate``
    hands neither a streamer nor an assistant_model on: the loop's own ``stream`` yields tokens as they arrive, and a
    model that drafts is ``drafter``.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs: from ``generate``.
        drafter: a Drafter of specdec_kernels.decode (models, lookup, trees), or a transformers model of the same
            vocabulary, which then drafts 4 tokens at a time. None: plain decoding by this loop.
        target: ``adapt(model)``, made once, spares the time that it takes and is faster, on a GPU
            ``Graphed(adapt(model))`` the faster one; by default the model's own
            forward pass, which is left as it is.
        verify: "token" or "block", of chains.
        rule, alpha: how drafts are accepted, as in ``verify_chain``.
        seed: of sampled rows; None draws one from torch's generator.
        max_batch: rows decoded at once.
        output: an Output of specdec_kernels.decode, filled with statistics.

    Returns:
        Ids [B, prompt + longest continuation], padded as ``generate`` does; within a GenerateDecoderOnlyOutput where
        return_dict_in_generate asks for it.

    Raises:
        ValueError: naming what cannot be served.
    """
    from specdec_kernels import decode

    _refuse(model, generation_config, model_kwargs)
    sampling = _sampling(logits_processor, generation_config.do_sample)
    longest, eos = _ends(stopping_criteria)
    first = int(torch.randint(1 << 62, (), device="cpu")) if seed is None else seed
    options: dict[str, Any] = {"max_new_tokens": longest - input_ids.size(1), "eos": eos, "rule": rule, "alpha": alpha}
    mask, positions = (_host(model_kwargs.get(name)) for name in ("attention_mask", "position_ids"))
    prompts = _prompts(input_ids.cpu(), mask)
    _check_positions(positions, mask)
    requests = [decode.Request(ids, seed=first + b, **options, **sampling) for b, ids in enumerate(prompts)]
    if isinstance(drafter, torch.nn.Module):
        drafter = decode.ModelDrafter(decode.HFModel(drafter, pack=False))
    target = decode.HFModel(model, pack=False) if target is None else target
    output = decode.Output() if output is None else output
    for _ in decode.stream(target, requests, drafter, verify=verify, max_batch=max_batch, output=output):
        pass
    output.check()
    ids = _padded(input_ids, [result.tokens for result in output.results], generation_config)
    if not generation_config.return_dict_in_generate:
        return ids
    from transformers.generation import GenerateDecoderOnlyOutput

    return GenerateDecoderOnlyOutput(sequences=ids)


def _refuse(model, config, model_kwargs):
    """What the loop does not do."""
    wrong = [f"{name}=True" for name in _OUTPUTS if getattr(config, name, None)]
    wrong += [f"{name}={x}, give a drafter" for name in _DRAFTS if (x := getattr(config, name, None))]
    wrong += [f"num_beams={config.num_beams}"] if (config.num_beams or 1) != 1 else []
    wrong += [name for name, x in model_kwargs.items() if name not in _PREPARED and x is not None]
    wrong += ["an encoder-decoder model"] if model.config.is_encoder_decoder else []
    caches = [x for name in _CACHES if (x := model_kwargs.get(name)) is not None]
    wrong += ["a cache that holds tokens"] if any(cache.get_seq_length() for cache in caches) else []
    if wrong:
        raise ValueError(f"{_OP}: cannot serve {', '.join(wrong)}")


def _sampling(processors, do_sample) -> dict[str, Any]:
    """What the processors that ``generate`` has prepared come to."""
    wanted = {
        "TemperatureLogitsWarper": "temperature",
        "TopKLogitsWarper": "top_k",
        "TopPLogitsWarper": "top_p",
        "MinPLogitsWarper": "min_p",
    }
    found: dict[str, Any] = {"temperature": 1.0 if do_sample else 0.0}
    for processor in processors:
        kind = type(processor).__name__
        if kind in _NO_CHANGE:
            continue
        name = wanted.get(kind)
        if name is None:
            raise ValueError(f"{_OP}: logits_processor must be temperature, top_k, top_p and min_p alone, got {kind}")
        if name in ("top_p", "min_p") and getattr(processor, "min_tokens_to_keep", 1) > 1:
            raise ValueError(f"{_OP}: min_tokens_to_keep must be 1, got {processor.min_tokens_to_keep} of {kind}")
        if do_sample:
            found[name] = getattr(processor, name)
    return found


def _ends(criteria) -> tuple[int, tuple[int, ...]]:
    """max_length and the ids that end a request."""
    longest: list[int] = []
    eos: list[int] = []
    for criterion in criteria:
        kind = type(criterion).__name__
        if kind == "MaxLengthCriteria":
            longest.append(int(criterion.max_length))
        elif kind == "EosTokenCriteria":
            eos += torch.as_tensor(criterion.eos_token_id, device="cpu").flatten().tolist()
        else:
            raise ValueError(f"{_OP}: stopping_criteria must be max_length and eos alone, got {kind}")
    if not longest:
        raise ValueError(f"{_OP}: stopping_criteria must hold max_length, got none")
    return min(longest), tuple(eos)


def _host(x) -> torch.Tensor | None:
    return None if x is None else x.cpu()


def _prompts(input_ids, mask) -> list[list[int]]:
    if mask is None:
        return input_ids.tolist()
    if not mask[:, -1].all():
        raise ValueError(f"{_OP}: prompts must be padded on the left, got an attention_mask that ends in 0")
    return [ids[kept].tolist() for ids, kept in zip(input_ids, mask.bool())]


def _check_positions(positions, mask):
    """Those that ``generate`` gives: a token's number among those that are not padding."""
    if positions is None:
        return
    kept = torch.ones_like(positions) if mask is None else mask
    if positions.shape != kept.shape or ((positions != kept.cumsum(-1) - 1) & kept.bool()).any():
        raise ValueError(f"{_OP}: position_ids must count the tokens from 0, got others")


def _padded(input_ids, tokens, config):
    """Prompts and continuations in one tensor."""
    pad = getattr(config, "_pad_token_tensor", None)
    pad = config.pad_token_id if pad is None else int(pad)
    longest = max(map(len, tokens))
    new = torch.full((len(tokens), longest), 0 if pad is None else pad, dtype=input_ids.dtype, device="cpu")
    for row, ids in zip(new, tokens):
        row[: len(ids)] = torch.tensor(ids, dtype=torch.int64, device="cpu")
    return torch.cat([input_ids, new.to(input_ids.device)], 1)
