#!/usr/bin/env python3
"""`fathom compare` and `fathom findings add` on written reports: what they say, what they refuse, exit codes."""
import concurrent.futures
import json
import pathlib
import random
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
REPEATS, STEPS = 6, 20

# operation, category, kernel, us of a step on the path, us summed, launches: a batch-32 step in the campaign's shape.
ROWS = [
    ("sparse_attention", "attention", "simt_decode", 5350, 5350, 43),
    ("linear", "projections", "gemm_simt_f32", 1004, 1004, 86),
    ("moe_experts", "experts", "grouped_gemm_mxfp4", 900, 900, 43),
    ("index_scores", "indexer", "index_paged", 140, 420, 21),
    ("select_topk", "indexer", "radix_select", 95, 95, 21),
    ("hyper_connection", "hyper-connections", "transition", 310, 310, 86),
    ("attention_output", "projections", "gemm_fp8", 240, 240, 43),
    ("kv_write", "cache", "kv_write", 45, 60, 43),
    ("rms_norm", "norms and rope", "rms_norm", 60, 60, 87),
    ("moe_route", "router", "route_scored", 55, 55, 43),
    ("lm_head", "embedding and head", "gemm_bf16", 130, 130, 1),
]
GAPS = [("schedule", 22), ("launch", 35), ("sample", 40), ("detokenise", 9)]


def report(rows, seed, **changes):
    draw = random.Random(seed)
    wobble = [1 + draw.gauss(0, 0.004) for _ in range(REPEATS)]
    over = lambda us: [us * STEPS * w for w in wobble]
    total = sum(r[3] for r in rows) + sum(us for _, us in GAPS) + 15 + 6
    run = {
        "backend": "cuda", "device": "NVIDIA H200", "collector": "cupti", "model": "flash, synthetic", "numerics": "serve",
        "variants": {}, "date": "2026-11-29T21:40:00Z", "commit": "0123abcd", "core_clock_mhz": 1980,
        "memory_clock_mhz": 3201, "num_threads": 0, "batch_sequences": 32, "context_tokens": 4096, "num_steps": STEPS,
        "num_warmup_steps": 5, "num_repeats": REPEATS,
    }
    run.update(changes)
    return {
        "format": "fathom-profile", "version": 1, "run": run,
        "ceilings": {"memory_bytes_per_s": 4.1e12, "flops_per_s": 8e14, "launch_us": 2.1},
        "step_us": [[total * w] * STEPS for w in wobble],
        "rows": [{"category": c, "operation": o, "variant": k, "layer": 0, "kernel": k, "time_us": over(summed),
                  "critical_us": over(path), "num_launches": n * STEPS * REPEATS, "bytes": 1e6, "flops": 1e9}
                 for o, c, k, path, summed, n in rows],
        "host_gaps": [{"name": name, "time_us": over(us), "critical_us": over(us)} for name, us in GAPS],
        "idle_us": over(15), "unaccounted_us": over(6),
        "exposed": [{"category": "attention", "operation": "", "method": "repeated", "us": rows[0][3] * 0.99,
                     "low_us": rows[0][3] * 0.97, "high_us": rows[0][3] * 1.01, "confidence": 0.95, "num_samples": 30,
                     "output_unchanged": True}],
        "tokens_per_step": 32, "committed_tokens_per_step": 32, "experts_hit_per_step": 148.5, "notes": [],
    }


def changed(**kernels):
    """ROWS with other figures: operation=(kernel, path, summed)."""
    return [(o, c) + (kernels[o] + (n,) if o in kernels else (k, path, summed, n)) for o, c, k, path, summed, n in ROWS]


class Checks:
    def __init__(self, folder):
        self.folder = folder
        self.failures = 0

    def store(self, name, value):
        path = self.folder / name
        path.mkdir(exist_ok=True)
        (path / "report.json").write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return str(path)

    def run(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, cwd=self.folder, timeout=300)

    def expect(self, result, code, *fragments):
        said = result.stdout + result.stderr
        missing = [f for f in fragments if f not in said]
        if result.returncode != code or missing:
            self.failures += 1
            print(f"FAILED {' '.join(result.args)}\n  exit {result.returncode}, expected {code}; not said: {missing}\n{said}")

    def true(self, what, holds):
        if not holds:
            self.failures += 1
            print("FAILED", what)


