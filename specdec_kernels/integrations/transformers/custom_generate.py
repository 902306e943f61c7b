# SPDX-License-Identifier: Apache-2.0
"""The decode loop as a ``custom_generate`` function, which transformers' ``generate`` calls after its preparation."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch

from specdec_kernels.integrations.transformers import arguments, processors
from specdec_kernels.integrations.transformers.criteria import Criteria

_OP = "speculative"
_CACHES = ("cache", "past_key_values")  # the cache's name in transformers from 5.24 on, and before that
_PREPARED = {"attention_mask", "position_ids", *_CACHES, "use_cache", "logits_to_keep", "cache_position"}
_TEXT_AT_0 = ("mm_token_type_ids",)  # each token's modality; 0 is text
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_DRAFTS = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")  # options that a drafter replaces


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
    stream_to: Any = None,
    stop: tuple[str, ...] = (),
    stop_tokenizer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode by ``specdec_kernels.decode`` within ``model.generate(..., custom_generate=speculative, drafter=...)``.

    Any batch may be given, with padding on the left as the attention mask shows. Decoding is greedy or, with do_sample,
    uses the configuration's temperature, top_k, top_p and min_p. min_p is applied before top_k and top_p here, so the
    distribution differs from transformers' own if both min_p and top_p cut something off. Greedy tokens equal those of
    plain ``generate``, up to the model's rounding. The model may be on a GPU, with its drafter on the same device. Row
    b of a batch uses ``seed + b``, so its tokens do not depend on the others.

    Repetition penalty, sequence bias, bad words, no_repeat_ngram_size, minimum lengths, suppressed and forced tokens
    and prefix_allowed_tokens_fn are supported: each draft is verified under those of its own position.
    StopStringCriteria are checked after each token, max_time after each step.

    ``generate`` does not pass these arguments to a custom_generate: streamer, assistant_model, tokenizer and (with it)
    stop_strings. Use stream_to, drafter, stop and stop_tokenizer instead.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs: from ``generate``.
        drafter: a Drafter of specdec_kernels.decode (models, lookup, trees), or a transformers model of the same
            vocabulary, which then drafts 4 tokens at a time. None: plain decoding by this loop.
        target: ``adapt(model)``, made once and passed to every call; it is faster than the default. On a GPU
            ``Graphed(adapt(model))`` is faster still. None: the model's own forward pass; the model is not changed.
        verify: "token", "block" or "race", for chains; "race" also with a ``TreeDrafter`` for it.
        rule, alpha: how drafts are accepted, as in ``verify_chain``.
        seed: the seed of sampled rows, any int (its low 64 bits count); None draws one from torch's generator.
        max_batch: the most rows decoded at once.
        output: an Output of specdec_kernels.decode, filled with statistics.
        stream_to: a transformers streamer, for one prompt. It gets the prompt, then the tokens of each step. Its end()
            is always called, even if an error is raised here.
        stop: strings that end a row, after the token that completes one. Special tokens match as they are written.
        stop_tokenizer: the tokenizer that decodes text for `stop`.

    Returns:
        Ids [B, prompt + longest continuation], padded as ``generate`` does; inside a GenerateDecoderOnlyOutput if
        return_dict_in_generate is set.

    Raises:
        TypeError, ValueError: raised before anything is decoded, naming what is not supported: beams and other modes,
            other processors and criteria, a finite bias of several ids, scores and hidden states, images, a cache that
            is not empty, models that the loop does not support.
        RuntimeError: a row ended in an error.
    """
    with _ending(stream_to):
        arguments.check(_OP, drafter, target, verify, rule, alpha, output, stop, stop_tokenizer)
        seed, max_batch = arguments.seed(_OP, seed), arguments.max_batch(_OP, max_batch)
        _refuse(model, generation_config, model_kwargs)
        options: dict[str, Any] = {"rule": rule, "alpha": alpha, "stop": tuple(stop)}
        ends = Criteria(_OP, stopping_criteria)
        options |= {"max_new_tokens": ends.max_length - input_ids.size(1), "eos": ends.eos}
        target = _served(model) if target is None else target
        given = logits_processor, generation_config.do_sample, input_ids, target.vocab_size, options
        of_row = processors.parameters(_OP, *given, model_kwargs.get("attention_mask"))
        requests = _requests(input_ids, model_kwargs, seed, options, of_row)
        if stream_to is not None:
            arguments.one_prompt(_OP, input_ids)
            stream_to.put(input_ids.cpu())
        loop = {"verify": verify, "max_batch": max_batch, "tokenizer": stop_tokenizer if stop else None}
        tokens = _decode(target, drafter, requests, output, stream_to, loop, input_ids, ends)
    ids = _padded(input_ids, tokens, generation_config)
    if not generation_config.return_dict_in_generate:
        return ids
    from transformers.generation import GenerateDecoderOnlyOutput

    return GenerateDecoderOnlyOutput(sequences=ids)


@contextmanager
def _ending(stream_to):
    """Call the streamer's end() at the end, also after an error, so that its reader does not wait forever."""
    arguments.check_streamer(_OP, stream_to)
    try:
        yield
    finally:
        if stream_to is not None:
            stream_to.end()


