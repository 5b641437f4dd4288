"""Starts `fathom serve`, speaks HTTP to it over plain sockets, and checks replies. Standard library only."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time


PATIENCE_S = 300  # for what must come, however busy the machine; only what is broken waits so long


def wait_for(condition, what, seconds=PATIENCE_S):
    """The first true value of condition()."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.005)


class Server:
    """A running `fathom serve`; use as a context manager."""

    def __init__(self, program, *flags, model="models/mini-v4", scripted=True):
        command = [program, "serve", "--model", model, "--port", "0", "--log", "info", *flags]
        if scripted:
            command.append("--scripted")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        first = self.process.stdout.readline()
        match = re.search(r":(\d+)\s*$", first)
        if not match:
            raise RuntimeError(f"fathom serve did not start: {first!r} {self.process.stderr.read()!r}")
        self.port = int(match.group(1))
        self.log = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)

    def wait_ready(self, seconds=PATIENCE_S):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.get("/health").status == 200:
                    return self
            except OSError:
                pass
            if self.process.poll() is not None:
                raise RuntimeError("fathom serve ended: " + "".join(self.log[-5:]))
            time.sleep(0.02)
        raise RuntimeError("fathom serve did not become ready")

    def __enter__(self):
        return self.wait_ready()

    def __exit__(self, *_):
        self.stop()

    def stop(self, seconds=PATIENCE_S):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait_exit(seconds)

    def wait_exit(self, seconds=PATIENCE_S):
        """The exit code of a server that ends by itself, or was told to."""
        try:
            code = self.process.wait(seconds)
            self._reader.join(seconds)
            self.process.stdout.close()
            self.process.stderr.close()
            return code
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def connect(self, timeout=PATIENCE_S):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, raw=None):
        connection = self.connect()
        data = raw if raw is not None else (json.dumps(body).encode() if body is not None else None)
        connection.request(method, path, body=data, headers=headers or {})
        reply = Reply(connection.getresponse())
        connection.close()
        return reply

    def get(self, path, **kwargs):
        return self.request("GET", path, **kwargs)

    def post(self, path, body=None, **kwargs):
        return self.request("POST", path, body, **kwargs)

    def raw_socket(self):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        return s

    def metric(self, name):
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(name + " ") or line.startswith(name + "{"):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def wait_idle(self):
        """Until no request is with the engine, whose counters follow the step that gave the last answer."""
        wait_for(lambda: self.metric("fathom_requests_running") == 0 and self.metric("fathom_requests_waiting") == 0,
                 "no request is with the engine")

    def wait_running(self, count):
        wait_for(lambda: self.metric("fathom_requests_running") == count, f"{count} requests run")

    def record(self, request_id, headers=None):
        """What /v1/requests says of one, or None."""
        reply = self.get(f"/v1/requests/{request_id}", headers=headers)
        return reply.json if reply.status == 200 else None

    def has_grammar(self, headers=None):
        """False where the program was built without the grammar library, which it says when asked to use it."""
        reply = self.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_regex": "a"}, headers=headers)
        return not (reply.status == 400 and "grammar library" in reply.text)


class Reply:
    def __init__(self, response):
        self.status = response.status
        self.headers = {k.lower(): v for k, v in response.getheaders()}
        self.bytes = response.read()

    @property
    def text(self):
        return self.bytes.decode("utf-8")

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def events(self):
        """[(event name or None, data)] of a stream; comments left out."""
        out = []
        for block in self.text.split("\n\n"):
            name, data = None, []
            for line in block.split("\n"):
                if line.startswith("event:"):
                    name = line[6:].strip()
                elif line.startswith("data:"):
                    data.append(line[5:].strip())
            if data:
                out.append((name, "\n".join(data)))
        return out

    @property
    def chunks(self):
        """The parsed chunks of an OpenAI stream, which must end with [DONE]."""
        events = self.events
        assert events and events[-1][1] == "[DONE]", f"no [DONE] at the end: {events[-1:]}"
        return [json.loads(data) for _, data in events[:-1]]


def program_path():
    path = os.environ.get("FATHOM_PROGRAM")
    assert path, "FATHOM_PROGRAM names the program under test"
    return path
