#!/usr/bin/env python3
"""The command line as its user meets it: what --help says of every flag, and what wrong flags are answered with.

usage: command_line_programs.py FATHOM
"""
import re
import subprocess
import sys

FATHOM = sys.argv[1]


def run(*arguments):
    done = subprocess.run([FATHOM, *arguments], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(map(str, what)))


def sections(text):
    """Lines under 'Options:' and under 'Subcommands:', continuation lines joined to theirs."""
    out = {}
    name = None
    for line in text.splitlines():
        if re.match(r"\S.*:$", line):
            name = line[:-1]
            out[name] = []
        elif name and re.match(r"  \S", line):
            out[name].append(line.strip())
        elif name and line.strip() and out[name]:
            out[name][-1] += "  " + line.strip()
    return out


def subcommands(path=()):
    code, text, err = run(*path, "--help")
    check(code == 0 and not err, path, err)
    below = [line.split()[0] for line in sections(text).get("Subcommands", [])]
    yield path, text
    for name in below:
        yield from subcommands((*path, name))


def test_help_says_every_default():
    seen = 0
    for path, text in subcommands():
        for line in sections(text).get("Options", []):
            flag, _, rest = line.partition(" ")
            if not flag.startswith("--") or not re.match(r"\s*\S+( \.\.\.|)( REQUIRED)?  ", rest):
                continue  # the help flag, or one without a value
            seen += 1
            where = f"fathom {' '.join(path)}: {line}"
            check("REQUIRED" in rest or re.search(r"\(default:? [^)]+\)", rest), "no default:", where)
            kind = rest.split()[0]
            check(re.fullmatch(r"N|X|BYTES|SECONDS|PATH|TEXT|NAMES|[a-z0-9-]+(\|[a-z0-9-]+)*", kind), "odd kind:", where)
    check(seen > 100, seen)


def refused(arguments, *words):
    code, out, err = run(*arguments)
    check(code == 2 and not out, arguments, code, out)
    check(err.count("\n") == 1, err)
    for word in words:
        check(word in err, arguments, repr(word), "is not in", err)


def test_wrong_flags():
    refused(["serve", "--foo", "--bar=3", "--baz"], "fathom serve: not expected: --foo --bar=3 --baz (fathom serve --help lists")
    refused(["bench", "serve", "--foo"], "fathom bench serve: not expected: --foo (fathom bench serve --help")
    refused(["--foo"], "fathom: not expected: --foo")
    refused(["generate", "--prompt", "x", "y", "z"], "not expected: y z")
    refused(["serve", "--port", "1", "--port", "2"], "--port: found 2 times, expected once")
    refused(["chat", "--effort", "low", "--effort", "low", "--effort=max"], "--effort: found 3 times, expected once")
    refused(["serve", "--prefix-cache", "yes"], "--prefix-cache: found yes, expected on or off")
    refused(["serve", "--prefix-cache", ""], "--prefix-cache: found an empty text, expected on or off")
    refused(["chat", "--thinking", "1"], "--thinking: found 1, expected on or off")
    refused(["chat", "--effort", "high-ish"], "--effort: found high-ish, expected low, high or max")
    refused(["serve", "--port"], "--port")
    refused(["bench"], "fathom bench:")
    refused([], "fathom:")
    refused(["synth", "--config", "mini"], "--out")


def test_repeated_flags():
    code, _, err = run("generate", "--prompt", "x", "--stop", "a", "--stop", "b", "--max-tokens", "1", "--model", "/nonexistent")
    check(code == 1 and "/nonexistent" in err, code, err)


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
print("command line: passed")
