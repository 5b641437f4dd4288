"""Device faults, injected into the thin device layer under a real server on the emulated device: every stream ends with
an error, new requests get 503, /health says why, and the process ends with code 70 after --fault-linger. No GPU.

FATHOM_FAULT_DEVICE=cuda runs the same on a GPU."""
import json
import os
import re
import threading
import time
import unittest

from server_under_test import PATIENCE_S, Server, program_path, wait_for

DEVICE = os.environ.get("FATHOM_FAULT_DEVICE", "emulated")
LINGER = 6.0  # the requests that are to meet the fault come within this time


class FaultTest(unittest.TestCase):
    def start(self, fault, *flags):
        os.environ["FATHOM_DEVICE_FAULT"] = fault
        try:
            server = Server(program_path(), "--device", DEVICE, "--max-context", "2048", "--max-running", "4",
                            "--fault-linger", str(LINGER), *flags, model=os.environ.get("FATHOM_MINI_MODEL", "models/mini-v4"),
                            scripted=False)
        finally:
            del os.environ["FATHOM_DEVICE_FAULT"]
        self.addCleanup(server.process.kill)
        return server

    def check_end(self, server, reason):
        """503 for requests and health while it lingers, then code 70."""
        health = server.get("/health")
        self.assertEqual(health.status, 503)
        self.assertIn(reason, health.text)
        reply = server.post("/v1/completions", {"prompt": "x", "max_tokens": 4})
        self.assertEqual(reply.status, 503)
        self.assertEqual(server.wait_exit(), 70)

    def check_load(self, fault, reason):
        begin = time.monotonic()
        server = self.start(fault)
        wait_for(lambda: reason in server.get("/health").text, "the load fails")
        self.check_end(server, reason)
        self.assertGreater(time.monotonic() - begin, LINGER)

    def test_no_device(self):
        self.check_load("no-device", "no CUDA device")

    def test_old_driver(self):
        self.check_load("old-driver", "needs 13.0")

    def test_out_of_memory_while_loading(self):
        self.check_load("out-of-memory:20", "out of memory")

    def streams_end(self, fault, reason, *flags):
        server = self.start(fault, *flags).wait_ready()
        replies = []

        def ask(number):
            # Forced past EOS: the streams run until the fault.
            replies.append(server.post("/v1/completions", {
                "prompt": f"Story {number}: once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True}))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]  # two wait in the queue
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            self.assertFalse(thread.is_alive(), "a stream hangs")
        self.assertEqual(len(replies), 6)
        for reply in replies:
            self.assertIn(reply.status, (200, 503))  # 503: it came after the fault
            self.assertIn(reason, reply.text)
        self.assertTrue(any(reply.status == 200 for reply in replies))
        self.check_end(server, reason)

    def test_a_fault_that_stays(self):
        self.streams_end("sticky:120", "illegal memory access")

    def test_a_device_that_hangs(self):
        self.streams_end("hang:120", "has not answered", "--step-timeout", "3")

    def test_a_fault_that_cannot_be_read(self):
        server = self.start("smoke:1")
        self.assertEqual(server.wait_exit(), 1)


if __name__ == "__main__":
    unittest.main(verbosity=1)
