# SPDX-License-Identifier: Apache-2.0
"""Passes of a caller's model in evaluation mode, after which every module has its old training mode again."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakKeyDictionary

from torch import nn

__all__ = ["evaluating"]

_LOCK = Lock()
# model -> number of running passes, modules to put back into training mode
_RUNNING: WeakKeyDictionary = WeakKeyDictionary()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put all modules of `model` into evaluation mode for a pass, and restore training modes after it.

    Passes may overlap (several threads): the first one switches, and the last one switches back.
    """
    with _LOCK:
        passes, training = _RUNNING.get(model, (0, []))
        if not passes:
            training = [module for module in model.modules() if module.training]
            _switch(training, False)
        _RUNNING[model] = passes + 1, training
    try:
        yield
    finally:
        with _LOCK:
            passes, training = _RUNNING.pop(model)
            if passes > 1:
                _RUNNING[model] = passes - 1, training
            else:
                _switch(training, True)


def _switch(modules: list[nn.Module], training: bool) -> None:
    """Set the flag module by module: train() would also change submodules, and may be overridden to do more."""
    for module in modules:
        module.training = training
