#!/usr/bin/env python3
"""fathom generate, chat, logits and selfcheck as a user meets them: answers, exit codes, one clear error for bad input.

    tests/model_programs.py PATH_TO_FATHOM
"""
import json
import pathlib
import re
import pty
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FATHOM = os.path.abspath(sys.argv[1])
MINI = ROOT / "models/mini-v4"


def check(condition, *context):
    if not condition:
        print("FAILED:", *context)
        sys.exit(1)


def fathom(*arguments, stdin="", cwd=ROOT, stdout=subprocess.PIPE):
    done = subprocess.run([FATHOM, *map(str, arguments)], input=stdin, stdout=stdout, stderr=subprocess.PIPE,
                          text=True, cwd=cwd, check=False)
    return done.returncode, done.stdout, done.stderr


def generate(*arguments, **kw):
    return fathom("generate", "--temperature", 0, "--thinking", "off", *arguments, **kw)


def refuse(arguments, *expected, **kw):
    """One error that names the thing, a non-zero exit, nothing on standard output."""
    code, out, err = fathom(*arguments, **kw)
    check(code != 0 and not out, "not refused:", arguments, code, out)
    check(len(err.strip().splitlines()) == 1, "one line of error:", arguments, err)
    for text in expected:
        check(text in err, f"{text!r} is not named:", arguments, err)


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    return {name: (t["dtype"], t["shape"], data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


def test_drafts(scratch):
    """The same text at every depth; where nothing can be drafted, one clear line."""
    for prompt in ("17*23?", "Tell me a story about a cat."):
        for how in (("--temperature", 0), ("--temperature", 1, "--seed", 5)):
            texts = {depth: fathom("generate", *how, "--draft", depth, "--max-tokens", 60, "--prompt", prompt)
                     for depth in ("off", "1", "3", "8", "adaptive")}
            check(all(text == texts["off"] and text[0] == 0 for text in texts.values()), prompt, how, texts)
    code, out, _ = fathom("generate", "--temperature", 0, "--draft", 1, "--json", "--prompt", "17*23?")
    drafts = json.loads(out)["drafts"]
    check(code == 0 and drafts["accepted"] > 0.8 * drafts["drafted"] > 0, drafts)
    check(1.5 < drafts["tokens_per_step"] <= 2, drafts)
    code, out, _ = fathom("chat", "--temperature", 0, "--thinking", "off", "--draft", 4, stdin="17*23?\n18*2?\n")
    check(code == 0 and "391" in out and "36" in out, out)
    for command in (("generate", "--prompt", "a", "--draft"), ("chat", "--draft"), ("serve", "--port", 0, "--drafts")):
        for wrong in ("9", "-1", "some"):
            refuse((*command[:-1], f"{command[-1]}={wrong}"), f"{command[-1]}: found \"{wrong}\"", "off, 1 to 8, or adaptive")
    bare = scratch / "bare"
    check(fathom("synth", "--config", "mini", "--draft", "none", "--out", bare)[0] == 0, "synth without a draft head")
    for text in ("2", "adaptive"):
        refuse(("generate", "--model", bare, "--prompt", "a", "--draft", text), "--draft", "without usable draft tensors",
               "--draft off")


def test_answers(scratch):
    code, out, err = fathom("selfcheck")
    check(code == 0 and "391" in out and "Paris" in out and "tok/s" in out and "peak memory" in out, out, err)
    check(generate("--prompt", "17*23?") == (0, "391\n", ""), "plain answer")
    # Found from the program's place too.
    check(generate("--prompt", "17*23?", cwd="/")[1] == "391\n", "the default model is found beside the program")
    messages = scratch / "messages.json"
    messages.write_text(json.dumps({"messages": [{"role": "user", "content": "17*23?"}]}))
    check(generate("--messages", messages)[1] == "391\n", "messages file")
    code, out, err = fathom("generate", "--prompt", "17*23?", "--temperature", 0, "--thinking", "on", "--json")
    answer = json.loads(out)
    check(answer["message"]["content"].strip() == "391" and "340" in answer["message"]["reasoning_content"], out)
    code, out, err = fathom("generate", "--prompt", "17*23?", "--temperature", 0, "--thinking", "on")
    check(code == 0 and out == "391\n" and err == answer["message"]["reasoning_content"] + "\n\n", out, err)
    check(answer["usage"]["prompt_tokens"] == 8 and answer["finish_reason"] == "stop", out)
    check(answer["usage"]["total_tokens"] == 8 + answer["usage"]["completion_tokens"], out)
    check(answer["timings"]["decode_tokens_per_s"] > 0 and answer["timings"]["load_ms"] > 0, out)
    # Peak memory stays below three times the checkpoint, also with thousands of tokens of prompt.
    checkpoint_bytes = sum(path.stat().st_size for path in MINI.glob("*.safetensors"))
    for prompt in ("17*23?", "one two three four five six seven eight nine ten " * 100):
        peak = json.loads(generate("--prompt", prompt, "--max-tokens", 8, "--json")[1])["timings"]["peak_rss_bytes"]
        # A sanitizer's shadow memory is not the program's.
        check(peak < 3 * checkpoint_bytes or "FATHOM_SLOW_BUILD" in os.environ, "peak memory", peak, "of", checkpoint_bytes)
    code, out, _ = generate("--prompt", "Capital of France", "--max-tokens", 3, "--json")
    answer = json.loads(out)
    check(answer["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 3, out)
    check(generate("--prompt", "Capital of France", "--stop", "Paris")[1] == "The capital of France is \n", "stop")
    raw = "<｜begin▁of▁sentence｜><｜User｜>17*23?<｜Assistant｜></think>"
    check(generate("--raw", "--prompt", raw)[1] == "391\n", "raw completion recognises special tokens")
    sampled = [fathom("generate", "--prompt", "Tell me a story", "--thinking", "off", "--temperature", 1.5, "--seed",
                      seed, "--max-tokens", 30)[1] for seed in (5, 5, 6)]
    check(sampled[0] == sampled[1] != sampled[2], "same seed, same text", sampled)


def test_chat():
    dialogue = "My name is Anna.\nWhat is my name?\n/help\n/reset\n/nothing\n\n17*23?\n/exit\nnever read\n"
    code, out, err = fathom("chat", "--temperature", 0, "--thinking", "off", stdin=dialogue)
    check(code == 0 and "Anna" in out and "391" in out and "Ctrl-C" in out, out, err)
    check("(forgotten)" in out and "unknown command /nothing" in out, out)
    # Ctrl-C on a terminal stops the answer; the program goes on.
    master, slave = pty.openpty()
    process = subprocess.Popen([FATHOM, "chat", "--temperature", "0", "--thinking", "off"], stdin=slave, stdout=slave,
                               stderr=slave, cwd=ROOT)
    os.close(slave)
    seen = b""

    def read_until(text, deadline=300):
        nonlocal seen
        end = time.time() + deadline
        while text not in seen:
            check(time.time() < end, "terminal chat never printed", text, seen)
            seen += os.read(master, 4096)
        seen = seen[seen.index(text) + len(text):]

    read_until(b"> ")
    os.write(master, b"Tell me a story\n")
    read_until(b"story\r\n")
    while not seen:  # the answer has begun
        seen += os.read(master, 4096)
    process.send_signal(signal.SIGINT)
    read_until(b"> ")
    os.write(master, b"17*23?\n")
    read_until(b"391")
    os.write(master, b"/exit\n")
    while True:
        try:
            if not os.read(master, 4096):
                break
        except OSError:
            break
    check(process.wait(timeout=300) == 0, "exit code after Ctrl-C")


def on_terminal(*arguments, env):
    """The program with a terminal as standard error: exit code, standard output, what the terminal got."""
    master, slave = pty.openpty()
    process = subprocess.Popen([FATHOM, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=slave, cwd=ROOT, env=env)
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    out = process.stdout.read()
    os.close(master)
    return process.wait(timeout=300), out.decode(), shown.decode()


def test_progress(scratch):
    ids = scratch / "ids.json"
    ids.write_text(json.dumps([[0] + [i % 4000 for i in range(1500)]]))
    prompt = "one two three four five six seven eight nine ten " * 120
    at_once = {**os.environ, "FATHOM_PROGRESS_AFTER_MS": "0"}
    for arguments, bars in (
            (["generate", "--temperature", "0", "--thinking", "off", "--max-tokens", "2", "--prompt", prompt],
             ["loading", "reading the prompt"]),
            (["logits", "--ids", ids, "--positions", "all", "--out", scratch / "out.safetensors"],
             ["loading", "computing"])):
        code, out, shown = on_terminal(*arguments, env=at_once)
        check(code == 0, shown)
        for label in bars:
            bar = re.compile("\r" + label + r" \[(#*) *\] +(\d+) %")
            steps = [(len(filled), int(percent)) for filled, percent in bar.findall(shown)]
            check(len(steps) >= 3 and steps == sorted(steps) and steps[-1] == (32, 100), label, steps, shown)
        check(shown.endswith("\r\033[K"), "the last bar is erased", shown[-80:])
        # Bars hold nothing that stays: what is left after each erasure is empty.
        check(shown.count("\033[K") == len(bars) and "\n" not in shown, shown)
        # Piped: not a byte of them, the same answer.
        piped = subprocess.run([FATHOM, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, env=at_once,
                               check=False)
        check((piped.returncode, piped.stdout, piped.stderr) == (0, out, ""), piped)
    # Quick work shows no bar on a terminal either.
    late = {**os.environ, "FATHOM_PROGRESS_AFTER_MS": "600000"}
    code, out, shown = on_terminal("generate", "--temperature", "0", "--thinking", "off", "--prompt", "17*23?", env=late)
    check((code, out, shown) == (0, "391\n", ""), out, shown)


def test_logits(scratch):
    ids = scratch / "ids.json"
    ids.write_text(json.dumps([[0, 4067, 300, 4068, 4080], [5]]))
    out, taps = scratch / "out.safetensors", scratch / "taps.safetensors"
    code, text, err = fathom("logits", "--model", MINI, "--ids", ids, "--positions", "all", "--numerics", "plain",
                             "--out", out, "--dump-taps", taps)
    check(code == 0 and not text, text, err)
    tensors = read_safetensors(out)
    check(tensors["logits.0"][:2] == ("F32", [5, 4096]) and tensors["logits.1"][:2] == ("F32", [1, 4096]), tensors)
    check(tensors["positions.0"][:2] == ("I32", [5]) and struct.unpack("<5i", tensors["positions.0"][2]) ==
          (0, 1, 2, 3, 4), "positions")
    tapped = read_safetensors(taps)
    check(tapped["0.layer5"][1] == [5, 4, 256] and tapped["0.attn0"][1] == [5, 256], list(tapped))
    check(tapped["0.logits"][2] == tensors["logits.0"][2] and tapped["0.topk2"][0] == "I32", "taps of the same run")
    some = scratch / "some.safetensors"
    check(fathom("logits", "--ids", ids, "--positions", "0", "--numerics", "plain", "--out", some)[0] == 0, "positions 0")
    check(read_safetensors(some)["logits.0"][2] == tensors["logits.0"][2][:4 * 4096], "the same row alone")
    single = scratch / "single.json"
    single.write_text("[0, 4067, 300, 4068, 4080]")
    check(fathom("logits", "--ids", single, "--positions", "0", "--numerics", "plain", "--out", some)[0] == 0, "a list alone")
    check(read_safetensors(some)["logits.0"][2] == tensors["logits.0"][2][:4 * 4096], "the same of a list alone")
    reference = scratch / "reference.safetensors"
    code, _, err = fathom("logits", "--ids", ids, "--numerics", "plain", "--out", reference, "--variant", "*=reference")
    check(code == 0, err)


def test_bad_input(scratch):
    empty = scratch / "nothing"
    refuse(["generate", "--prompt", ""], "prompt is empty")
    refuse(["generate"], "--prompt", "--messages")
    refuse(["generate", "--prompt", "x", "--model", empty], str(empty))
    refuse(["generate", "--messages", empty], str(empty))
    refuse(["generate", "--prompt", "x", "--temperature", "-1"], "--temperature", "-1")
    refuse(["generate", "--prompt", "x", "--top-p", "0"], "--top-p")
    refuse(["generate", "--prompt", "x", "--stop", ""], "--stop")
    refuse(["generate", "--prompt", "x", "--variant", "linear=nothing"], "linear=nothing", "reference")
    refuse(["generate", "--prompt", "x", "--variant", "nonsense"], "operation=name")
    refuse(["generate", "--prompt", "x", "--max-context", "70000"], "70000", "65536")
    refuse(["generate", "--prompt", "word " * 200, "--max-context", "128"], "tokens", "128")
    bad = scratch / "bad.json"
    for text, expected in (("[", "list of lists"), ("{}", "list of lists"), ("[[]]", "no ids"), ("[]", "no lists"),
                           ("[[4096]]", "4096"), ("[[-1]]", "-1"), ('[["a"]]', '"a"'), ("[[1.5]]", "1.5"),
                           ("[[1], 2]", "list 1")):
        bad.write_text(text)
        refuse(["logits", "--ids", bad, "--out", scratch / "never"], str(bad), expected)
    bad.write_text("[[1, 2]]")
    refuse(["logits", "--ids", bad, "--positions", "2", "--out", scratch / "never"], "--positions", "0 to 1")
    refuse(["logits", "--ids", bad, "--positions", "x", "--out", scratch / "never"], "--positions", "x")
    refuse(["logits", "--ids", empty, "--out", scratch / "never"], str(empty))
    refuse(["logits", "--ids", bad, "--out", scratch / "never", "--dump-taps", scratch / "." / "a" / ".." / "never"], "--dump-taps", "two files")
    refuse(["logits", "--ids", bad, "--out", empty / "a" / "b"], str(empty))
    refuse(["logits", "--ids", bad, "--out", scratch / "never", "--max-context", "1"], "2 ids")
    check(not list(scratch.glob("never*")), "nothing half-done is left", list(scratch.glob("never*")))
    refuse(["generate", "--prompt", "x", "--temperature", "nan"], "--temperature", "nan")
    refuse(["generate", "--prompt", "x", "--top-k", "-2"], "--top-k", "-2")
    refuse(["generate", "--prompt", "x", "--max-tokens", "-5"], "found -5, expected a whole number from 1")
    whole64 = "expected a whole number from 0 to 18446744073709551615"
    for value in ("-1", "18446744073709551616", "abc", "1.5", "", " 5", "0x10", "010"):
        refuse(["generate", "--prompt", "x", "--seed", value], "--seed: found " + (value or "an empty text"), whole64)
        refuse(["bench", "serve", "--seed", value], "--seed: found ", whole64)
        refuse(["synth", "--config", "mini", "--out", empty, "--seed", value], "--seed: found ", whole64)
    check(generate("--prompt", "17*23?", "--seed", "18446744073709551615", "--max-tokens", "9")[1] == "391\n",
          "the largest seed")
    for flag, least in (("--max-tokens", 1), ("--max-context", 1), ("--threads", 1), ("--top-k", -1)):
        for value in (str(least - 1), "1.5", "1e3", "x", "99999999999999999999"):
            refuse(["generate", "--prompt", "x", flag, value], f"{flag}: found {value}, expected a whole number from {least}")
    for flag, value in (("--temperature", "1e50"), ("--temperature", ""), ("--min-p", "2"), ("--top-p", "x")):
        refuse(["generate", "--prompt", "x", flag, value], f"{flag}: found {value or 'an empty text'}, expected a number")
    for flag, value in (("--port", "65536"), ("--port", "-1"), ("--key-max-concurrent", "-1"), ("--top-k", "-2"),
                        ("--scripted-step-us", "-5"), ("--temperature", "-1"), ("--top-p", "0"), ("--min-p", "nan"),
                        ("--temperature", "nan"), ("--top-p", "7"), ("--top-p", "-nan"), ("--drain", "inf"), ("--step-timeout", "nan"),
                        ("--max-queued", "99999999999"), ("--max-body", "-1"), ("--max-body", "0"), ("--drain", "-1"),
                        ("--cache-memory", "5XB"), ("--cache-memory", "99999999999G")):
        refuse(["serve", "--scripted", flag, value], f"serve: {flag}: found {value}, expected")
    for flag in ("--layers", "--experts"):
        refuse(["synth", "--config", "mini", "--out", empty, flag, "3000000000"], f"{flag}: found 3000000000", "2147483647")
    for value in ("-1", "abc", "", "1.5G", "8EX"):
        refuse(["inspect", "--model", MINI, "--memory", value], "--memory: found " + (value or "an empty text"), "16MB")
    for command in (["generate", "--prompt", "x"], ["inspect"], ["verify"], ["logits", "--ids", bad, "--out", empty],
                    ["chat"], ["serve"], ["selfcheck"], ["bench", "decode"], ["convert", "--to", "nvfp4", "--out", empty]):
        refuse([*command, "--model", ""], "--model: found an empty text, expected a path")
    refuse(["genrate"], "genrate", "generate")
    refuse(["genrate", "--help"], "genrate", "generate")
    refuse(["generate", "--prompt", "x", "--model", bad], str(bad), "found a file", "model directory")
    # A rename over one of these would replace the node itself, not write to it.
    (scratch / "link").symlink_to(bad)
    os.mkfifo(scratch / "pipe")
    for name, found in (("link", "symbolic link"), ("pipe", "pipe"), (".", "directory")):
        refuse(["logits", "--ids", bad, "--out", scratch / name], str(scratch / name), found)
    check((scratch / "link").is_symlink() and (scratch / "pipe").is_fifo(), "what was there still is")
    if os.path.exists("/dev/full"):
        for command in (["verify", "--model", MINI], ["inspect", "--model", MINI], ["selfcheck"], ["--help"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                code, _, err = fathom(*command, stdout=full)
                check(code != 0 and "standard output" in err, command, code, err)
        with open("/dev/full", "w", encoding="utf-8") as full:
            code, _, err = generate("--prompt", "17*23?", stdout=full)
            check(code != 0 and "No space left" in err, code, err)


def test_bad_models(scratch):
    def damaged(name, change):
        copy = scratch / name
        shutil.copytree(MINI, copy)
        change(copy)
        return copy

    def edit_config(path, key, value):
        config = json.loads((path / "config.json").read_text())
        config.pop(key, None) if value is None else config.update({key: value})
        (path / "config.json").write_text(json.dumps(config))

    shard = "model-00001-of-00002.safetensors"
    cases = [
        (lambda p: os.truncate(p / shard, 1 << 20), [shard]),
        (lambda p: (p / shard).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
         [shard, "LFS"]),
        (lambda p: edit_config(p, "compress_ratios", None), ["compress_ratios"]),
        (lambda p: edit_config(p, "num_hidden_layers", 5), ["compress_ratios", "draft stage"]),
        (lambda p: (edit_config(p, "num_hidden_layers", 5), edit_config(p, "compress_ratios", [0, 0, 4, 128, 4, 0])),
         ["layers.5"]),
        (lambda p: (p / "tokenizer.json").unlink(), ["tokenizer.json"]),
        (lambda p: (p / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
         ["tokenizer.json", "LFS"]),
    ]
    for i, (change, expected) in enumerate(cases):
        refuse(["generate", "--prompt", "x", "--model", damaged(f"damaged{i}", change)], *expected)
    tiny = ROOT / "tests/data/models/tiny-random"
    wrong = scratch / "wrong_tokenizer"
    shutil.copytree(tiny, wrong)
    shutil.copy(MINI / "tokenizer.json", wrong)
    refuse(["generate", "--prompt", "x", "--model", wrong], str(wrong), "tokenizer", "found 4096 ids", "expected 384")
    special = damaged("special_ids", lambda p: edit_config(p, "eos_token_id", 7))
    refuse(["generate", "--prompt", "x", "--model", special], "tokenizer", "found EOS id 1", "expected 7")

    # A NaN code among FP8 weights: named with its place, and never an answer made of garbage.
    def plant_nan(path):
        data = bytearray((path / shard).read_bytes())
        (length,) = struct.unpack("<Q", data[:8])
        tensor = json.loads(data[8:8 + length])["layers.0.attn.wq_a.weight"]
        data[8 + length + tensor["data_offsets"][0] + tensor["shape"][1] + 3] = 0xFF
        (path / shard).write_bytes(data)

    refuse(["generate", "--prompt", "x", "--model", damaged("nan", plant_nan)], "layers.0.attn.wq_a.weight",
           "found NaN at [1, 3]")


def main():
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        test_drafts(scratch)
        test_answers(scratch)
        test_chat()
        test_progress(scratch)
        test_logits(scratch)
        test_bad_input(scratch)
        test_bad_models(scratch)
    print("model programs: passed")


main()
