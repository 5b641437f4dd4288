#!/usr/bin/env python3
"""What a run costs follows the actual context, never the configured maximum: instruction counts (callgrind) of the same
answer with --max-context 4,096 and 65,536 must agree within 0.1 %.

    tests/context_cost.py PATH_TO_FATHOM        exit code 77: valgrind is not installed
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

FATHOM = os.path.abspath(sys.argv[1])


def instructions(max_context):
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={scratch}/out", FATHOM, "generate", "--prompt",
             "17*23?", "--thinking", "off", "--temperature", "0", "--threads", "1", "--max-context", str(max_context)],
            capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stdout != "391\n":
        print("FAILED: the answer under callgrind:", done.stdout, done.stderr)
        sys.exit(1)
    return int(re.search(r"Collected : (\d+)", done.stderr).group(1))


def main():
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        sys.exit(77)
    small, large = instructions(4096), instructions(65536)
    difference = abs(large - small) / small
    print(f"{small} instructions at 4,096, {large} at 65,536: {100 * difference:.4f} %")
    sys.exit(0 if difference <= 1e-3 else 1)


main()
