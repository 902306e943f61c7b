# SPDX-License-Identifier: Apache-2.0
"""Import of modules from a folder with a package's Python files, for packages too large to install.

No __init__.py is run, so only the modules that a kernel imports are needed.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from bench.harness import Unavailable


class _BarePackages:
    """A finder of a package's folders. The modules in them are then found in the usual way."""

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
    """Import module `name`, from the folder in the environment variable `variable`, or as installed.

    stand_ins: replacements for modules that it imports.
    """
    folder = os.environ.get(variable)
    if folder:
        sys.modules.update(stand_ins or {})
        sys.meta_path.insert(0, _BarePackages(name.split(".")[0], folder))
    try:
        return importlib.import_module(name)
    except Exception as error:  # its imports look for compilers and devices
        hint = f"in {variable}={folder}" if folder else f"not installed, and {variable} names no folder"
        raise Unavailable(f"{hint} ({type(error).__name__}: {error})".splitlines()[0]) from error
