#!/usr/bin/env python3
"""fathom's tokenizer against PyPI `tokenizers` on random Unicode text.

Compare (needs the `tokenizers` package, 0.21 or later, whose regular expressions know Unicode 16):
    compare_tokenizers.py --fathom build/fathom --tokenizer models/mini-v4/tokenizer.json --cases 20000 --seed 1
With --venv DIR the package is installed there first. Exit 77 when it cannot be had (offline): a skip for CTest.

Write the vector file that the quick tests read:
    compare_tokenizers.py --write tests/data/text/random_vectors.json --cases 2000 --seed 1 \\
        --tokenizer models/mini-v4/tokenizer.json --tokenizer ../shared/data/tokenizer/tokenizer.json
"""
import argparse
import json
import os
import random
import subprocess
import sys

PACKAGE = "tokenizers>=0.21,<1"
SKIP = 77

SPACES = [0x20] * 6 + [0x9, 0xA, 0xA, 0xB, 0xC, 0xD, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
NOT_SPACES = [0x1C, 0x1D, 0x1E, 0x1F, 0x200B, 0x200D, 0x180E, 0xFEFF, 0x2060, 0x0, 0x7F]
RANGES = {
    "ascii": (0x21, 0x7E), "latin": (0xC0, 0x24F), "greek": (0x370, 0x3FF), "cyrillic": (0x400, 0x4FF),
    "hebrew": (0x591, 0x5F4), "arabic": (0x600, 0x6FF), "devanagari": (0x900, 0x97F), "thai": (0xE01, 0xE5B),
    "marks": (0x300, 0x36F), "kana": (0x3040, 0x30FF), "cjk": (0x4E00, 0x9FFF), "cjk edge": (0x9FA0, 0x9FAF),
    "hangul": (0xAC00, 0xD7A3), "emoji": (0x1F300, 0x1FAFF), "punctuation": (0x2000, 0x206F),
    "symbols": (0x2190, 0x27BF), "numbers": (0x2150, 0x218F), "full width": (0xFF00, 0xFFEF),
    "cjk punctuation": (0x3000, 0x303F), "halves and powers": (0xB2, 0xBE), "variation": (0xFE00, 0xFE0F),
}
PHRASES = ["Hello, world!", "don't", "x = foo(bar[3], ~y);", "\n\n\n  ", "   a", "  \r\n", "1234567", "3.14", "#include",
           "~~~", " ~", "~abc", "/usr/lib", "ａ１", "½", "Ⅷ", "٣٤٥٦", "e\u0301", "ーン", "・", "一二", "〇", "🇺🇸", "👨‍👩‍👧"]
CONTROL = ["<｜User｜>", "</think>", "<think>", "｜DSML｜", "<｜end▁of▁sentence｜>", "<｜User", "<｜", "｜>"]


def random_text(rng):
    kinds = rng.sample(list(RANGES), rng.randint(1, 4))
    out = []
    for _ in range(rng.randint(1, 14)):
        choice = rng.random()
        if choice < 0.45:
            low, high = RANGES[rng.choice(kinds)]
            out.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 4))))
        elif choice < 0.62:
            out.append("".join(chr(rng.choice(SPACES)) for _ in range(rng.randint(1, 3))))
        elif choice < 0.67:
            out.append(chr(rng.choice(NOT_SPACES)))
        elif choice < 0.75:
            out.append(rng.choice("~!#$%^&*()_+-=[]{}|;:'\",.<>/?`@\\") + rng.choice(["", "abc", "Z", "é", "9"]))
        elif choice < 0.85:
            out.append(rng.choice(PHRASES))
        elif choice < 0.88:
            out.append(rng.choice(CONTROL))
        else:
            point = rng.randrange(0x110000 - 0x800)
            out.append(chr(point if point < 0xD800 else point + 0x800))
    return "".join(out)


def random_texts(count, seed):
    rng = random.Random(seed)
    return [random_text(rng) for _ in range(count)]


