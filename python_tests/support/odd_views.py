# SPDX-License-Identifier: Apache-2.0
"""A view of rows that negates the logits of odd ids, added as a developer would add it.

Each backend gets a new file, and changes in the one place that reads rows without ids.
"""

from typing import NamedTuple

SPDX = "SPDX-License-Identifier: Apache-2.0\n"


class View(NamedTuple):
    place: str  # the file that reads rows
    file: str  # the new file beside it
    text: str
    lines: dict[str, str]  # text that occurs once in `place`, and what replaces it

    def add(self, tree):
        place = tree / self.place
        comment = "# " if self.file.endswith(".py") else "// "
        place.with_name(self.file).write_text(comment + SPDX + self.text)
        text = place.read_text()
        for line, with_view in self.lines.items():
            assert text.count(line) == 1, line
            text = text.replace(line, with_view)
        place.write_text(text)


CPU = View(
    "csrc/cpu/row_reader.h",
    "odd_view.h",
    """#pragma once

namespace specdec {

inline float viewed(float z, int64_t v) { return v % 2 ? -z : z; }

// Copies n entries to buf, and negates those of odd ids. z[0] has an even id. Entries from m on are padding and stay.
inline const float* viewed(const float* z, int m, int n, float* buf) {
  std::copy(z, z + padded(n), buf);
  for (int i = 1; i < m; i += 2) buf[i] = -buf[i];
  return buf;
}

}  // namespace specdec
""",
    {
        '#include "simd_kernels.h"': '#include "simd_kernels.h"\n#include "odd_view.h"',
        "return number_at(row.pointer(), row.dtype, place(row, v));": (
            "return viewed(number_at(row.pointer(), row.dtype, place(row, v)), v);"
        ),
        "n == padded(n) && !changes ? z : ": "",
        "return kernels.load(at(row, c), m, n, pad, buf);": (
            "return viewed(kernels.load(at(row, c), m, n, pad, buf), m, n, buf);"
        ),
        "const Entries raw = at(row, c);": (
            "const Entries raw = viewed(kernels.load(at(row, c), m, m, -HUGE_VALF, buf), m, m, buf);"
        ),
    },
)
CUDA = View(
    "csrc/cuda/groups.cuh",
    "odd_view.cuh",
    """#pragma once

namespace specdec {

SPECDEC_HD float viewed(float z, int64_t v) { return v % 2 ? -z : z; }

// The bits of entry v, of 4 bytes or 2
SPECDEC_HD uint32_t viewed(uint32_t bits, bool wide, int64_t v) {
  return v % 2 ? bits ^ (wide ? 0x80000000u : 0x8000u) : bits;
}

// Negates the entries of odd ids in n words, the first of which begins at an even id: the upper half of each word if
// entries have 2 bytes, every second word if they have 4.
SPECDEC_HD void view(uint32_t* words, int n, bool wide) {
  for (int w = 0; w < n; ++w) words[w] ^= wide && w % 2 == 0 ? 0 : 0x80000000u;
}

}  // namespace specdec
""",
    {
        '#include "seen.cuh"': '#include "seen.cuh"\n#include "odd_view.cuh"',
        "return number_at(memory_of(row), row.dtype, v);": "return viewed(number_at(memory_of(row), row.dtype, v), v);",
        ": number_at(data_, dtype, v);": ": viewed(number_at(data_, dtype, v), v);",
        "words[4 * h + 3] = x.w;\n    }": "words[4 * h + 3] = x.w;\n    }\n    view(words, kWords, kSize == 4);",
        # Entry r has the id begin + step_of(r). step_of(r) and r are both even or both odd.
        "? __ldg(from + step_of(r)) : pad;": "? viewed(__ldg(from + step_of(r)), begin + r) : pad;",
        "? __ldg(from + step_of(r)) : pad_bits;": (
            "? uint16_t(viewed(__ldg(from + step_of(r)), false, begin + r)) : pad_bits;"
        ),
        "z[r] = __uint_as_float(wide ?": "z[r] = __uint_as_float(viewed(wide ?",
        ": __ldg(reinterpret_cast<const uint16_t*>(at)));": (
            ": __ldg(reinterpret_cast<const uint16_t*>(at)), wide, first + (r < left ? r : left - 1)));"
        ),
    },
)
TRITON = View(
    "specdec_kernels/triton/core/memory.py",
    "odd_view.py",
    """
import triton
import triton.language as tl


@triton.jit
def viewed(z, v, inside):
    return tl.where(inside & (v % 2 == 1), -z, z)
""",
    {
        "import triton.language as tl\n": "import triton.language as tl\n\nfrom .odd_view import viewed\n",
        "    return tl.load(side.data + at, mask=mask, other=other).to(tl.float32)": (
            "    z = tl.load(side.data + at, mask=mask, other=other).to(tl.float32)\n"
            "    return viewed(z, begin[:, None] + tl.arange(0, S.WIDTH)[None, :], mask)"
        ),
        "    return get_value(side.data + offset_of(side, b, row) + v, mask, other).to(tl.float32)": (
            "    return viewed(get_value(side.data + offset_of(side, b, row) + v, mask, other).to(tl.float32), v, mask)"
        ),
    },
)
REFERENCE = View(
    "specdec_kernels/reference/law.py",
    "odd_view.py",
    """
def viewed(z):
    z = z.copy()
    z[..., 1::2] *= -1
    return z
""",
    {
        "import torch\n": "import torch\n\nfrom .odd_view import viewed\n",
        "    return in_float64(t)\n": (
            "    return in_float64(t) if t.dtype == torch.float64 else viewed(in_float64(t))\n"
        ),
    },
)
VIEWS = {"cpu": CPU, "cuda-on-cpu": CUDA, "triton-interpret": TRITON, "reference": REFERENCE}
