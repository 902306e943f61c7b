# SPDX-License-Identifier: Apache-2.0
"""Run a command and print the last line of its output every ten seconds. All of it is shown only if it fails.

python build_tools/stage.py TITLE COMMAND ...
"""

import os
import re
import subprocess
import sys
import threading
import time

EVERY = 10  # seconds


def say(line):
    print(line, flush=True)


def latest(lines: list[str]) -> str:
    """Return the command's progress: ninja's last [3/20], else the last line that has a word in it."""
    steps = [line for line in lines if re.match(r"\[\d+/\d+\]", line)]
    said = steps or [line for line in lines if re.search(r"\w\w", line)] or [""]
    return said[-1].strip().replace(f"{os.getcwd()}/", "")


def run(title: str, command: list[str]) -> int:
    say(f"== {title}")
    began, lines = time.monotonic(), []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")

    def read():
        for line in process.stdout:
            lines.append(line.rstrip())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    while True:
        reader.join(EVERY)
        seconds = time.monotonic() - began
        if not reader.is_alive():
            break
        say(f"   {seconds:4.0f} s  {latest(lines)[:90]}".rstrip())
    status = process.wait()
    if status:
        say("\n".join([*lines, f"== failed: {' '.join(command)}"]))
    elif seconds >= 1:
        say(f"   done in {seconds:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
