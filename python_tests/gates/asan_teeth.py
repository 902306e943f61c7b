# SPDX-License-Identifier: Apache-2.0
"""Check that both sanitizers are active: the library calls them, and a tensor larger than its memory ends the
process."""

import subprocess
import sys

import specdec_kernels as sk

PAST_THE_END = """
import torch
import specdec_kernels as sk
rows = torch.zeros(1, 4096)
rows.untyped_storage().resize_(4096)
sk.row_stats(rows)
"""

library = sk.backends._LIBRARY.read_bytes()
assert b"__asan_report_load" in library and b"__ubsan_handle_add_overflow_abort" in library, sk.backends._LIBRARY
done = subprocess.run([sys.executable, "-P", "-c", PAST_THE_END], capture_output=True, text=True)
assert done.returncode and "AddressSanitizer: heap-buffer-overflow" in done.stderr, done.stderr[-2000:]
print("the sanitizers watch", sk.backends._LIBRARY)
