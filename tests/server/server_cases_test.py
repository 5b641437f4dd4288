"""Every row of cases.json over a real socket; after each a plain request must still get its right answer."""
import json
import pathlib
import re
import unittest

from server_under_test import Server, program_path

PLAIN = {
    "chat": {"messages": [{"role": "user", "content": "Say ⟦t</think>The plain answer.⟧"}], "max_tokens": 40},
    "completion": {"prompt": "Say ⟦The plain answer.⟧", "max_tokens": 40},
    "responses": {"input": "Say ⟦t</think>The plain answer.⟧", "max_output_tokens": 40},
    "messages": {"messages": [{"role": "user", "content": "Say ⟦The plain answer.⟧"}], "max_tokens": 40},
}
PATHS = {
    "chat": "/v1/chat/completions",
    "completion": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


def body_of(case):
    """(path, bytes) of a row."""
    for kind, path in PATHS.items():
        if kind in case:
            return path, json.dumps({**PLAIN[kind], **case[kind]}).encode()
    if "raw_chat" in case:
        text = json.dumps(PLAIN["chat"])
        return PATHS["chat"], (text[:-1] + ", " + case["raw_chat"] + "}").encode()
    if "raw_hex" in case:
        return case["path"], bytes.fromhex(case["raw_hex"])
    if "raw_repeat" in case:
        text, count = case["raw_repeat"]
        return case["path"], (text * count).encode()
    if "raw_nested" in case:
        depth = case["raw_nested"]
        text = json.dumps(PLAIN["chat"])
        return case["path"], (text[:-1] + ', "metadata": ' + '{"a":' * depth + "1" + "}" * depth + "}").encode()
    return case["path"], case["raw"].encode()


class ServerCases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(program_path()).wait_ready()
        cls.cases = json.loads((pathlib.Path(__file__).parent / "cases.json").read_text())

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def check_plain(self):
        reply = self.server.post(PATHS["chat"], PLAIN["chat"])
        self.assertEqual(reply.status, 200, reply.text)
        self.assertEqual(reply.json["choices"][0]["message"]["content"], "The plain answer.")

    def check_error(self, case, reply):
        error = reply.json["error"]
        self.assertEqual(set(error) & {"message", "type", "param"}, {"message", "type", "param"}, reply.text)
        self.assertTrue(error["message"])
        if "param" in case:
            self.assertEqual(error["param"], case["param"], reply.text)
        if case.get("path", "").startswith("/v1/messages") or "messages" in case:
            self.assertEqual(reply.json["type"], "error")

    def test_cases(self):
        self.assertGreater(len(self.cases), 80)
        for case in self.cases:
            with self.subTest(case=case["case"], name=case["name"]):
                path, body = body_of(case)
                reply = self.server.request("POST", path, raw=body)
                expected = case["status"] if isinstance(case["status"], list) else [case["status"]]
                self.assertIn(reply.status, expected, reply.text[:500])
                self.assertIn("x-request-id", reply.headers)
                if reply.status != 200:
                    self.check_error(case, reply)
                self.check_plain()

    def test_every_case_is_tested_somewhere(self):
        """case_index.json: for each case's number its tests; those must be there, and rows of that number too."""
        root = pathlib.Path(__file__).parent.parent.parent
        index = json.loads((pathlib.Path(__file__).parent / "case_index.json").read_text())
        rows = {case["case"] for case in self.cases}
        for number, places in index.items():
            self.assertTrue(places, number)
            for place in places:
                path, _, name = place.partition("::")
                if name:
                    self.assertRegex((root / path).read_text(), rf"\b{name}\b", f"case {number}")
                elif path.endswith("cases.json"):
                    self.assertIn(number, rows)
        numbers = root.parent / "shared" / "cases" / "README.md"
        if numbers.exists():
            listed = re.findall(r"^(\d+)\. ", numbers.read_text(), re.M)
            self.assertEqual(sorted(listed, key=int), sorted(index, key=int))


if __name__ == "__main__":
    unittest.main()
