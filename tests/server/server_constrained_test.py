"""What a constrained stream costs the others beside it: their time between tokens with and without it, in turns.

On the scripted executor with the mini vocabulary, and with the real one of 129,280 tokens where ../shared is there. The
bound is on the ratio of medians, taken in alternating rounds of one run, so that a busy machine weighs on both alike.
"""
import json
import os
import pathlib
import statistics
import threading
import time
import unittest

from server_under_test import Server, program_path

NUM_FREE = 8
ROUNDS = 6
ROUND_SECONDS = 1.5
BOUND = 1.5
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
                                           "size": {"type": "number"}}, "required": ["name", "tags", "size"]}


class Stream(threading.Thread):
    """Reads one long stream; notes when each token came."""

    def __init__(self, server, body):
        super().__init__(daemon=True)
        self.server, self.body, self.times, self.ended = server, body, [], False
        self.connection = None

    def run(self):
        self.connection = self.server.connect(300)
        try:
            self.connection.request("POST", "/v1/completions", json.dumps({**self.body, "stream": True}).encode())
            response = self.connection.getresponse()
            assert response.status == 200, response.read()
            while line := response.readline():
                if line.startswith(b'data: {'):
                    self.times.append(time.monotonic())
        except (OSError, ValueError, AttributeError):
            pass
        self.ended = True

    def leave(self):
        if self.connection is not None and self.connection.sock is not None:
            self.connection.sock.shutdown(2)


class ConstrainedTest(unittest.TestCase):
    def measure(self, server):
        """(medians without, medians with, tokens of the constrained stream), by round."""
        free = [Stream(server, {"prompt": f"free {i} ", "max_tokens": 15000, "ignore_eos": True, "temperature": 0}) for i in range(NUM_FREE)]
        for stream in free:
            stream.start()
        while not all(len(s.times) > 5 for s in free):
            time.sleep(0.02)
        without, beside, constrained_tokens = [], [], 0
        for _ in range(ROUNDS):
            for constrained in (False, True):
                bound = None
                if constrained:
                    # Temperature 1 and no end: strings go on as long as the round.
                    bound = Stream(server, {"prompt": "Say ⟦nothing of the kind ×2000⟧", "max_tokens": 12000, "temperature": 1,
                                            "ignore_eos": True, "guided_json": SCHEMA})
                    bound.start()
                    while len(bound.times) < 3 and not bound.ended:
                        time.sleep(0.01)
                begin = time.monotonic()
                time.sleep(ROUND_SECONDS)
                end = time.monotonic()
                gaps = []
                for stream in free:
                    times = [t for t in list(stream.times) if begin <= t <= end]
                    gaps += [b - a for a, b in zip(times, times[1:])]
                (beside if constrained else without).append(statistics.median(gaps))
                if bound is not None:
                    constrained_tokens += len(bound.times)
                    self.assertFalse(bound.ended, "the constrained stream lasted the round")
                    bound.leave()
                    bound.join(30)
        for stream in free:
            stream.leave()
        for stream in free:
            stream.join(30)
        return without, beside, constrained_tokens

    def check(self, name, *flags, model="models/mini-v4"):
        with Server(program_path(), "--scripted-step-us", "3000", *flags, model=model) as server:
            if not server.has_grammar():
                self.skipTest("this build has no grammar library")
            without, beside, tokens = self.measure(server)
        ratio = statistics.median(b / a for a, b in zip(without, beside))
        print(f"{name}: {NUM_FREE} streams, median between tokens {1000 * statistics.median(without):.2f} ms alone, "
              f"{1000 * statistics.median(beside):.2f} ms beside a constrained one ({tokens} tokens): {ratio:.2f} x, bound {BOUND}", flush=True)
        self.assertGreater(tokens, 50)
        self.assertLess(ratio, BOUND)

    def test_mini_vocabulary(self):
        self.check("4,096 tokens")

    def test_real_vocabulary(self):
        shared = pathlib.Path(os.environ.get("FATHOM_SHARED", "../shared")) / "data" / "tokenizer"
        if not (shared / "tokenizer.json").exists():
            self.skipTest("../shared is absent: the real tokenizer is not in the project")
        self.check("129,280 tokens", "--release", "0731", model=str(shared))


if __name__ == "__main__":
    unittest.main()
