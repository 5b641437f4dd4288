#!/usr/bin/env python3
"""Whether a capture of a running server changes what it answers, what it costs, and what it sees.

    tools/check_server_capture.py FATHOM [--device cuda] [--model DIR] [--drafts N] [--out FOLDER]

Starts `fathom serve`, sends the same seeded requests without a capture, under `fathom profile --attach`, and without
again. Answers must be the same token for token. Printed: the mean decode step of the three, by the server's own
counters, and what the captured steps are made of. Exit code 1 where answers differ, where nothing was attributed, or
where on a card captured decode steps were launched instead of replayed.
"""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request


def post(url, path, body, timeout=300):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return json.loads(reply.read())


def metric(url, name):
    with urllib.request.urlopen(url + "/metrics", timeout=60) as reply:
        text = reply.read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(re.escape(name) + r"(\{.*\})? ", line))


def wait_idle(url):
    while metric(url, "fathom_requests_running") > 0:
        time.sleep(0.02)


def answers(url, requests, tokens):
    """Texts of all requests at once, and the mean time of a step meanwhile."""
    wait_idle(url)
    before = metric(url, "fathom_steps_total"), metric(url, "fathom_busy_seconds_total")
    def one(i):
        body = {"prompt": f"Request {i}: once there were {i + 2} bears and", "max_tokens": tokens, "ignore_eos": True,
                "temperature": 0 if i % 2 == 0 else 0.8, "seed": i, "logprobs": 1}
        choice = post(url, "/v1/completions", body)["choices"][0]
        return choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]
    with concurrent.futures.ThreadPoolExecutor(requests) as pool:
        texts = list(pool.map(one, range(requests)))
    wait_idle(url)
    steps = metric(url, "fathom_steps_total") - before[0]
    return texts, steps, 1e6 * (metric(url, "fathom_busy_seconds_total") - before[1]) / max(1, steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fathom")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model")
    parser.add_argument("--drafts", default="0")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--steps", type=int, default=100, help="of the capture")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    model = ["--model", options.model] if options.model else []
    temporary = tempfile.TemporaryDirectory()
    folder = options.out or pathlib.Path(temporary.name) / "profile"
    log = open(pathlib.Path(temporary.name) / "log", "w+")
    server = subprocess.Popen([options.fathom, "serve", *model, "--port", "0", "--device", options.device, "--drafts",
                               options.drafts, "--prefix-cache", "off"], stdout=subprocess.PIPE, stderr=log, text=True)
    failures = []
    try:
        url = None
        for line in server.stdout:
            found = re.search(r"http://\S+", line)
            url = found.group(0) if found else url
            if line.strip() == "ready":
                break
        if url is None or server.poll() is not None:
            log.seek(0)
            print("the server did not start:\n" + log.read()[-2000:], file=sys.stderr)
            return 1
        answers(url, options.requests, 40)  # shapes are captured, pages touched
        plain, steps, plain_us = answers(url, options.requests, options.tokens)
        print(f"without a capture:          {steps:.0f} steps of {plain_us:8.1f} us")
        profile = subprocess.Popen([options.fathom, "profile", "--attach", url, "--steps", str(options.steps), "--repeats",
                                    "1", "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        time.sleep(0.3)
        captured, steps, captured_us = answers(url, options.requests, options.tokens)
        said = profile.communicate(timeout=120)[0]
        print(f"with one of {options.steps} steps:       {steps:.0f} steps of {captured_us:8.1f} us")
        again, steps, again_us = answers(url, options.requests, options.tokens)
        print(f"behind it:                  {steps:.0f} steps of {again_us:8.1f} us")
        if profile.returncode != 0:
            failures.append("fathom profile --attach: " + said)
        for name, texts in (("under the capture", captured), ("behind the capture", again)):
            if texts != plain:
                failures.append(f"answers {name} differ")
        print(f"{len(plain)} answers of {options.tokens} tokens, texts, ids and log probabilities: "
              + ("the same in all three" if not any("answers" in f for f in failures) else "DIFFERENT"))
        if not failures:
            report = json.loads((folder / "report.json").read_text())
            num_steps = sum(len(repeat) for repeat in report["step_us"])
            captured_step_us = sum(sum(repeat) for repeat in report["step_us"]) / num_steps
            operations = collections.Counter()
            for row in report["rows"]:
                operations[row["operation"]] += sum(row["time_us"]) / num_steps
            nobody = operations["kernel"] / max(1e-9, sum(operations.values()))
            print(f"the report: collector {report['run']['collector']}, {num_steps} steps of {captured_step_us:.1f} us, "
                  f"{100 * sum(operations.values()) / captured_step_us:.0f} % of them in calls, "
                  f"{100 * nobody:.1f} % of that nobody's")
            for note in report["notes"]:
                print("note:", note)
            print("operations, us a step:", ", ".join(f"{name} {us:.1f}" for name, us in operations.most_common(12)))
            if nobody > 0.005 or len(operations) < 10:
                failures.append("calls without an operation")
            if options.device == "cuda" and report["run"]["collector"] != "cupti":
                failures.append("no records of the card")
    finally:
        server.terminate()
        server.wait(60)
        log.seek(0)
        for line in log:
            if "warn" in line.lower() or "error" in line.lower():
                print("server:", line.rstrip())
        log.close()
    for failure in failures:
        print("FAILED:", failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
