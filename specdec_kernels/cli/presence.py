# SPDX-License-Identifier: Apache-2.0
"""An early check that a model exists. Without it, loading a model that does not exist would wait half a minute for the
network, and a wrong draft would show only after its target was loaded."""

from pathlib import Path

from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError
from transformers.utils import ADAPTER_CONFIG_NAME

from specdec_kernels.decode.models.layer_draft import is_layer_draft
from specdec_kernels.decode.models.load import ON_THE_HUB, PACKAGED, packaged

__all__ = ["check_there"]

_SECONDS = 10.0  # timeout of the request to the hub


def check_there(option: str, name: str) -> None:
    """Raise ValueError, in one line, if `name` is no alias, file, folder, cached model or model on the hub."""
    if Path(name).exists():
        _check_kind(option, name)
        return
    if name in PACKAGED:
        try:
            packaged(name)
        except ValueError as error:
            raise ValueError(f"{option} {error}") from None
        return
    if name.endswith(".gguf"):
        raise ValueError(f"{option} {name}: no such file")
    if not ON_THE_HUB.fullmatch(name):
        raise ValueError(f"{option} {name}: no such folder")
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    missing = f"{option} {name}: no such folder, no model of this name in the cache"
    if constants.HF_HUB_OFFLINE:
        raise ValueError(f"{missing}, and HF_HUB_OFFLINE is set")
    try:
        HfApi().model_info(name, timeout=_SECONDS)
    except GatedRepoError:
        raise ValueError(f"{option} {name}: the hub gives this model only to those who asked for it") from None
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "an error")
        raise ValueError(f"{missing}, and none on the hub that can be read (it answers {status})") from None
    except Exception as error:  # no network; the type of error depends on the hub's client
        raise ValueError(f"{missing}, and the hub cannot be reached ({type(error).__name__})") from None


def _check_kind(option: str, name: str) -> None:
    """Raise ValueError for a file or folder that holds no model, or a draft where a target is wanted."""
    path = Path(name)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(f"{option} {name}: a file must be a .gguf file")
    elif not any((path / config).is_file() for config in ("config.json", ADAPTER_CONFIG_NAME)):
        raise ValueError(f"{option} {name}: no model, the folder has no config.json")
    elif option == "--target" and is_layer_draft(path):
        raise ValueError(f"{option} {name}: a layer draft, which only --draft takes")
