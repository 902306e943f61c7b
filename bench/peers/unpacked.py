# SPDX-License-Identifier: Apache-2.0
"""Modules of a package that is too much to install, from a folder with its Python files: its packages are bare folders,
whose __init__.py is not run, so that only the modules which a kernel imports are needed."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from bench.harness import Unavailable


class _BarePackages:
    """Finds a package's folders; the modules in them are then found the usual way."""

    def __init__(self, package: str, folder: str) -> None:
        self.package, self.folder = package, folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        location = os.path.join(self.folder, *name.split("."))
        if name.split(".")[0] != self.package or not os.path.isdir(location):
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [location]
        return spec


def module(name: str, variable: str, stand_ins: dict[str, ModuleType] | None = None) -> ModuleType:
    """Module `name`, from the folder that the environment's `variable` names, or installed. stand_ins: modules that it
    imports and whose like there is here."""
    folder = os.environ.get(variable)
    if folder:
        sys.modules.update(stand_ins or {})
        sys.meta_path.insert(0, _BarePackages(name.split(".")[0], folder))
    try:
        return importlib.import_module(name)
    except Exception as error:  # its own imports look for compilers and devices
        hint = f"in {variable}={folder}" if folder else f"not installed, and {variable} names no folder"
        raise Unavailable(f"{hint} ({type(error).__name__}: {error})".splitlines()[0]) from error
