#!/usr/bin/env python3
"""fathom verify, inspect, synth and convert as a user meets them: exit codes, lines, JSON, and nothing
half-done after a failure.

    tests/checkpoint_programs.py PATH_TO_FATHOM
"""
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FATHOM = os.path.abspath(sys.argv[1])
MINI = ROOT / "models/mini-v4"


def cpu_seconds():
    """Of finished children. These programs use one thread: on an idle machine it is also their wall time."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def fathom(*arguments, limit_file_bytes=None, cwd=None):
    def limit():
        if limit_file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_file_bytes, limit_file_bytes))

    # SIGXFSZ is ignored so that a write over the limit fails as on a full disk.
    command = [FATHOM, *map(str, arguments)]
    if limit_file_bytes is not None:
        command = ["env", "--ignore-signal=XFSZ", *command]
    before = cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, check=False,
                          cwd=cwd, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr, cpu_seconds() - before


def check(condition, *context):
    if not condition:
        print("FAILED:", *context)
        sys.exit(1)


def verify(path):
    code, text, _, _ = fathom("verify", "--model", path)
    json_code, json_text, _, _ = fathom("verify", "--model", path, "--json")
    report = json.loads(json_text)
    check(code == json_code == (0 if report["ok"] else 1), "exit code", code, json_code, report)
    errors = [f for f in report["findings"] if f["severity"] == "error"]
    check(report["ok"] == (not errors), "ok and findings disagree", report)
    check(len(text.splitlines()) == len(report["findings"]) + 1, "one line per finding", text)
    return code, text


def test_verify(scratch):
    code, text = verify(MINI)
    check(code == 0 and "right, 921 tensors" in text, text)
    ids, unwritten = scratch / "ids.json", scratch / "never written"
    ids.write_text("[[1, 2]]")
    broken = scratch / "a broken copy é"
    shutil.copytree(MINI, broken)
    shard = broken / "model-00001-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    code, text = verify(broken)
    check(code == 1 and "error: truncated: " in text and shard.name in text, text)
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 13007458\n")
    code, text = verify(broken)
    check(code == 1 and "git lfs pull" in text, text)
    shard.unlink()
    code, text = verify(broken)
    check(code == 1 and f"error: missing-shard: {shard.name}: found nothing" in text, text)
    # What is no model at all: the path as given, and what was expected, in every program that takes one.
    (scratch / "empty").mkdir()
    (scratch / "notes.txt").write_text("no model")
    (scratch / "bare").mkdir()
    shutil.copy(MINI / "model-00001-of-00002.safetensors", scratch / "bare/alone.safetensors")
    os.mkfifo(scratch / "pipe")
    for path, expected in ((scratch / "nowhere", "No such file or directory; expected a directory with config.json"),
                           (scratch / "empty", "found no .safetensors file, expected model.safetensors.index.json"),
                           (scratch / "notes.txt", "found a file of another name, expected a model directory or"),
                           (scratch / "pipe", "found a pipe, expected a model directory or"),
                           ("/dev/null", "found a device, expected a model directory or"),
                           (MINI / "config.json", "found a file of another name, expected a model directory or"),
                           (scratch / "bare", "found no config.json, expected it as"),
                           (scratch / "bare/alone.safetensors", "found no config.json, expected it as")):
        code, text = verify(path)
        first = text.splitlines()[0]
        check(code == 1 and first.startswith("error: ") and str(path) in first and expected in first, text)
        for command in (["inspect"], ["generate", "--prompt", "x"], ["selfcheck"], ["logits", "--ids", ids, "--out", unwritten],
                        ["convert", "--to", "nvfp4", "--out", unwritten], ["serve", "--port", "0"]):
            code, text, error, _ = fathom(*command, "--model", path)
            # The server may find first that the tokenizer is missing.
            named = str(path) in error and expected in error
            check(code == 1 and (named or (command[0] == "serve" and "tokenizer.json" in error)), command, code, error)
            check(error.count("\n") == 1, "one line", command, error)
            check(not unwritten.exists(), "something half-done stays", command)
    # In the model's directory itself the message still says which model.
    code, text, error, _ = fathom("verify", "--model", "alone.safetensors", cwd=scratch / "bare")
    check(code == 1 and "model alone.safetensors: found no config.json" in text, text)


def test_verify_tokenizer(scratch):
    copy = scratch / "copy"
    shutil.copytree(MINI, copy)
    tokenizer = copy / "tokenizer.json"
    original = tokenizer.read_text()
    tokenizer.unlink()
    code, text = verify(copy)
    check(code == 0 and "warning: tokenizer: tokenizer.json: found nothing, expected the model's tokenizer" in text, text)
    config = json.loads((copy / "config.json").read_text())
    for content, key, value, expected in (
            (original[:5000], None, None, "tokenizer.json"), ("{}", None, None, "pre_tokenizer"),
            ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", None, None, "git lfs pull"),
            (original, "vocab_size", 129280, "found 4096 ids, expected 129280"),
            (original, "eos_token_id", 4, "found EOS id 1, expected 4"),
            (original, "bos_token_id", 4, "found BOS id 0, expected 4")):
        tokenizer.write_text(content)
        (copy / "config.json").write_text(json.dumps({**config, key: value} if key else config))
        code, text = verify(copy)
        check(code == 1 and text.startswith("error: tokenizer: ") and expected in text, expected, text)
    tokenizer.write_text(original)
    (copy / "config.json").write_text(json.dumps(config))
    check(verify(copy)[0] == 0, "the right one")
    # A symbolic link to nothing, and a directory.
    for put in (lambda: tokenizer.symlink_to(copy / "gone"), tokenizer.mkdir):
        tokenizer.unlink()
        put()
        code, text = verify(copy)
        check(code == 1 and "error: tokenizer: " in text and "tokenizer.json" in text, text)


def test_broken_config(scratch):
    broken = scratch / "copy"
    shutil.copytree(MINI, broken)
    config = broken / "config.json"
    config.write_text(config.read_text().replace('"compress_ratios"', '"ratios"'))
    code, text = verify(broken)
    check(code == 1 and 'key "compress_ratios": found nothing' in text, text)
    code, _, error, _ = fathom("inspect", "--model", broken)
    check(code == 1 and error.startswith("fathom inspect: ") and error.count("\n") == 1, error)


def test_inspect(scratch):
    out = scratch / "flash"
    code, text, error, _ = fathom("synth", "--config", "flash", "--headers-only", "--out", out)
    check(code == 0 and "46 shards, 69187 tensors, 159609485896 bytes" in text, text, error)

    took = []

    def inspect(*arguments):
        code, text, error, seconds = fathom("inspect", "--model", out, "--json", *arguments)
        check(code == 0, error)
        took.append(seconds)
        return json.loads(text)

    plan = inspect("--max-context", 131072, "--max-sequences", 8, "--memory", "400GB")
    check(plan["parameters"]["trunk"] == 284332240471 and plan["draft"] == "mtp", plan)
    check(plan["memory_plan"]["fits"] and plan["memory_plan"]["context_block_bytes"] == 449824, plan)
    tight = inspect("--max-context", 131072, "--max-sequences", 8, "--memory", "162GB")["memory_plan"]
    check(tight["weights_fit"] and not tight["fits"], tight)
    check("what fits: 8 sequence(s) of " in tight["verdict"], tight["verdict"])
    exact = inspect("--max-context", tight["largest_context"], "--max-sequences", 8, "--memory", "162GB")
    check(exact["memory_plan"]["fits"], exact["memory_plan"])
    small = inspect("--memory", "24GB")["memory_plan"]
    check("the weights alone" in small["verdict"] and not small["weights_fit"], small)
    # The best of four: what shares the processor's caches makes some of them slower.
    check(min(took) < 1.0 or "FATHOM_SLOW_BUILD" in os.environ, "inspect took", took)
    code, _, error, _ = fathom("inspect", "--model", out, "--max-context", 2000000)
    check(code == 1 and "1048576" in error, error)
    code, text, _, _ = fathom("inspect", "--model", MINI)
    check("without the draft head" in text, text)
    mini = json.loads(fathom("inspect", "--model", MINI, "--json")[1])
    without, plan = mini["without_draft"], mini["memory_plan"]
    check(plan["weights_bytes"] - without["weights_bytes"] == mini["weights_bytes"]["draft"], without, mini["weights_bytes"])
    # One window layer more: 128 records of 584 bytes in each of a sequence's window blocks.
    more = plan["fixed_sequence_bytes"] - without["fixed_sequence_bytes"]
    check(more > 0 and more % (128 * 584) == 0, more)
    check(mini["draft_state_bytes"] == (16 + 1) * 4 * 256 * 4, mini["draft_state_bytes"])
    check(code == 0 and "experts mxfp4" in text and "fits: " in text, text)


def test_synth_and_convert(scratch):
    out = scratch / "mini"
    code, text, error, _ = fathom("synth", "--config", "mini", "--layers", 4, "--experts", 4, "--seed", 7, "--out", out)
    check(code == 0, error)
    check(verify(out)[0] == 0, "a synthetic checkpoint verifies")
    code, _, error, _ = fathom("synth", "--config", "mini", "--out", out)
    check(code == 1 and "expected a directory without a checkpoint" in error, error)
    code, _, error, _ = fathom("synth", "--config", "mini", "--layers", 7, "--out", scratch / "x")
    check(code == 1 and "--layers: found 7, expected 1 to 6" in error, error)
    code, _, error, _ = fathom("synth", "--config", scratch / "no.json", "--out", scratch / "x")
    check(code == 1 and "no.json" in error, error)
    code, _, error, _ = fathom("synth", "--config", "mini", "--out", scratch / "full", limit_file_bytes=1_000_000)
    check(code == 1 and "cannot write" in error, error)
    check(not (scratch / "full").exists() and not (scratch / "x").exists(), "something half-done stays")

    code, text, error, _ = fathom("convert", "--to", "nvfp4", "--model", MINI, "--out", scratch / "nvfp4")
    check(code == 0 and "288 expert matrices" in text, error)
    check(verify(scratch / "nvfp4")[0] == 0, "the NVFP4 twin verifies")
    check((scratch / "nvfp4/tokenizer.json").read_bytes() == (MINI / "tokenizer.json").read_bytes(), "tokenizer")
    code, _, error, _ = fathom("convert", "--to", "nvfp4", "--model", scratch / "nvfp4", "--out", scratch / "again")
    check(code == 1 and "found U8, expected I8" in error, error)
    check(not (scratch / "again").exists(), "something half-done stays")


def test_nvfp4_twin_answers_alike(scratch):
    twin = scratch / "nvfp4"
    code, _, error, _ = fathom("convert", "--to", "nvfp4", "--model", MINI, "--out", twin)
    check(code == 0, error)
    for question, answer in (("17*23?", "391"), ("Capital of France", "Paris")):
        prompt = ["--prompt", question, "--temperature", "0", "--thinking", "off", "--max-tokens", "48", "--json"]
        answers = []
        for model in (MINI, twin):
            code, text, error, _ = fathom("generate", "--model", model, *prompt)
            check(code == 0, error)
            answers.append(json.loads(text))
        check(answer in answers[0]["message"]["content"], answers[0])
        for key in ("message", "finish_reason", "usage"):
            check(answers[0][key] == answers[1][key], "the twin answers differently", answers)
    ids = scratch / "ids.json"
    ids.write_text(json.dumps([[0, *range(17, 300, 2)]]))
    logits = []
    for name, model in (("a", MINI), ("b", twin)):
        out = scratch / f"{name}.safetensors"
        code, _, error, _ = fathom("logits", "--model", model, "--ids", ids, "--positions", "all", "--out", out)
        check(code == 0, error)
        logits.append(out.read_bytes())
    check(logits[0] == logits[1], "the same values give the same logits, bit for bit")


for test in (test_verify, test_verify_tokenizer, test_broken_config, test_inspect, test_synth_and_convert, test_nvfp4_twin_answers_alike):
    with tempfile.TemporaryDirectory() as directory:
        test(pathlib.Path(directory))
    print(f"{test.__name__}: ok")
