#!/usr/bin/env python3
"""Reads the includes of src/ and apps/ and fails on one that points upward in the layers.

Lowest first: base; tensor, telemetry; text, checkpoint, grammar, ops contracts; ops implementations;
backend; model; engine; profile, server; apps. Within ops, a folder may include another operation's
contract (its <op>.h) but not its other files, except the shared rooms named below.
"""
import pathlib
import re
import sys

ALLOWED = {
    "base": {"base"},
    "tensor": {"base", "tensor"},
    "telemetry": {"base", "tensor", "telemetry"},
    "text": {"base", "text"},
    "checkpoint": {"base", "tensor", "telemetry", "checkpoint"},
    "grammar": {"base", "tensor", "telemetry", "text", "grammar"},
    "ops": {"base", "tensor", "telemetry", "ops"},
    "backend": {"base", "tensor", "telemetry", "ops", "backend"},
    "model": {"base", "tensor", "telemetry", "text", "ops", "backend", "checkpoint", "model"},
    "engine": {"base", "tensor", "telemetry", "text", "checkpoint", "grammar", "ops", "backend", "model", "engine"},
    "profile": {"base", "tensor", "telemetry", "ops", "backend", "model", "engine", "profile"},
    "server": {"base", "telemetry", "text", "grammar", "engine", "server"},
}
# The engine drives a model through these model/ and backend/ headers only; it sees no device header.
ENGINE_FORBIDDEN = re.compile(r"^backend/cuda/|^ops/.*/cuda")
HTTP_LIBRARY = re.compile(r"<boost/(beast|asio)")
CLI_LIBRARY = re.compile(r"<CLI/")
SHARED_OPS_FOLDERS = {"simd", "testing", "cuda"}
# Operations built on another's parts: the head's HCpre is the transition's; the others hold linear maps, or write rows
# quantised for one.
OPS_BUILT_ON = {
    "hc_head": "hyper_connection",
    "attention_output": "linear",
    "draft_input": "linear",
    "hyper_connection": "linear",
    "lm_head": "linear",
    "moe_experts": "linear",
    "moe_route": "linear",
}
INCLUDE = re.compile(r'^\s*#\s*include\s+("([^"]+)"|<[^>]+>)')


def check(root: pathlib.Path) -> list[str]:
    problems = []
    files = sorted(p for p in (root / "src").rglob("*") if p.suffix in {".h", ".cc", ".cu", ".cuh"})
    for path in files:
        relative = path.relative_to(root / "src")
        layer = relative.parts[0]
        if layer not in ALLOWED:
            problems.append(f"src/{relative}: folder {layer}/ is not a layer (tools/check_layers.py)")
            continue
        is_test = path.name.endswith(("_test.cc", "_bench.cc")) or "testing" in relative.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            where = f"src/{relative}:{number}"
            if HTTP_LIBRARY.search(line) and relative.parts[:2] != ("server", "http"):
                problems.append(f"{where}: the HTTP library is included only in src/server/http/")
            if CLI_LIBRARY.search(line):
                problems.append(f"{where}: the command-line library is included only in apps/fathom/main.cc and flags*")
            target = match.group(2)
            if target is None or "/" not in target:
                continue
            other = target.split("/")[0]
            if other not in ALLOWED:
                continue
            if other not in ALLOWED[layer] and not is_test:
                problems.append(f"{where}: {layer}/ includes {target}, which lies above or beside it")
            if layer == "engine" and ENGINE_FORBIDDEN.search(target):
                problems.append(f"{where}: engine/ sees no device header ({target})")
            parts = target.split("/")
            if layer == "ops" and other == "ops" and len(parts) == 3 and len(relative.parts) == 3 and not is_test:
                folder, file = parts[1], parts[2]
                if folder != relative.parts[1] and folder not in SHARED_OPS_FOLDERS and file != f"{folder}.h" \
                        and OPS_BUILT_ON.get(relative.parts[1]) != folder:
                    problems.append(f"{where}: operations see each other's contracts only ({target})")
    for path in sorted([*(root / "apps").rglob("*.cc"), *(root / "apps").rglob("*.h")]):
        if path.name == "main.cc" or path.name.startswith("flags"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if CLI_LIBRARY.search(line):
                problems.append(f"{path.relative_to(root)}:{number}: the command-line library is included only in main.cc and flags*")
    return problems


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    problems = check(root)
    for problem in problems:
        print(problem)
    print(f"layers: {len(problems)} problem(s)" if problems else "layers: every include points downward")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