def _served(model):
    from specdec_kernels import decode

    return decode.HFModel(model, pack=False)


def _requests(input_ids, model_kwargs, seed, options, of_row):
    from specdec_kernels import decode

    mask, positions = (_host(model_kwargs.get(name)) for name in ("attention_mask", "position_ids"))
    prompts = _prompts(input_ids.cpu(), mask)
    _check_positions(positions, mask)
    return [decode.Request(ids, seed=seed + b, **options | of_row(b)) for b, ids in enumerate(prompts)]


def _decode(target, drafter, requests, output, stream_to, loop, input_ids, ends) -> list[list[int]]:
    """Return the new tokens of each row; put those of each step to the streamer."""
    from specdec_kernels import decode

    drafter = decode.ModelDrafter(_served(drafter)) if isinstance(drafter, torch.nn.Module) else drafter
    capacity = max(len(r.prompt) + r.max_new_tokens for r in requests)
    most = min(loop.pop("max_batch") or len(requests), len(requests))
    session = decode.Session(target, drafter, max_batch=most, capacity=capacity, op=_OP, **loop)
    found: list[list[int]] = [[] for _ in requests]
    try:
        for request in requests:
            session.submit(request)
        if output is not None:
            output.results[:], output.stats = session.results.values(), session.stats
        while session.busy and not (any(found) and ends.over):
            for event in session.step():
                if event.finished == "error":
                    raise RuntimeError(f"{_OP}: row {event.index} ended in an error: {event.error}")
                own = found[event.index]
                cut = ends.taken(input_ids[event.index], own, event.tokens)
                if cut is not None and event.finished is None:
                    session.cancel(event.index)
                own += event.tokens[:cut]
                if cut is not None:
                    session.results[event.index].cut(len(own))
                if stream_to is not None and event.tokens:
                    stream_to.put(torch.tensor(event.tokens[:cut], dtype=torch.int64, device="cpu"))
    finally:
        session.close()
    return found


def _is_asked(x) -> bool:
    """Return whether an argument is set; ``generate`` also passes empty ones."""
    if isinstance(x, dict):
        return any(map(_is_asked, x.values()))
    if isinstance(x, (list, tuple)):
        return any(map(_is_asked, x))
    return x is not None and x is not False


def _refuse(model, config, model_kwargs):
    """Raise ValueError for everything that the loop does not support."""
    wrong = [f"{name}=True" for name in _OUTPUTS if getattr(config, name, None)]
    wrong += [f"{name}={x}, give a drafter" for name in _DRAFTS if (x := getattr(config, name, None))]
    wrong += [f"num_beams={config.num_beams}"] if (config.num_beams or 1) != 1 else []
    mode = str(getattr(config.get_generation_mode(), "value", None))
    wrong += [] if wrong or mode in ("greedy_search", "sample") else [mode.replace("_", " ")]
    given = {name for name, x in model_kwargs.items() if name not in _PREPARED and _is_asked(x)}
    wrong += sorted(name for name in given if name not in _TEXT_AT_0 or model_kwargs[name].any())
    wrong += ["an encoder-decoder model"] if model.config.is_encoder_decoder else []
    caches = [x for name in _CACHES if (x := model_kwargs.get(name)) is not None]
    wrong += ["a cache that holds tokens"] if any(map(_holds_tokens, caches)) else []
    if wrong:
        raise ValueError(f"{_OP}: cannot serve {', '.join(wrong)}")


def _holds_tokens(cache) -> bool:
    try:
        return bool(cache.get_seq_length())
    except ValueError:  # raised if the first layer is of a kind that has no length
        return False


def _host(x) -> torch.Tensor | None:
    return None if x is None else x.cpu()


def _prompts(input_ids, mask) -> list[list[int]]:
    if mask is None:
        return input_ids.tolist()
    if not mask[:, -1].all():
        raise ValueError(f"{_OP}: prompts must be padded on the left, got an attention_mask that ends in 0")
    return [ids[kept].tolist() for ids, kept in zip(input_ids, mask.bool())]


def _check_positions(positions, mask):
    """Check that positions count the tokens that are not padding from 0, as ``generate`` passes them.

    They are [B, T], or have a leading dimension if the model has separate rows of positions for images.
    """
    if positions is None:
        return
    kept = torch.ones(positions.shape[-2:], dtype=torch.int64, device="cpu") if mask is None else mask
    if positions.shape[-2:] != kept.shape or ((positions != kept.cumsum(-1) - 1) & kept.bool()).any():
        raise ValueError(f"{_OP}: position_ids must count the tokens from 0, got others")


def _padded(input_ids, tokens, config):
    """Return prompts and continuations in one tensor."""
    pad = getattr(config, "_pad_token_tensor", None)
    pad = config.pad_token_id if pad is None else int(pad)
    longest = max(map(len, tokens))
    new = torch.full((len(tokens), longest), 0 if pad is None else pad, dtype=input_ids.dtype, device="cpu")
    for row, ids in zip(new, tokens):
        row[: len(ids)] = torch.tensor(ids, dtype=torch.int64, device="cpu")
    return torch.cat([input_ids, new.to(input_ids.device)], 1)