def reference(path, special):
    """The package's tokenizer; with special off its added tokens are taken out, so that all text is plain."""
    from tokenizers import Tokenizer

    with open(path, encoding="utf-8") as f:
        description = json.load(f)
    added = description["added_tokens"]
    if special:
        # The package numbers added tokens one after the other; where the file leaves ids unnamed, fill them.
        named = {t["id"] for t in added} | set(description["model"]["vocab"].values())
        gaps = [dict(added[-1], id=i, content=f"\x00unnamed {i}\x00") for i in range(max(named)) if i not in named]
        description["added_tokens"] = sorted(added + gaps, key=lambda t: t["id"])
    else:
        description["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(description))


def encode(tokenizer, texts):
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def run_fathom(fathom, path, special, key, values, extra=()):
    command = [fathom, "tokenize", "--tokenizer", path, *extra, *([] if special else ["--no-special"])]
    lines = "".join(json.dumps({key: v}) + "\n" for v in values)
    done = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def compare(arguments):
    texts = random_texts(arguments.cases, arguments.seed)
    failures = 0
    for path in arguments.tokenizer:
        for special in (True, False):
            expected = encode(reference(path, special), texts)
            found = [r["ids"] for r in run_fathom(arguments.fathom, path, special, "text", texts)]
            differing = [i for i in range(len(texts)) if expected[i] != found[i]]
            for i in differing[:5]:
                print(f"{path}: {texts[i]!r}\n  tokenizers {expected[i]}\n  fathom     {found[i]}")
            decoded = [r["text"] for r in run_fathom(arguments.fathom, path, True, "ids", found, ["--decode"])]
            lost = [i for i in range(len(texts)) if decoded[i] != texts[i]]
            for i in lost[:5]:
                print(f"{path}: {texts[i]!r} decodes to {decoded[i]!r}")
            tokens = sum(map(len, expected))
            print(f"{path}, added tokens {'recognised' if special else 'plain'}: {len(texts)} texts, {tokens} tokens, "
                  f"{len(differing)} differ, {len(lost)} do not decode to themselves")
            failures += len(differing) + len(lost)
    return 1 if failures else 0


def write(arguments):
    texts = random_texts(arguments.cases, arguments.seed)
    all_ids = [encode(reference(path, True), texts) for path in arguments.tokenizer]
    names = ["mini", "real"]
    with open(arguments.write, "w", encoding="utf-8") as f:
        rows = []
        for i, text in enumerate(texts):
            row = {"text": text} | {name: ids[i] for name, ids in zip(names, all_ids)}
            rows.append(json.dumps(row, separators=(",", ":"), ensure_ascii=True))
        f.write("[" + ",\n".join(rows) + "]\n")
    print(f"{arguments.write}: {len(texts)} texts")
    return 0


def enter_venv(folder):
    """Restarts this script in a virtual environment that has the package, or skips."""
    python = os.path.join(folder, "bin", "python")
    if os.path.realpath(sys.prefix) == os.path.realpath(folder):
        return
    try:
        if not os.path.exists(python):
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        if subprocess.run([python, "-c", "import tokenizers"], stderr=subprocess.DEVNULL).returncode != 0:
            subprocess.run([python, "-m", "pip", "install", "-q", PACKAGE], check=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as e:
        print(f"skipped: cannot install {PACKAGE} from PyPI into {folder}: {e}")
        sys.exit(SKIP)
    os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fathom", default="build/fathom")
    parser.add_argument("--tokenizer", action="append", required=True, help="tokenizer.json; more than once for several")
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--venv", help="virtual environment to use, made when it is not there")
    parser.add_argument("--write", help="write a vector file instead of comparing")
    arguments = parser.parse_args()
    if arguments.venv:
        enter_venv(arguments.venv)
    arguments.tokenizer = [path for path in arguments.tokenizer if os.path.exists(path)]
    return write(arguments) if arguments.write else compare(arguments)


if __name__ == "__main__":
    sys.exit(main())
