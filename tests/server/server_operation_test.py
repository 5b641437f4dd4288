"""Operation: keys, limits, cancelled and slow and odd clients, overload, drain, health, metrics, logs."""
import concurrent.futures
import datetime
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from chat_stream import assemble
from server_under_test import PATIENCE_S, Server, program_path, wait_for

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def say(text, **fields):
    return {"messages": [{"role": "user", "content": f"Say ⟦t</think>{text}⟧"}], "temperature": 0, **fields}


def repeat(text, count, **fields):
    return {"messages": [{"role": "user", "content": f"Say ⟦{text}×{count}⟧"}], "temperature": 0,
            "thinking": {"type": "disabled"}, **fields}


def post_bytes(path, body, version="1.1", headers=None):
    data = json.dumps(body).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"POST {path} HTTP/{version}\r\nHost: x\r\n{more}Content-Length: {len(data)}\r\n\r\n".encode() + data


class OpenServerTest(unittest.TestCase):
    """One server without keys; a step takes 2 ms."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(
            program_path(), "--scripted-step-us", "2000", "--keep-alive", "0.5", "--cors", "https://app.example",
            "--served-model-name", "fathom-mini", "--served-model-name", "deepseek-v4", "--header-timeout", "3",
        ).wait_ready()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def check_plain(self):
        reply = self.server.post(CHAT, say("Right."))
        self.assertEqual(reply.json["choices"][0]["message"]["content"], "Right.")

    def test_models_and_names(self):
        data = self.server.get("/v1/models").json["data"]
        self.assertEqual([m["id"] for m in data], ["fathom-mini", "deepseek-v4"])
        for key in ("root", "max_model_len", "owned_by", "created", "object"):
            self.assertIn(key, data[0])
        self.assertEqual(data[0]["max_input_tokens"], data[0]["max_model_len"])
        self.assertEqual(datetime.datetime.fromisoformat(data[0]["created_at"].replace("Z", "+00:00")).timestamp(), data[0]["created"])
        self.assertEqual(self.server.get("/v1/models/deepseek-v4").json["id"], "deepseek-v4")
        self.assertEqual(self.server.get("/v1/models/gpt-4").status, 404)
        self.assertEqual(self.server.post(CHAT, say("x", model="deepseek-v4")).status, 200)

    def test_request_ids_and_cors(self):
        reply = self.server.post(CHAT, say("x"), headers={"x-request-id": "my-id:1"})
        self.assertEqual(reply.headers["x-request-id"], "my-id:1")
        self.assertEqual(reply.headers["access-control-allow-origin"], "https://app.example")
        reply = self.server.post(CHAT, say("x"), headers={"x-request-id": "bad id with spaces"})
        self.assertTrue(reply.headers["x-request-id"].startswith("req-"))
        preflight = self.server.request("OPTIONS", CHAT, headers={"Origin": "https://app.example"})
        self.assertEqual(preflight.status, 204)
        self.assertIn("POST", preflight.headers["access-control-allow-methods"])
        self.assertEqual(self.server.get("/nowhere").headers["access-control-allow-origin"], "https://app.example")
        wrong = self.server.get(CHAT)
        self.assertEqual((wrong.status, wrong.headers["allow"]), (405, "POST"))
        self.assertEqual(self.server.request("DELETE", "/flush_cache").headers["allow"], "GET, POST")

    def test_forms_of_targets_and_bodies(self):
        """A target as proxies are sent it, a name with codes in it, a body that is packed."""
        for target in ("http://fathom.example:80/v1/models", "HTTP://x/v1/models?limit=3"):
            s = self.server.raw_socket()
            s.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            self.assertTrue(s.recv(100).startswith(b"HTTP/1.1 200"), target)
            s.close()
        self.assertEqual(self.server.get("/v1/models/deepseek%2Dv4").json["id"], "deepseek-v4")
        for name in ("deepseek%", "deepseek%2", "deepseek%zz", "%"):
            self.assertEqual(self.server.get("/v1/models/" + name).status, 404)
        packed = self.server.post(CHAT, raw=b"\x1f\x8b\x08", headers={"Content-Encoding": "gzip"})
        self.assertEqual((packed.status, packed.json["error"]["param"]), (415, "content-encoding"))
        self.assertEqual(self.server.post(CHAT, say("x"), headers={"Content-Encoding": "identity"}).status, 200)
        self.check_plain()

    def test_tokens(self):
        for text in ("hello", "", "中文 é 👩‍🚀", "<｜User｜>x</think>"):
            tokens = self.server.post("/tokenize", {"prompt": text}).json
            self.assertEqual(tokens["count"], len(tokens["tokens"]))
            self.assertEqual(self.server.post("/detokenize", {"tokens": tokens["tokens"]}).json["prompt"], text)
        strings = self.server.post("/tokenize", {"prompt": "hello world", "return_token_strs": True}).json
        self.assertEqual("".join(strings["token_strs"]), "hello world")
        info = self.server.get("/tokenizer_info").json
        self.assertEqual(info["eos_token"], "<｜end▁of▁sentence｜>")

    def test_native_routes(self):
        self.assertEqual(self.server.post("/flush_cache").status, 200)
        self.assertEqual(self.server.post("/reset_prefix_cache").status, 200)
        self.assertIn("version", self.server.get("/version").json)
        for path in ("/get_server_info", "/server_info"):
            self.assertGreaterEqual(self.server.get(path).json["internal_states"][0]["avg_spec_accept_length"], 1.0)

    def test_profile_capture(self):
        self.assertEqual(self.server.post("/start_profile", {"num_steps": 0}).status, 400)
        plain = self.server.post(CHAT, say("one two three")).json["choices"][0]["message"]["content"]
        self.server.wait_idle()  # the step that gave the last answer has ended
        self.assertEqual(self.server.post("/start_profile", {"num_steps": 3}).json, {"capturing": True, "num_steps": 3})
        captured = self.server.post(CHAT, say("one two three")).json["choices"][0]["message"]["content"]
        self.assertEqual(captured, plain)
        capture = self.server.post("/stop_profile").json
        self.assertEqual((capture["format"], capture["version"]), ("fathom-capture", 1))
        self.assertEqual(len(capture["steps"]), 3)
        for step in capture["steps"]:
            parts = sum(step[part + "_us"] for part in ("schedule", "launch", "wait", "commit", "detokenise"))
            self.assertAlmostEqual(parts, step["step_us"], delta=5)
        self.assertGreaterEqual(capture["http_us"], 0)
        taken = self.server.post("/stop_profile")
        self.assertEqual((taken.status, taken.json["error"]["code"]), (409, "no_capture"))
        self.server.wait_idle()
        self.assertEqual(self.server.post("/start_profile").status, 200)
        self.assertEqual(self.server.post("/start_profile").status, 409)
        self.assertEqual(self.server.post("/stop_profile").json["steps"], [])

    def test_generate(self):
        body = {"text": "Say ⟦one two three⟧", "sampling_params": {"temperature": 0, "max_new_tokens": 30}, "return_logprob": True}
        reply = self.server.post("/generate", body).json
        self.assertEqual(reply["text"], "one two three")
        meta = reply["meta_info"]
        self.assertEqual(meta["finish_reason"]["type"], "stop")
        self.assertEqual(len(meta["output_token_logprobs"]), meta["completion_tokens"])
        events = self.server.post("/generate", {**body, "stream": True}).events
        self.assertEqual(events[-1][1], "[DONE]")
        texts = [json.loads(data)["text"] for _, data in events[:-1]]
        self.assertTrue(all(b.startswith(a) for a, b in zip(texts, texts[1:])))
        self.assertEqual(texts[-1], "one two three")
        both = self.server.post("/generate", {**body, "text": ["Say ⟦a⟧", "Say ⟦b⟧"]}).json
        self.assertEqual([r["text"] for r in both], ["a", "b"])

    def test_metrics(self):
        self.check_plain()
        text = self.server.get("/metrics").text
        for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_requests_running",
                     "vllm:kv_cache_usage_perc", "vllm:spec_decode_num_drafts_total", "fathom_requests_running",
                     "vllm:time_to_first_token_seconds_bucket", "fathom_inter_token_seconds_sum"):
            self.assertIn(name, text)
        self.server.wait_idle()
        before = self.server.metric("fathom_generation_tokens_total")
        reply = self.server.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 17, "ignore_eos": True}).json
        self.assertEqual(reply["usage"]["completion_tokens"], 17)
        self.server.wait_idle()
        self.assertEqual(self.server.metric("fathom_generation_tokens_total") - before, 17)
        self.assertEqual(self.server.metric("vllm:generation_tokens_total"), self.server.metric("fathom_generation_tokens_total"))
        if shutil.which("promtool"):
            checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
            self.assertNotIn("error", checked.stderr.lower(), checked.stderr)

    def test_log_line_and_record(self):
        secret = "a-very-private-sentence"
        reply = self.server.post(CHAT, say(secret), headers={"x-request-id": "log-me"})
        self.assertEqual(reply.status, 200)
        lines = wait_for(lambda: [line for line in self.server.log if "id=log-me" in line], "its line in the log")
        self.assertEqual(len(lines), 1)
        for field in ("key=anonymous", "prompt_tokens=", "completion_tokens=", "queue_ms=", "ttft_ms=", "itl_ms=", "reason=eos"):
            self.assertIn(field, lines[0])
        self.assertNotIn(secret, "".join(self.server.log))
        record = self.server.get("/v1/requests/log-me").json
        self.assertEqual(record["state"], "finished")
        self.assertGreater(record["timeline_ms"]["finished"], 0)
        self.assertNotIn(secret, self.server.get("/v1/requests").text)

    def test_an_answer_goes_by_its_own_id_too(self):
        for path, body, prefix in ((CHAT, say("x"), "chatcmpl-"), (COMPLETIONS, {"prompt": "x", "max_tokens": 2}, "cmpl-"),
                                   ("/v1/responses", {"input": "Say ⟦t</think>x⟧"}, "resp_"),
                                   ("/v1/messages", {"messages": [{"role": "user", "content": "Say ⟦x⟧"}], "max_tokens": 9}, "msg_"),
                                   ("/generate", {"text": "Say ⟦x⟧"}, "req-")):
            for stream in (False, True):
                reply = self.server.post(path, {**body, "stream": stream})
                own = re.search(rf'"id":"({prefix}[0-9a-f]+)"', reply.text)[1]
                for id in (own, reply.headers["x-request-id"]):
                    record = self.server.record(id)
                    self.assertEqual((record["id"], record["response_id"], record["state"]),
                                     (reply.headers["x-request-id"], None if path == "/generate" else own, "finished"))
                    self.assertEqual(self.server.get(f"/v1/requests/{id}/timeline").json["id"], record["id"])
        reply = self.server.get("/v1/requests/chatcmpl-0123")
        self.assertEqual((reply.status, "own id" in reply.text), (404, True))
        self.assertEqual(self.server.get("/v1/requests//timeline").status, 404)

    def test_half_open_clients_are_let_go(self):
        """Requests whose rest never comes: closed after the header time-out, nobody else notices."""
        whole = post_bytes(CHAT, say("x"))
        head_end = whole.index(b"\r\n\r\n") + 4
        halves = [b"", whole[:10], whole[: head_end - 2], whole[:head_end], whole[: head_end + 20]]
        sockets = [self.server.raw_socket() for _ in range(4 * len(halves))]
        for i, s in enumerate(sockets):
            s.sendall(halves[i % len(halves)])
        self.check_plain()
        for i, s in enumerate(sockets):
            if i % len(halves) not in (1, 2):
                continue  # nothing was sent, or only the body is missing, which may take minutes: those stay
            data = b""
            try:
                while part := s.recv(4096):
                    data += part
            except ConnectionResetError:
                pass
            self.assertRegex(data, rb"^(HTTP/1.1 4\d\d|$)")
        for s in sockets:
            s.close()
        self.check_plain()

    def test_time_line_names_whose_prefill_it_was(self):
        self.server.wait_idle()
        victim, culprit = self.server.raw_socket(), self.server.raw_socket()

        def send(s, request_id, body):
            data = json.dumps(body).encode()
            s.sendall(f"POST {COMPLETIONS} HTTP/1.0\r\nx-request-id: {request_id}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

        send(victim, "tl-victim", {"prompt": [9] * 200, "max_tokens": 1500, "ignore_eos": True, "stream": True})
        data = b""
        while data.count(b"data: ") < 5:
            data += victim.recv(65536)
        send(culprit, "tl-culprit", {"prompt": [8] * 3000, "max_tokens": 2, "ignore_eos": True, "stream": True})
        for s in (culprit, victim):
            while s.recv(65536):
                pass
            s.close()
        lines = {}
        for request_id in ("tl-victim", "tl-culprit"):
            reply = self.server.get(f"/v1/requests/{request_id}/timeline")
            self.assertEqual(reply.status, 200, reply.text)
            choice = reply.json["choices"][0]
            self.assertTrue(choice["complete"] and choice["finished"])
            spans = choice["spans"]
            self.assertEqual((spans[0]["kind"], spans[0]["from_ms"]), ("queued", 0))
            for a, b in zip(spans, spans[1:]):
                self.assertEqual(a["to_ms"], b["from_ms"])
            lines[request_id] = spans
        stalls = [s for s in lines["tl-victim"] if s["kind"] == "stall"]
        self.assertGreater(len(stalls), 0)
        causes = [cause for s in stalls for cause in s["beside"]]
        self.assertEqual({cause["request"] for cause in causes}, {"tl-culprit"})
        self.assertEqual(sum(s.get("tokens", 0) for s in lines["tl-victim"]), 1500)
        chunks = [s for s in lines["tl-culprit"] if s["kind"] == "prefill"]
        self.assertEqual(sum(s["rows"] for s in chunks), 3000)
        self.assertEqual([s["position"] for s in chunks], sorted(s["position"] for s in chunks))
        self.assertEqual(sum(cause["prefill_rows"] for cause in causes), 3000)
        record = self.server.get("/v1/requests/tl-victim").json
        self.assertEqual(record["stalled_most_by"], "tl-culprit")
        self.assertAlmostEqual(record["timeline_ms"]["stalled_by_prefills"], sum(c["ms"] for c in causes), delta=5.0)
        for path in ("/v1/requests/nobody/timeline", "/v1/requests/chatcmpl-nobody"):
            reply = self.server.get(path)
            self.assertEqual((reply.status, "x-request-id" in reply.text), (404, True), reply.text)

    def test_aliases_are_live_numbers(self):
        """Each vllm: name has its twin's value, and traffic moves those that count it."""

        def values():
            text = self.server.get("/metrics").text
            out = {}
            for line in text.splitlines():
                if not line.startswith("#"):
                    name, value = line.rsplit(" ", 1)
                    out[re.sub(r'model_name="[^"]*",?', "", name).replace("{}", "")] = float(value)
            return out

        self.server.wait_idle()
        before = values()
        for _ in range(2):
            self.server.post(COMPLETIONS, {"prompt": [11] * 700, "max_tokens": 20, "ignore_eos": True})
        self.server.wait_idle()
        after = values()
        moved = {name for name in after if name.startswith("vllm:") and after[name] != before.get(name)}
        for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total",
                     "vllm:prefix_cache_hits_total", "vllm:time_to_first_token_seconds_count", "vllm:request_queue_time_seconds_count"):
            self.assertIn(name, moved)
        self.assertEqual(after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"], 40)
        self.assertEqual(after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"], 1400)
        s = self.server.raw_socket()
        s.sendall(post_bytes(COMPLETIONS, {"prompt": [12] * 300, "max_tokens": 5000, "ignore_eos": True, "stream": True}))
        s.recv(100)
        self.server.wait_running(1)
        running = values()
        self.assertEqual(running["vllm:num_requests_running"], 1)
        self.assertGreater(running["vllm:kv_cache_usage_perc"], 0)
        s.close()
        self.server.wait_idle()
        self.assertEqual(values()["vllm:num_requests_running"], 0)

    def test_odd_clients_do_not_disturb(self):
        stop = threading.Event()
        wrong = []

        def steady():
            while not stop.is_set():
                text = assemble(self.server.post(CHAT, say("steady", stream=True)).chunks)[0]["content"]
                if text != "steady":
                    wrong.append(text)

        worker = threading.Thread(target=steady)
        worker.start()
        slow = self.server.raw_socket()
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        idle = [self.server.raw_socket() for _ in range(50)]
        for raw in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20000, b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"):
            s = self.server.raw_socket()
            try:
                s.sendall(raw)
                head = s.recv(100)
            except (ConnectionResetError, BrokenPipeError):
                head = b""
            self.assertRegex(head, rb"^(HTTP/1.1 4\d\d|$)")
            s.close()
        # Pipelined: two answers, in order.
        s = self.server.raw_socket()
        s.sendall(post_bytes(CHAT, say("first")) + post_bytes(CHAT, say("second")))
        data = b""
        while data.count(b'"finish_reason":"stop"') < 2:
            data += s.recv(65536)
        self.assertLess(data.index(b"first"), data.index(b"second"))
        s.close()
        # A byte at a time does not extend the time for a header.
        end = time.monotonic() + PATIENCE_S
        with self.assertRaises(OSError):
            while time.monotonic() < end:
                slow.sendall(b"a")
                time.sleep(0.1)
        for s in (slow, *idle):
            s.close()
        stop.set()
        worker.join()
        self.assertEqual(wrong, [])
        self.check_plain()

    def test_slow_reader_gets_everything(self):
        words = "word " * 2000
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", self.server.port))
        s.sendall(post_bytes(CHAT, repeat("word ", 2000, stream=True, max_tokens=9000), version="1.0"))
        s.settimeout(PATIENCE_S)
        time.sleep(1.5)  # long enough for the server's and the kernel's buffers to fill
        self.check_plain()
        data = b""
        while True:
            part = s.recv(65536)
            if not part:
                break
            data += part
        text = ""
        for line in data.decode().split("\n"):
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
        self.assertEqual(text, words)

    def test_17_many_at_once_are_the_same_as_alone(self):
        bodies = [{"prompt": f"prompt {i} " * (1 + i % 7), "max_tokens": 12, "temperature": 0, "ignore_eos": True} for i in range(32)]
        alone = [self.server.post(COMPLETIONS, body).json["choices"][0]["text"] for body in bodies]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            together = list(pool.map(lambda body: self.server.post(COMPLETIONS, body).json["choices"][0]["text"], bodies))
        self.assertEqual(alone, together)


class SlowStepsTest(unittest.TestCase):
    """A step takes 20 ms and each of its rows 0.4: a prompt of 15,000 tokens more than six seconds."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(program_path(), "--scripted-step-us", "20000", "--keep-alive", "0.5").wait_ready()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def check_plain(self):
        reply = self.server.post(CHAT, say("Right."))
        self.assertEqual(reply.json["choices"][0]["message"]["content"], "Right.")

    def check_left(self, request_id, num_prefilled, num_tokens):
        """It ended because its client left, before that many rows of its prompt and tokens of its answer."""
        self.server.wait_idle()
        record = wait_for(lambda: (r := self.server.record(request_id)) and r["state"] != "running" and r, "its record")
        self.assertEqual((record["state"], record["reason"]), ("left", "client_left"))
        self.assertLess(record["completion_tokens"], num_tokens)
        spans = self.server.get(f"/v1/requests/{request_id}/timeline").json["choices"][0]["spans"]
        self.assertLess(sum(s["rows"] for s in spans if s["kind"] == "prefill"), num_prefilled)

    def test_67_comments_while_nothing_comes(self):
        body = say("done", stream=True)
        body["messages"].insert(0, {"role": "system", "content": "word " * 14000})
        s = self.server.raw_socket()
        s.sendall(post_bytes(CHAT, body))
        data = b""
        while b"[DONE]" not in data:
            data += s.recv(65536)
        s.close()
        self.assertIn(b": keep-alive", data)
        self.assertIn(b'"one"', data)

    def test_67_events_while_nothing_comes(self):
        """On responses: clients that wait with a time-out wait for an event."""
        reply = self.server.post("/v1/responses", {"instructions": "once more " + "word " * 14000, "input": "Say ⟦t</think>done⟧", "temperature": 0, "stream": True})
        events = [json.loads(data) for _, data in reply.events]
        types = [event["type"] for event in events]
        begin = types.index("response.output_item.added")
        self.assertEqual(types[:begin], ["response.created"] + ["response.in_progress"] * (begin - 1))
        self.assertGreater(begin, 3)
        self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
        self.assertEqual(events[-1]["response"]["output"][-1]["content"][0]["text"], "done")
        self.assertNotIn(": keep-alive", reply.text)

    def test_69_leaving_during_prefill_and_decode(self):
        self.server.wait_idle()
        endless = {"prompt": "x", "max_tokens": 15000, "ignore_eos": True}
        for kind, body in (("prefill", {**endless, "stream": True}), ("stream", {**endless, "stream": True}), ("whole", {**endless, "stream": False})):
            for number, how in enumerate(("close", "reset", "half-close")):
                request_id = f"leaves-{kind}-{how}"
                if kind == "prefill":
                    body = {**body, "prompt": [7 + number] * 15000}  # each its own: nothing is found in the cache
                s = self.server.raw_socket()
                s.sendall(post_bytes(COMPLETIONS, body, headers={"x-request-id": request_id}))
                self.server.wait_running(1)
                if how == "reset":
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                s.shutdown(socket.SHUT_WR) if how == "half-close" else s.close()
                self.check_left(request_id, 15000, 1 if kind == "prefill" else 15000)
                s.close()
        self.check_plain()

    def test_a_client_killed_during_prefill_is_gone(self):
        self.server.wait_idle()
        program = ("import socket, sys, time\ns = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
                   "s.sendall(sys.stdin.buffer.read())\nprint('sent', flush=True)\ntime.sleep(600)\n")
        for number in range(3):
            request_id = f"killed-{number}"
            body = {"prompt": [20 + number] * 15000, "max_tokens": 100, "ignore_eos": True, "stream": True}
            client = subprocess.Popen([sys.executable, "-c", program, str(self.server.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            client.stdin.write(post_bytes(COMPLETIONS, body, headers={"x-request-id": request_id}))
            client.stdin.close()
            client.stdout.readline()
            self.server.wait_running(1)
            client.send_signal(signal.SIGKILL)
            client.wait()
            client.stdout.close()
            self.check_left(request_id, 15000, 1)
            self.check_plain()
        self.server.wait_idle()
        self.assertEqual(self.server.metric("fathom_context_blocks_used"), 0)


class KeysTest(unittest.TestCase):
    def test_keys_and_limits(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
            file.write("# label secret limits\nalice s3cret-a\nbob s3cret-b max_concurrent=1\ncarol s3cret-c max_per_minute=2\n")
            file.flush()
            with Server(program_path(), "--api-key-file", file.name, "--scripted-step-us", "1000") as server:
                self.assertEqual(server.get("/health").status, 200)
                for path in ("/v1/models", "/metrics", "/version", "/nowhere", "/v1/requests"):
                    self.assertEqual(server.get(path).status, 401, path)
                    self.assertEqual(server.get(path, headers={"Authorization": "Bearer wrong"}).status, 401, path)
                reply = server.post("/v1/messages", {}, headers={"x-api-key": "wrong"})
                self.assertEqual(reply.json["error"]["type"], "authentication_error")
                bearer = {"Authorization": "Bearer s3cret-a"}
                self.assertEqual(server.get("/v1/models", headers=bearer).status, 200)
                self.assertEqual(server.get("/v1/models", headers={"x-api-key": "s3cret-b"}).status, 200)
                self.check_concurrent(server)
                carol = {"Authorization": "Bearer s3cret-c"}
                codes = [server.post(CHAT, say("x"), headers=carol).status for _ in range(3)]
                self.assertEqual(codes, [200, 200, 429])
                self.assertEqual(server.post(CHAT, say("x"), headers=bearer).status, 200)
                self.check_salt(server)
                self.check_time_lines(server)

    def check_concurrent(self, server):
        bob = {"Authorization": "Bearer s3cret-b"}
        s = server.raw_socket()
        data = json.dumps({"prompt": "x", "max_tokens": 10000, "ignore_eos": True}).encode()
        s.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nAuthorization: Bearer s3cret-b\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        wait_for(lambda: server.get("/v1/requests", headers=bob).json["data"], "bob's request is being answered")
        reply = server.post(CHAT, say("x"), headers=bob)
        self.assertEqual(reply.status, 429)
        self.assertIn("retry-after", reply.headers)
        self.assertEqual(reply.json["error"]["type"], "rate_limit_error")
        s.close()
        wait_for(lambda: server.post(CHAT, say("x"), headers=bob).status == 200, "bob's place is free again")

    def check_time_lines(self, server):
        """A key sees its own time lines, and of others no ids."""
        ids = {}
        for secret in ("s3cret-a", "s3cret-b"):
            reply = server.post(COMPLETIONS, {"prompt": [5] * 50, "max_tokens": 3, "ignore_eos": True}, headers={"Authorization": f"Bearer {secret}"})
            ids[secret] = reply.headers["x-request-id"] if secret == "s3cret-a" else reply.json["id"]
        for secret, request_id in ids.items():
            for asker in ids:
                status = server.get(f"/v1/requests/{request_id}/timeline", headers={"Authorization": f"Bearer {asker}"}).status
                self.assertEqual(status, 200 if asker == secret else 404)
        self.assertEqual(server.get(f"/v1/requests/{ids['s3cret-a']}/timeline").status, 401)

    def check_salt(self, server):
        body = {"prompt": [9] * 1000, "max_tokens": 1, "ignore_eos": True}
        cached = []
        for secret in ("s3cret-a", "s3cret-a", "s3cret-b"):
            reply = server.post(COMPLETIONS, body, headers={"Authorization": f"Bearer {secret}"}).json
            cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
        self.assertEqual(cached[0], 0)
        self.assertGreater(cached[1], 800)
        self.assertEqual(cached[2], 0, "another key's prefix was found")


class OverloadTest(unittest.TestCase):
    def test_71_a_thousand_at_once(self):
        with Server(program_path(), "--max-queued", "40", "--max-running", "8", "--scripted-step-us", "20000",
                    "--header-timeout", "100") as server:
            body = post_bytes(CHAT, say("the right answer"))
            sockets = []
            for _ in range(1000):
                sockets.append(server.raw_socket())
            for s in sockets:
                s.sendall(body)
            codes, wrong, without_retry = {}, 0, 0
            for s in sockets:
                data = b""
                while b"\r\n\r\n" not in data:
                    data += s.recv(65536)
                head, rest = data.split(b"\r\n\r\n", 1)
                length = int(re.search(rb"Content-Length: (\d+)", head).group(1))
                while len(rest) < length:
                    rest += s.recv(65536)
                s.close()
                status = int(head[9:12])
                codes[status] = codes.get(status, 0) + 1
                if status == 200 and json.loads(rest)["choices"][0]["message"]["content"] != "the right answer":
                    wrong += 1
                if status in (429, 503) and b"Retry-After" not in head:
                    without_retry += 1
            self.assertEqual((wrong, without_retry), (0, 0))
            self.assertLessEqual(set(codes), {200, 429, 503})
            self.assertGreaterEqual(codes[200], 40)
            self.assertGreater(codes.get(429, 0) + codes.get(503, 0), 100)
            server.wait_idle()
            self.assertEqual(server.post(CHAT, say("after")).json["choices"][0]["message"]["content"], "after")

    def test_74_drain_on_sigterm(self):
        server = Server(program_path(), "--scripted-step-us", "5000", "--drain", str(PATIENCE_S)).wait_ready()
        texts = []

        def stream():
            texts.append(assemble(server.post(CHAT, repeat("word ", 800, stream=True, max_tokens=2400)).chunks)[0]["content"])

        threads = [threading.Thread(target=stream) for _ in range(4)]
        keep = server.connect()
        keep.request("GET", "/version")
        keep.getresponse().read()
        for t in threads:
            t.start()
        server.wait_running(4)
        server.process.terminate()
        try:
            wait_for(lambda: server.get("/health").status == 503, "it drains")
            refused = server.post(CHAT, say("too late"))
            self.assertEqual(refused.status, 503)
            self.assertIn("retry-after", refused.headers)
        except ConnectionError:
            pass  # the streams are over and so is the server
        for t in threads:
            t.join()
        self.assertEqual(texts, ["word " * 800] * 4)
        keep.close()
        self.assertEqual(server.wait_exit(), 0)

    def test_drain_time_ends(self):
        server = Server(program_path(), "--scripted-step-us", "5000", "--drain", "0.5").wait_ready()
        s = server.raw_socket()
        s.sendall(post_bytes(COMPLETIONS, {"prompt": "x", "max_tokens": 15000, "ignore_eos": True, "stream": True}))
        s.recv(100)
        self.assertEqual(server.stop(), 0)
        # The answer was cut off long before its 15,000 tokens.
        data = b""
        try:
            while part := s.recv(65536):
                data += part
        except ConnectionResetError:
            pass
        s.close()
        self.assertLess(data.count(b"data: "), 14000)
        self.assertNotIn(b"[DONE]", data)

    def test_request_timeout(self):
        with Server(program_path(), "--request-timeout", "3", "--scripted-step-us", "5000") as server:
            reply = server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 15000, "ignore_eos": True})
            self.assertEqual(reply.status, 408, reply.text)
            reply = server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 15000, "ignore_eos": True, "stream": True})
            self.assertEqual(reply.status, 200)
            self.assertIn("error", json.loads(reply.events[-1][1]))
            # Each API ends such a stream in its own way.
            reply = server.post("/v1/responses", {"input": "x", "max_output_tokens": 15000, "ignore_eos": True, "stream": True})
            events = [json.loads(data) for _, data in reply.events]
            self.assertEqual([event["type"] for event in events[-2:]], ["error", "response.failed"])
            self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
            failed = events[-1]["response"]
            self.assertEqual((failed["status"], failed["error"]["code"], failed["usage"]), ("failed", "server_error", None))
            self.assertEqual((failed["error"]["message"], failed["id"]), (events[-2]["message"], events[0]["response"]["id"]))
            reply = server.post("/v1/messages", {"max_tokens": 15000, "messages": [{"role": "user", "content": "⟦word ×9000⟧"}], "stream": True})
            self.assertEqual((reply.events[0][0], reply.events[-1][0]), ("message_start", "error"))
            self.assertEqual(server.post(CHAT, say("fine")).status, 200)

    def test_watchdog_fails_health(self):
        # One step of five seconds.
        with Server(program_path(), "--step-timeout", "0.2", "--scripted-step-us", "5000000", "--drain", "0") as server:
            s = server.raw_socket()
            s.sendall(post_bytes(COMPLETIONS, {"prompt": "x", "max_tokens": 1, "ignore_eos": True}))
            health = wait_for(lambda: (reply := server.get("/health")).status == 503 and reply, "health fails")
            self.assertIn("step", health.json["reason"])
            self.assertEqual(server.post(CHAT, say("x")).status, 503)
            s.close()
            wait_for(lambda: server.get("/health").status == 200, "the step is over, and health is back")

    def test_sampling_defaults(self):
        """The request, then the flag, then generation_config.json."""
        with tempfile.TemporaryDirectory() as scratch:
            for file in pathlib.Path("models/mini-v4").iterdir():
                if file.name != "generation_config.json":
                    (pathlib.Path(scratch) / file.name).symlink_to(file.resolve())
            (pathlib.Path(scratch) / "generation_config.json").write_text('{"temperature": 0.25, "top_p": 0.5}')
            for flags, expected in (((), (0.25, 0.5)), (("--temperature", "0.75"), (0.75, 0.5)), (("--temperature", "0.75", "--top-p", "1"), (0.75, 1.0))):
                with Server(program_path(), *flags, model=scratch) as server:
                    told = server.post("/v1/responses", {"input": "Say ⟦t</think>x⟧", "max_output_tokens": 3}).json
                    self.assertEqual((told["temperature"], told["top_p"]), expected)
                    told = server.post("/v1/responses", {"input": "Say ⟦t</think>x⟧", "max_output_tokens": 3, "temperature": 0.5, "top_p": 0.125}).json
                    self.assertEqual((told["temperature"], told["top_p"]), (0.5, 0.125))

    def test_scheduler_log_on_a_full_disk(self):
        done = subprocess.Popen([program_path(), "serve", "--port", "0", "--scripted", "--model", "models/mini-v4",
                                 "--scheduler-log", "/dev/full"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while done.stdout.readline() not in ("ready\n", ""):
            pass
        done.terminate()
        _, told = done.communicate(timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 0, told)
        self.assertEqual(told.count("--scheduler-log /dev/full: writing failed: No space left"), 1, told)

    def test_generation_config_out_of_range(self):
        """Ends the start with one line that names file, key and value; on the model and on the scripted executor."""
        with tempfile.TemporaryDirectory() as scratch:
            for file in pathlib.Path("models/mini-v4").iterdir():
                if file.name != "generation_config.json":
                    (pathlib.Path(scratch) / file.name).symlink_to(file.resolve())
            path = pathlib.Path(scratch) / "generation_config.json"
            for text, message in (('{"temperature": 300}', 'key "temperature": found 300, expected a number from 0.0 to 100.0'),
                                  ('{"top_p": 0}', 'key "top_p": found 0, expected a number over 0, to 1.0'),
                                  ('{"top_k": -7}', 'key "top_k": found -7'), ('{"min_p": "a"}', 'key "min_p": found "a"'),
                                  ('{"repetition_penalty": -1}', 'key "repetition_penalty": found -1'), ('[', "not valid JSON")):
                path.write_text(text)
                for flags in ([], ["--scripted"]):
                    done = subprocess.run([program_path(), "serve", "--port", "0", "--model", scratch, *flags], capture_output=True, text=True, timeout=PATIENCE_S)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertIn("generation_config.json: " + message, done.stderr)

    def test_a_body_that_never_comes(self):
        """408 after --body-timeout, which bytes that trickle in do not extend; others notice nothing."""
        with Server(program_path(), "--body-timeout", "3") as server:
            whole = post_bytes(CHAT, say("x"))
            head_end = whole.index(b"\r\n\r\n") + 4
            silent, slow = server.raw_socket(), server.raw_socket()
            silent.sendall(whole[:head_end])
            slow.sendall(whole[: head_end + 10])
            self.assertEqual(server.post(CHAT, say("Right.")).json["choices"][0]["message"]["content"], "Right.")
            end = time.monotonic() + PATIENCE_S
            with self.assertRaises(OSError):
                while time.monotonic() < end:
                    slow.sendall(b" ")
                    time.sleep(0.05)
            data = b""
            while part := silent.recv(65536):
                data += part
            self.assertTrue(data.startswith(b"HTTP/1.1 408"), data)
            self.assertIn(b"the body did not arrive in time", data)
            silent.close()
            slow.close()
            server.post(CHAT, say("x"))
        done = subprocess.run([program_path(), "serve", "--body-timeout", "0"], capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--body-timeout", done.stderr)

    def test_bad_starts(self):
        for flags, message in ((["--api-key", ""], "--api-key: found an empty text"), (["--host", ""], "--host: found an empty text"),
                               (["--model", "/nowhere"], "/nowhere"), (["--host", "203.0.113.7"], "203.0.113.7"),
                               (["--max-context", "1"], "--max-context: found 1, expected at least 2"),
                               (["--max-context", "70000"], "--max-context: found 70000, the model takes at most 65536 tokens")):
            done = subprocess.run([program_path(), "serve", "--port", "0", *flags], capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(message, done.stderr)
        done = subprocess.Popen([program_path(), "serve", "--host", "0.0.0.0", "--port", "0", "--scripted", "--model", "models/mini-v4"],
                                stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.assertIn("no API key", done.stderr.readline())
        done.terminate()
        self.assertEqual(done.wait(PATIENCE_S), 0)
        done.stderr.close()
        done.stdout.close()


if __name__ == "__main__":
    unittest.main()
