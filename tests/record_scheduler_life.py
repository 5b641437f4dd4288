#!/usr/bin/env python3
"""Records tests/data/scheduler/crowded.log anew: twenty requests, three of which leave, on a server with memory for a
few. To be run when the scheduler changes on purpose; which requests meet in a step depends on the machine's pace, so
that no two recordings are the same.

    tests/record_scheduler_life.py PATH_TO_FATHOM FILE
"""
import http.client
import json
import re
import subprocess
import sys
import threading
import time

FATHOM, FILE = sys.argv[1:]
ARGUMENTS = ["--port", "0", "--scripted", "--scripted-blocks", "12", "--scripted-step-us", "3000", "--max-running", "6",
             "--prefill-chunk", "64", "--prefill-chunk-alone", "128", "--drafts", "1"]
LEAVE = (5, 11, 17)


def prompt(number):
    beginning = [7] * 200 if number % 2 else []
    return beginning + [20 + 7 * number + i for i in range(40 + 37 * number % 185)]


def ask(port, number, leave):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({
        "prompt": prompt(number), "max_tokens": 120, "priority": number % 3, "ignore_eos": True, "stream": True}))
    if leave:
        time.sleep(0.1)
    else:
        answer = connection.getresponse().read()
        assert b"[DONE]" in answer, answer
    connection.close()


def main():
    server = subprocess.Popen([FATHOM, "serve", *ARGUMENTS, "--scheduler-log", FILE], stdout=subprocess.PIPE, text=True)
    try:
        port = None
        for line in server.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                port = int(found[1])
                break
        threading.Thread(target=server.stdout.read, daemon=True).start()
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                break
            time.sleep(0.05)
        clients = []
        for number in range(18):
            clients.append(threading.Thread(target=ask, args=(port, number, number in LEAVE)))
            clients[-1].start()
            time.sleep(0.04)
        for client in clients:
            client.join()
        ask(port, 1, False)
        ask(port, 2, False)
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