def check_compare(t):
    simt = t.store("simt", report(ROWS, 1))
    splitk = t.store("mma_splitk", report(changed(sparse_attention=("mma_splitk", 850, 850)), 2))
    cast = changed(linear=("gemm_bf16_tensor", 499, 499)) + [("cast", "copies", "widen_bf16_f32", 310, 310, 86)]
    cast = t.store("cast", report(cast, 3))
    again = t.store("again", report(ROWS, 4))
    slower = t.store("slower", report(changed(moe_experts=("grouped_gemm_mxfp4", 1500, 1500)), 5))

    t.expect(t.run("compare", simt, splitk), 0, "FASTER", "fell   sparse_attention -4.", "mma_splitk", "new", "gone")
    t.expect(t.run("compare", simt, cast), 0, "FASTER", "rose   cast +0.310", "fell   linear -0.50")
    t.expect(t.run("compare", simt, again), 0, "NO DIFFERENCE")
    t.expect(t.run("compare", f"{simt}/report.json", slower, "--fail-if-slower", "3%"), 1, "SLOWER", "slower by 6.")
    t.expect(t.run("compare", simt, slower, "--fail-if-slower", "20%"), 0)
    t.expect(t.run("compare", slower, simt, "--fail-if-slower", "3%"), 0, "FASTER")
    t.expect(t.run("compare", simt, again, "--fail-if-slower", "0%"), 0)
    t.expect(t.run("compare", simt, slower, "--fail-if-slower", "much"), 2, '"much"')
    t.expect(t.run("compare", simt), 2)

    page = t.folder / "out.html"
    result = t.run("compare", simt, splitk, "--json", "-", "--html", str(page))
    t.expect(result, 0)
    figures = json.loads(result.stdout)
    t.true("the JSON names what fell", figures["fell"][0]["name"] == "sparse_attention")
    html = page.read_text(encoding="utf-8")
    t.true("the page refers to nothing outside", "<svg" in html and "http" not in html and "src=" not in html)

    batch = t.store("batch", report(changed(sparse_attention=("mma_splitk", 850, 850)), 2, batch_sequences=16))
    t.expect(t.run("compare", simt, batch), 0, "WARNING", "batch: 32 sequences against 16", "NOT COMPARABLE")
    t.expect(t.run("compare", simt, batch, "--fail-if-slower", "3%"), 2, "NOT COMPARABLE")
    t.expect(t.run("compare", simt, batch, "--intended", "batch"), 0, "on purpose", "FASTER")
    t.expect(t.run("compare", simt, batch, "--intended", "weather"), 2, '"weather"', "clocks")
    clock = t.store("clock", report(ROWS, 2, core_clock_mhz=1200))
    t.expect(t.run("compare", simt, clock), 0, "WARNING", "clocks", "NOT COMPARABLE", "differences (no claim)")
    for extra, said in (((), '"bogus"'), (("--exposed", "off"), "--exposed off")):
        t.expect(t.run("profile", "--what-if", "bogus=0.5x", *extra), 1, said)
    t.true("a refused profile makes no folder", not (t.folder / "profile").exists())
    t.expect(t.run("profile", "--out", f"{simt}/report.json"), 1, "cannot make this folder", "nothing was measured")
    t.expect(t.run("profile", "--out", "/proc/profile"), 1, "/proc/profile", "nothing was measured")
    t.expect(t.run("profile", "--attach", "here"), 1, '"here"', "HOST:PORT")
    t.expect(t.run("profile", "--attach", "127.0.0.1:9"), 1, "127.0.0.1:9")
    t.expect(t.run("profile", "--steps", "0"), 2, "--steps")
    return simt, splitk, cast


