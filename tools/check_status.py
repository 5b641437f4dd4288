#!/usr/bin/env python3
"""docs/status.md: every row of its tables names a command that exists, a figure and a date, or a reason.

A command is checked by what it starts with: a make target, a ctest name (`ctest -R NAME`), a fathom
subcommand, or a file of this repository.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z_-]*):", text, re.M))


def subcommands() -> set[str]:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "apps/fathom").glob("*.cc")))
    return set(re.findall(r'add_subcommand\(\s*"([a-z_-]+)"', text))


def ctest_names() -> set[str] | None:
    build = ROOT / "build"
    if not (build / "CTestTestfile.cmake").exists():
        return None
    listing = subprocess.run(["ctest", "--test-dir", str(build), "-N"], capture_output=True, text=True, check=False)
    return set(re.findall(r"Test\s+#\d+: (\S+)", listing.stdout))


def check_command(command: str, targets, commands, tests) -> str | None:
    words = command.split()
    while words and re.match(r"^[A-Z_]+=", words[0]):
        words = words[1:]
    if not words:
        return "empty command"
    if words[0] == "make":
        return None if len(words) > 1 and words[1] in targets else f"no make target {words[1:2]}"
    if words[0] == "ctest":
        if "-R" not in words or tests is None:
            return None if "-L" in words or tests is None else "ctest needs -R NAME or -L LABEL"
        pattern = words[words.index("-R") + 1].strip("'\"")
        return None if any(re.search(pattern, name) for name in tests) else f"no test matches {pattern}"
    name = words[0].removeprefix("./").removeprefix("build/")
    if name == "fathom":
        return None if len(words) > 1 and words[1] in commands else f"no subcommand {words[1:2]}"
    if name in {"python3", "bash"} and len(words) > 1:
        name = words[1]
    return None if (ROOT / name).exists() else f"no file {name}"


def main() -> int:
    targets, commands, tests = make_targets(), subcommands(), ctest_names()
    problems, rows = [], 0
    for number, line in enumerate((ROOT / "docs/status.md").read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("|") or set(line) <= set("|-: ") or line.startswith("| demand"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows += 1
        if len(cells) != 5:
            problems.append(f"docs/status.md:{number}: expected demand, state, command, figure, date; found {len(cells)} cells")
            continue
        demand, state, command_cell, figure, date = cells
        if state not in {"shown", "partly", "open"}:
            problems.append(f"docs/status.md:{number}: state is {state!r}, expected shown, partly or open")
        if state == "shown" and not (command_cell and DATE.fullmatch(date)):
            problems.append(f"docs/status.md:{number}: a shown row needs a command and a date")
        if state != "shown" and not figure:
            problems.append(f"docs/status.md:{number}: a row that is not shown needs its reason")
        for command in re.findall(r"`([^`]+)`", command_cell):
            problem = check_command(command, targets, commands, tests)
            if problem:
                problems.append(f"docs/status.md:{number}: `{command}`: {problem}")
    for problem in problems:
        print(problem)
    print(f"status: {rows} rows, {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
