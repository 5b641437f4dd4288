#!/usr/bin/env python3
"""fathom replay as a user meets it: a recorded life, one that was changed, files that are none.

    tests/replay_programs.py PATH_TO_FATHOM
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FATHOM = sys.argv[1]
LIFE = ROOT / "tests/data/scheduler/crowded.log"


def replay(*arguments):
    done = subprocess.run([FATHOM, "replay", *map(str, arguments)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def check(condition, *context):
    if not condition:
        print("FAILED:", *context)
        sys.exit(1)


def main():
    code, out, error = replay(LIFE)
    check(code == 0 and "the same plans, all rules kept" in out and error == "", code, out, error)
    figures = dict(re.findall(r"^  (.+?) {2,}(\d+)$", out, re.M))
    check(int(figures["sequences"]) == 20 and int(figures["preemptions"]) > 0 and int(figures["cancelled"]) == 3, out)
    code, out, _ = replay(LIFE, "--events")
    check(code == 0 and re.search(r"^step \d+ preempt sequence \d+", out, re.M), "events")

    text = LIFE.read_text()
    plans = [m for m in re.finditer(r"^plan (\d+)$", text, re.M)]
    tenth = plans[10]
    line = text[: tenth.start()].count("\n") + 1
    changed = {
        "a plan that differs": (text[: tenth.start(1)] + str(int(tenth[1]) ^ 1) + text[tenth.end(1) :], rf"line {line}: the plan of step \d+ differs"),
        "a smaller memory": (text.replace(" 12 304 ", " 11 304 ", 1), "differs"),
        "a smaller share of prefill": (text.replace("options 64 ", "options 32 ", 1), r"differs|rows of prefill"),
        "a call that is missing": (re.sub(r"^commit .*\n", "", text, count=1, flags=re.M), r"line \d+: found"),
        "no log": ("hello\n", "not a scheduler log"),
        "an empty file": ("", "not a scheduler log"),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name, (content, message) in changed.items():
            check(content != text, name, "is not changed")
            file = pathlib.Path(scratch) / "life.log"
            file.write_text(content)
            code, out, error = replay(file)
            check(code == 1 and out == "" and re.search(message, error), name, code, out, error)
            check(len(error.strip().splitlines()) == 1, name, error)
        # Cut in the middle of a line: what stands before it is judged, and only that.
        for cut in (tenth.end(), tenth.end() - 3, tenth.start() + 2):
            file.write_text(text[:cut])
            code, out, error = replay(file)
            check(code == 0 and f"truncated at line {line}," in out and "the same plans" in out, cut, code, out, error)
        file.write_text(changed["a plan that differs"][0][:plans[12].end()])
        code, out, error = replay(file)
        check(code == 1 and out == "" and f"line {line}: the plan" in error, code, out, error)
        code, _, error = replay(pathlib.Path(scratch) / "missing")
        check(code == 1 and "missing" in error, error)
    print("fathom replay works")


if __name__ == "__main__":
    main()
