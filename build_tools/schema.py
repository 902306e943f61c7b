# SPDX-License-Identifier: Apache-2.0
"""What csrc/schema.cpp defines, as a header: made from specdec_kernels/arguments.py, which is loaded by its path, since
the package needs the library that is being built."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ARGUMENTS = Path(__file__).parent.parent / "specdec_kernels" / "arguments.py"


def header() -> str:
    spec = spec_from_file_location("arguments", ARGUMENTS)
    arguments = module_from_spec(spec)
    spec.loader.exec_module(arguments)
    each = [f'    "{text}",\n' for op in arguments.TABLE for text in arguments.schemas(op)]
    return f"constexpr const char* kSchemas[] = {{\n{''.join(each)}}};\n"


def write(folder: Path) -> None:
    """Where it says something new: what includes it is compiled again."""
    path, text = folder / "schemas.h", header()
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
