#!/usr/bin/env python3
"""fathom tokenize, render and parse as a user meets them: exact output, exit codes, one clear error.

    tests/text_programs.py PATH_TO_FATHOM
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FATHOM = sys.argv[1]
MINI = ROOT / "models/mini-v4"
DATA = ROOT / "tests/data/text"
EOS = "<｜end▁of▁sentence｜>"


def fathom(*arguments, text=""):
    done = subprocess.run([FATHOM, *map(str, arguments)], input=text.encode(), capture_output=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def check(condition, *context):
    if not condition:
        print("FAILED:", *context)
        sys.exit(1)


def check_error(expected, *arguments, text=""):
    code, out, error = fathom(*arguments, text=text)
    check(code != 0 and expected in error and out == "", arguments, code, out, error)
    check(len(error.strip().splitlines()) <= 2, "one error", error)


def test_tokenize():
    vectors = json.loads((DATA / "random_vectors.json").read_text())[:300]
    for tokenizer in (MINI, MINI / "tokenizer.json"):
        lines = "".join(json.dumps({"text": v["text"]}) + "\n" for v in vectors)
        code, out, error = fathom("tokenize", "--tokenizer", tokenizer, text=lines)
        check(code == 0 and error == "", error)
        check([json.loads(line)["ids"] for line in out.splitlines()] == [v["mini"] for v in vectors], "ids")
        code, back, error = fathom("tokenize", "--tokenizer", tokenizer, "--decode", text=out)
        check(code == 0 and [json.loads(line)["text"] for line in back.splitlines()] == [v["text"] for v in vectors])
    control = json.dumps({"text": "</think>" + EOS}) + "\n"
    recognised = json.loads(fathom("tokenize", "--tokenizer", MINI, text=control)[1])["ids"]
    plain = json.loads(fathom("tokenize", "--tokenizer", MINI, "--no-special", text=control)[1])["ids"]
    check(recognised == [4080, 1] and len(plain) > 2, recognised, plain)
    shown = fathom("tokenize", "--tokenizer", MINI, "--decode", "--no-special", text='{"ids": [4080, 1]}')[1]
    check(json.loads(shown) == {"text": "</think>"}, shown)

    here = ("tokenize", "--tokenizer", MINI)
    check_error("line 2: not valid JSON", *here, text='\n{"text" 1}')
    check_error("surrogate", *here, text='{"text": "a \\ud83d b"}')
    check_error('expected {"text": "..."}', *here, text='{"ids": [1]}')
    check_error("ids[1]: found 4096, expected an id from 0 to 4095", *here, "--decode", text='{"ids": [1, 4096]}')
    check_error("ids[0]: found -1", *here, "--decode", text='{"ids": [-1]}')
    check_error("/nowhere", "tokenize", "--tokenizer", "/nowhere")
    check_error("tokenizer.json: the file: found", "tokenize", "--tokenizer", DATA / "completions.json")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([FATHOM, *map(str, here)], input=b'{"text": "x"}', stdout=full, stderr=subprocess.PIPE,
                              check=False)
    check(done.returncode == 1 and b"writing standard output: No space left" in done.stderr, done.stderr)


def write_checkpoint(folder, tensor):
    """The least a checkpoint can be: one empty tensor of this name."""
    folder.mkdir()
    header = json.dumps({tensor: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def test_render(scratch):
    for number in "12":
        code, out, error = fathom("render", "--model", MINI, "--messages", DATA / f"encoding/test_input_{number}.json")
        check(code == 0 and out == (DATA / f"encoding/test_output_{number}.txt").read_text(), out, error)

    messages = scratch / "messages.json"
    messages.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}))
    start, end = "<｜begin▁of▁sentence｜>", "<｜User｜>Hi<｜Assistant｜>"
    code, out, _ = fathom("render", "--release", "0731", "--messages", messages, "--thinking", "off")
    check(code == 0 and out == start + end + "</think>", out)

    # The release follows from the draft tensors, with and without a leading "model."; the flag overrides it.
    for name, tensor, release in (("a", "mtp.0.main_proj.weight", "0731"), ("b", "model.mtp.0.main_proj.weight", "0731"),
                                  ("c", "mtp.0.e_proj.weight", "preview"), ("d", "embed.weight", "preview")):
        write_checkpoint(scratch / name, tensor)
        for effort in ("low", "high", "max"):
            arguments = ("--messages", messages, "--effort", effort)
            by_tensors = fathom("render", "--model", scratch / name, *arguments)
            check(by_tensors[0] == 0, by_tensors)
            check(by_tensors == fathom("render", "--release", release, *arguments), name, effort)
            for given in ("preview", "0731"):
                check(fathom("render", "--model", scratch / name, "--release", given, *arguments)
                      == fathom("render", "--release", given, *arguments), "the flag overrides", name)
    prefixes = {(r, e): fathom("render", "--release", r, "--effort", e, "--messages", messages)[1]
                for r in ("preview", "0731") for e in ("low", "high", "max")}
    plain = start + end + "<think>"
    check(prefixes["preview", "low"] == prefixes["preview", "high"] == prefixes["0731", "low"] == plain, prefixes)
    check(prefixes["preview", "max"] == prefixes["0731", "high"] != plain, prefixes)
    check("Beyond maximum" in prefixes["0731", "max"], prefixes)

    check_error("/nowhere", "render", "--model", "/nowhere", "--messages", messages)
    check_error("/nowhere.json", "render", "--model", MINI, "--messages", "/nowhere.json")
    messages.write_text('[{"role": "user", "content": "a"}, {"role": "user", "content": 5}]')
    check_error("messages[1].content: found a number", "render", "--model", MINI, "--messages", messages)
    messages.write_text('{"messages": []}')
    check_error("messages: found an empty array", "render", "--model", MINI, "--messages", messages)
    check_error("--effort", "render", "--model", MINI, "--messages", messages, "--effort", "huge")


def test_parse():
    call = ('\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="n" string="false">5'
            "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>" + EOS)
    code, out, _ = fathom("parse", "--thinking", "on", text="r</think>" + call)
    function = {"name": "f", "arguments": '{"n": 5}'}
    check(code == 0 and json.loads(out) == {"role": "assistant", "reasoning_content": "r", "content": "",
                                            "tool_calls": [{"type": "function", "function": function}]}, out)
    for text in ("ends in 2 <", "", "a\n\n", "é 😀"):
        message = json.loads(fathom("parse", "--thinking", "off", text=text)[1])
        check(message["content"] == text and message["reasoning_content"] == "" and message["tool_calls"] == [], message)
    cut = json.loads(fathom("parse", "--thinking", "off", text=call[:-60])[1])
    check(cut["tool_calls"] == [] and cut["incomplete_tool_call"]["function"]["name"] == "f", cut)
    check_error("--thinking", "parse", text="x")


with tempfile.TemporaryDirectory() as folder:
    test_tokenize()
    test_render(pathlib.Path(folder))
    test_parse()
print("ok")
