# SPDX-License-Identifier: Apache-2.0
"""python stage.py TITLE COMMAND ...: says what is being done, and every ten seconds how far it is, on a terminal or in
a log; the command's own output is shown if it fails."""

import subprocess
import sys
import threading
import time

EVERY = 10  # seconds


def say(line):
    print(line, flush=True)


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
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        say(f"   {seconds:4.0f} s  {last[:100]}")
    status = process.wait()
    if status:
        say("\n".join([*lines, f"== failed: {' '.join(command)}"]))
    elif seconds >= 1:
        say(f"   done in {seconds:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
