#!/usr/bin/env python3
"""Loading a checkpoint of full Flash width beside `cat` of the same files from the same cache state.

Writes Flash layers of random weights, reads them into the page cache, then alternates `cat` with a whole run of
`fathom logits` on one token (loading, one forward, writing) and compares the best of each. Prints peak memory.
Fails when loading is slower than 80 % of cat's speed, or memory is over the weights + 1 GB.
usage: loading_speed.py FATHOM [--checkpoint DIR]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROUNDS = 5


def run(command, stdout=subprocess.DEVNULL):
    begin = time.monotonic()
    child = subprocess.Popen([str(word) for word in command], stdout=stdout)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"failed with {child.returncode}: {' '.join(map(str, command))}")
    return seconds, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fathom")
    parser.add_argument("--checkpoint", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        model = options.checkpoint or scratch / "flash"
        if options.checkpoint is None:
            run([options.fathom, "synth", "--config", "flash", "--layers", 3, "--experts", 8, "--draft", "none", "--out",
                 model])
        shards = sorted(model.glob("*.safetensors"))
        size = sum(shard.stat().st_size for shard in shards)
        ids = scratch / "ids.json"
        ids.write_text(json.dumps([[1]]))
        load = [options.fathom, "logits", "--model", model, "--ids", ids, "--out", scratch / "out.safetensors",
                "--max-context", 128]
        cat_seconds, load_seconds, peak = [], [], 0
        run(["cat", *shards])
        for _ in range(ROUNDS):
            # Through a pipe: into /dev/null `cat` moves no byte.
            begin = time.monotonic()
            with subprocess.Popen(["cat", *map(str, shards)], stdout=subprocess.PIPE) as cat:
                while cat.stdout.read(1 << 20):
                    pass
            cat_seconds.append(time.monotonic() - begin)
            seconds, memory = run(load)
            load_seconds.append(seconds)
            peak = max(peak, memory)
    # Experts that the token does not use stay unread in the map: only what became resident counts as loaded.
    loaded = min(peak, size)
    cat_speed, load_speed = size / 1e9 / min(cat_seconds), loaded / 1e9 / min(load_seconds)
    share = load_speed / cat_speed
    print(f"{size / 1e9:.2f} GB: cat {cat_speed:.2f} GB/s, load with one forward {load_speed:.2f} GB/s "
          f"({share:.0%} of cat), peak memory {peak / 1e9:.2f} GB")
    if share < 0.8:
        sys.exit("loading is slower than 80 % of cat")
    if peak > size + 1_000_000_000:
        sys.exit("peak memory is over the weights + 1 GB")


if __name__ == "__main__":
    main()
