# SPDX-License-Identifier: Apache-2.0
"""``python -m specdec_kernels cache``: list or remove the models unpacked into the user's cache."""

from specdec_kernels import user_cache


def run(args) -> None:
    entries = user_cache.entries()
    for path, size in entries.items():
        print(f"{size / 1e6:8.0f} MB  {path.name}")
    total = f"{sum(entries.values()) / 1e6:.0f} MB in {user_cache.folder()}"
    if args.clear:
        user_cache.clear()
    print(f"{'removed ' if args.clear else ''}{total}")