def check_refusals(t, good):
    text = json.dumps(report(ROWS, 1))
    planted = {
        "empty": ("", "empty"),
        "cut": (text[: len(text) // 2], "truncated"),
        "other": (text.replace('"version": 1', '"version": 9'), "version: found 9, expected 1"),
        "nan": (text.replace('"bytes": 1000000.0', '"bytes": NaN', 1), "corrupt"),
        "negative": (text.replace('"bytes": 1000000.0', '"bytes": -2', 1), "rows[0].bytes: found -2"),
        "trace": ('{"traceEvents": []}', "not a profile"),
        "list": ("[" * 100000, "truncated"),
    }
    for name, (content, message) in planted.items():
        bad = t.store(name, content)
        t.expect(t.run("compare", good, bad), 2, f"{bad}/report.json", message)
        t.expect(t.run("findings", "add", good, bad, "--hypothesis", "h", "--predict", "-1%", "--change", "c"), 2, message)
    t.expect(t.run("compare", good, str(t.folder / "absent")), 2, "absent")
    t.true("a refusal writes nothing", not (t.folder / "PROFILE_FINDINGS.md").exists())


def check_findings(t, simt, splitk, cast):
    log = t.folder / "PROFILE_FINDINGS.md"
    words = ["--hypothesis", "the GEMM is 19 %\nof kernel time | so it counts", "--change", "bf16 tensor cores"]
    t.expect(t.run("findings", "add", simt, cast, "--predict", "-6%", *words), 0, "less than predicted",
             "rose cast +0.310", "took back 61 % of the gain")
    first = log.read_text(encoding="utf-8")
    t.true("one heading an entry", first.count("\n## ") == 1 and first.startswith("# Profile findings"))
    words = ["--hypothesis", "keys are read 64 times", "--change", "heads share a tile", "--title", "mma_splitk"]
    t.expect(t.run("findings", "add", simt, splitk, "--predict", "-52%", "--left", "experts", *words), 0,
             "Verdict: as predicted", "**Left.** experts")
    t.expect(t.run("findings", "add", simt, splitk, "--predict", "-20%", *words), 0, "more than predicted")
    t.expect(t.run("findings", "add", simt, t.store("again", report(ROWS, 4)), "--predict", "-5%", *words), 0, "Verdict: flat")
    t.true("earlier entries stand", log.read_text(encoding="utf-8").startswith(first))

    before = log.read_text(encoding="utf-8")
    batch = t.store("batch", report(ROWS, 2, batch_sequences=16))
    t.expect(t.run("findings", "add", simt, batch, "--predict", "-5%", *words), 2, "batch: 32 sequences against 16")
    t.expect(t.run("findings", "add", simt, splitk, "--predict", "fast", *words), 2, '"fast"')
    t.expect(t.run("findings", "add", simt, splitk, "--predict", "-5%", "--change", "c", "--hypothesis", " "), 2, "hypothesis")
    t.expect(t.run("findings", "add", simt, splitk, "--predict", "-5%", *words, "--file", "absent/F.md"), 2, "absent")
    (t.folder / "notes.md").write_text("mine\n")
    t.expect(t.run("findings", "add", simt, splitk, "--predict", "-5%", *words, "--file", "notes.md"), 2, "notes.md")
    t.true("another file is not touched", (t.folder / "notes.md").read_text() == "mine\n")
    t.true("refusals append nothing", log.read_text(encoding="utf-8") == before)

    add = lambda i: t.run("findings", "add", simt, splitk, "--predict", "-52%", "--title", f"at once {i}", *words[:4])
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        codes = [r.returncode for r in pool.map(add, range(16))]
    after = log.read_text(encoding="utf-8")
    t.true("entries added at once are all there", codes == [0] * 16 and all(f"at once {i}\n" in after for i in range(16)))
    t.true("nothing is left beside it", not list(t.folder.glob("*.partial*")))


def main():
    if len(sys.argv) > 2:  # keep what was written, to look at
        folder = pathlib.Path(sys.argv[2])
        folder.mkdir(parents=True, exist_ok=True)
        return run(folder)
    with tempfile.TemporaryDirectory() as folder:
        return run(pathlib.Path(folder))


def run(folder):
    t = Checks(folder)
    simt, splitk, cast = check_compare(t)
    check_refusals(t, simt)
    check_findings(t, simt, splitk, cast)
    print("profile programs:", f"{t.failures} failed" if t.failures else "all as expected")
    return 1 if t.failures else 0


if __name__ == "__main__":
    sys.exit(main())
