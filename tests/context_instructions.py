#!/usr/bin/env python3
"""Instructions of one generation prepared for 4,096 and for 65,536 tokens of context: equal within 0.1 %.

Rope tables, block tables and workspaces follow the actual length; whatever is sized by the maximum shows here.
usage: context_instructions.py FATHOM
"""
import re
import shutil
import subprocess
import sys
import tempfile


def instructions(fathom, max_context):
    with tempfile.NamedTemporaryFile() as out:
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=" + out.name, fathom, "generate", "--raw",
                   "--prompt", "The capital of France is a city that many people know", "--max-tokens", "6",
                   "--temperature", "0", "--threads", "1", "--max-context", str(max_context)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or found is None:
        sys.exit("callgrind failed: " + run.stderr[-2000:])
    return int(found.group(1))


def main():
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is missing: tools/setup.sh --ci installs it")
    short, long = (instructions(sys.argv[1], context) for context in (4096, 65536))
    difference = abs(long - short) / short
    print(f"--max-context 4096: {short:,} instructions; 65536: {long:,}; difference {100 * difference:.5f} %")
    if difference > 0.001:
        sys.exit("over 0.1 %: something is sized by the maximum context")


main()
