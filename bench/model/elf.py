# SPDX-License-Identifier: Apache-2.0
"""What a cubin notes of its kernels beside their code: registers, frame, shared memory, threads, and where indirect
branches may go."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

# Of .nv.info, as cuobjdump -elf names them (EIATTR_...)
MAX_THREADS, REQUIRED_THREADS, INDIRECT_TARGETS, REGISTER_COUNT, FRAME_SIZE = 0x05, 0x10, 0x34, 0x2F, 0x11
HAS_BODY = 4  # the format of a note that carries bytes of its own


@dataclass
class Note:
    registers: int = 0
    frame: int = 0  # bytes of stack
    shared: int = 0  # bytes, static
    threads: int = 0  # of a block: the most, or required; 0 if the launch bounds say nothing
    targets: dict[int, list[int]] = field(default_factory=dict)  # of the indirect branch at an address
    bytes: int = 0  # of code
    routines: dict[int, str] = field(default_factory=dict)  # address -> the function of ours that is called there


class Section(NamedTuple):
    name: str
    at: int
    size: int
    link: int
    info: int


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _sections(data: bytes) -> list[Section]:
    start = struct.unpack_from("<Q", data, 40)[0]
    size, count, names = struct.unpack_from("<HHH", data, 58)
    raw = [struct.unpack_from("<IIQQQQII", data, start + i * size) for i in range(count)]
    return [Section(_text(data, raw[names][4] + r[0]), r[4], r[5], r[6], r[7]) for r in raw]


def _attributes(data: bytes, section: Section) -> Iterator[tuple[int, bytes]]:
    at, end = section.at, section.at + section.size
    while at + 4 <= end:
        kind, attribute, value = data[at], data[at + 1], struct.unpack_from("<H", data, at + 2)[0]
        at += 4
        if kind == HAS_BODY:
            yield attribute, data[at : at + value]
            at += value


def _targets(body: bytes) -> Iterator[tuple[int, list[int]]]:
    """Address, two words, a count, so many targets; and again."""
    at = 0
    while at + 16 <= len(body):
        branch, _, _, n = struct.unpack_from("<IIII", body, at)
        if at + 16 + 4 * n > len(body):
            return
        yield branch, list(struct.unpack_from(f"<{n}I", body, at + 16))
        at += 16 + 4 * n


def _symbols(data: bytes, sections: list[Section]) -> dict[int, tuple[str, int]]:
    """index -> name, and where it lies in its section"""
    found = {}
    for section in sections:
        if section.name == ".symtab":
            for k in range(section.size // 24):
                name, _, value = struct.unpack_from("<IIQ", data, section.at + 24 * k)
                found[k] = _text(data, sections[section.link].at + name), value
    return found


def notes(path: str | Path) -> dict[str, Note]:
    """function -> what the cubin says of it"""
    data = Path(path).read_bytes()
    sections = _sections(data)
    symbols = _symbols(data, sections)
    found: dict[str, Note] = defaultdict(Note)
    for section in sections:
        name = section.name
        if name.startswith(".text."):
            note = found[name[6:]]
            note.registers, note.bytes = max(note.registers, section.info >> 24), section.size
        elif name.startswith(".nv.shared."):
            found[name[11:]].shared = section.size
        elif name == ".nv.info" or name.startswith(".nv.info."):
            for attribute, body in _attributes(data, section):
                _note(found, name[9:], attribute, body, {k: symbol for k, (symbol, _) in symbols.items()})
    for symbol, at in symbols.values():  # $kernel$routine
        _, _, inside = symbol.partition("$")
        kernel, _, routine = inside.partition("$")
        if routine and kernel in found:
            found[kernel].routines[at] = routine
    return found


def _note(found: dict[str, Note], function: str, attribute: int, body: bytes, symbols: dict[int, str]) -> None:
    if function:
        if attribute in (MAX_THREADS, REQUIRED_THREADS) and len(body) >= 12:
            x, y, z = struct.unpack_from("<III", body)
            found[function].threads = x * max(y, 1) * max(z, 1)
        elif attribute == INDIRECT_TARGETS:
            found[function].targets.update(_targets(body))
    elif attribute in (REGISTER_COUNT, FRAME_SIZE) and len(body) == 8:
        index, value = struct.unpack("<II", body)
        if index in symbols:
            note = found[symbols[index]]
            if attribute == REGISTER_COUNT:
                note.registers = max(note.registers, value)
            else:
                note.frame = max(note.frame, value)
