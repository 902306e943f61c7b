# SPDX-License-Identifier: Apache-2.0
"""Passes of somebody else's model: without dropout, and with every module's training mode as it was afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakKeyDictionary

from torch import nn

__all__ = ["evaluating"]

_LOCK = Lock()
_RUNNING: WeakKeyDictionary = WeakKeyDictionary()  # model -> how many passes it is in, the modules that were training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put all modules of `model` into evaluation mode for a pass, and those that were training back behind it.

    Passes may overlap (several threads): the first one switches, the last one switches back.
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
    """One by one: train() of a module may do more, and what it is called on need not be in one mode."""
    for module in modules:
        module.training = training
