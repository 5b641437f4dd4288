#!/usr/bin/env python3
"""Fails on a skipped test whose reason is not one of those listed here. Arguments: ctest logs."""
import pathlib
import re
import sys

EXPLAINED = [
    re.compile(r"\.\./shared is absent"),  # the larger sets of expected values travel separately
    re.compile(r"no CUDA device"),         # GPU truth comes from tools/gpu_check.sh on a machine with one
    re.compile(r"a sanitizer owns operator new"),
    re.compile(r"this disk has room for it"),  # the refusal to write more than fits needs a disk that is too small
    re.compile(r"runs as root"),           # root may read everything: no unreadable file to test with
]


def main() -> int:
    unexplained, explained = [], 0
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        if not path.exists():
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for index, line in enumerate(lines):
            if line.startswith("skipped: "):  # a program that ended with ctest's code for a skip
                reason = line
            elif line.rstrip().endswith(": Skipped"):  # GoogleTest: the reason is the next line
                reason = lines[index + 1] if index + 1 < len(lines) else ""
            else:
                continue
            if any(pattern.search(reason) for pattern in EXPLAINED):
                explained += 1
                print(f"skipped, explained: {reason}")
            else:
                unexplained.append(f"{line}\n    {reason}")
    for entry in unexplained:
        print(f"skipped without an accepted reason: {entry}")
    print(f"skips: {explained} explained, {len(unexplained)} not")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
