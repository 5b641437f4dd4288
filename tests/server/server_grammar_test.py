"""Constrained answers over a socket. A build without the grammar library must refuse them instead."""
import json
import unittest

from server_under_test import Server, program_path

SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"],
    "additionalProperties": False}}}]
CALL = ('\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>')


class GrammarTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(program_path()).wait_ready()
        cls.has_grammar = cls.server.has_grammar()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ask(self, text, **fields):
        body = {"messages": [{"role": "user", "content": f"Say ⟦{text}⟧"}], "temperature": 0, "max_tokens": 300, **fields}
        return self.server.post("/v1/chat/completions", body)

    def answer(self, text, **fields):
        """The message, or None where the build refuses (which is checked)."""
        reply = self.ask(text, **fields)
        if not self.has_grammar:
            self.assertEqual(reply.status, 400, reply.text)
            self.assertIn("grammar", reply.json["error"]["message"])
            return None
        self.assertEqual(reply.status, 200, reply.text)
        return reply.json["choices"][0]["message"]

    def test_57_schema(self):
        message = self.answer('thinking is free</think>{"answer": 5}', response_format=FORMAT)
        if message:
            self.assertEqual((message["reasoning_content"], message["content"]), ("thinking is free", '{"answer": 5}'))
        message = self.answer("no JSON at all", response_format=FORMAT, thinking={"type": "disabled"})
        if message:
            self.assertTrue(message["content"].lstrip().startswith("{"))

    def test_47_allowed_tools(self):
        """The model sees all tools and calls those that are allowed."""
        tools = [{"type": "function", "function": {"name": name, "parameters": TOOLS[0]["function"]["parameters"]}} for name in ("get_weather", "look")]
        flat = [{"type": "function", **tool["function"]} for tool in tools]

        def allowed(name, mode):
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": name}}]}}

        plain = self.ask("t</think>Hi." + CALL, tools=tools).json
        for name, mode, called in (("get_weather", "auto", ["get_weather"]), ("get_weather", "required", ["get_weather"]), ("look", "required", ["look"])):
            reply = self.ask("t</think>" + CALL, tools=tools, tool_choice=allowed(name, mode), parallel_tool_calls=False)
            self.assertEqual(reply.status, 200 if self.has_grammar or mode == "required" else 400, reply.text)
            if self.has_grammar:
                calls = reply.json["choices"][0]["message"].get("tool_calls") or []
                self.assertEqual([call["function"]["name"] for call in calls], called)
        if self.has_grammar:
            narrowed = self.ask("t</think>Hi." + CALL, tools=tools, tool_choice=allowed("look", "auto")).json
            self.assertEqual(narrowed["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"])
            calls = narrowed["choices"][0]["message"].get("tool_calls") or []
            self.assertNotIn("get_weather", [call["function"]["name"] for call in calls])
            reply = self.server.post("/v1/responses", {
                "input": f"Say ⟦t</think>{CALL}⟧", "temperature": 0, "max_output_tokens": 300, "tools": flat,
                "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}, {"type": "web_search"}]}})
            self.assertEqual([item["name"] for item in reply.json["output"] if item["type"] == "function_call"], ["look"], reply.text)
        for choice, param in ((allowed("nobody", "auto"), "tools[0]"), (allowed("look", "sometimes"), "mode"), ({"type": "allowed_tools"}, "mode"),
                              ({"type": "allowed_tools", "allowed_tools": 5}, "allowed_tools"),
                              ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tools"), ({"type": "allowed_tools", "mode": "auto", "tools": [5]}, "tools[0]")):
            reply = self.ask("x", tools=tools, tool_choice=choice)
            self.assertEqual(reply.status, 400, reply.text)
            self.assertTrue(reply.json["error"]["param"].endswith(param), reply.text)

    def test_47_a_call_that_must_come_has_no_stop_strings(self):
        """Nor has one that may: what a call is written with is no text of the answer, but for the two line ends before it."""
        if not self.has_grammar:
            return
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            reply = self.ask("t</think>" + CALL, tools=TOOLS, tool_choice=choice, stop=["\n", '"', "Oslo"]).json["choices"][0]
            self.assertEqual((reply["finish_reason"], len(reply["message"]["tool_calls"])), ("tool_calls", 1))
            self.assertEqual(json.loads(reply["message"]["tool_calls"][0]["function"]["arguments"]), {"city": "Oslo", "days": 3})
        reply = self.ask("t</think>Hi." + CALL, tools=TOOLS, stop=["Oslo", "name"]).json["choices"][0]
        self.assertEqual((reply["finish_reason"], reply["message"]["content"], len(reply["message"]["tool_calls"])), ("tool_calls", "Hi.", 1))
        text = self.ask("t</think>One.\nTwo.", tools=TOOLS, stop=["\n"]).json["choices"][0]
        self.assertEqual((text["message"]["content"], text["finish_reason"]), ("One.", "stop"))

    def test_57_bad_schemas(self):
        for schema in ({"type": "quux"}, {"$ref": "#/$defs/nowhere"}, {"type": "object", "properties": 7}):
            reply = self.ask("x", response_format={"type": "json_schema", "json_schema": {"schema": schema}})
            self.assertEqual(reply.status, 400, reply.text)
        self.assertEqual(self.ask("t</think>fine").json["choices"][0]["message"]["content"], "fine")

    def test_refusals_are_in_words(self):
        """What is wrong, and nothing of the library: no file, no line of its source, no log."""
        for key, value, words in (
            ("guided_regex", "[0-9", "'[' at position 1 is not closed"), ("guided_regex", "a^b", "'^' at position 2"),
            ("guided_regex", "a(?=b)", "lookahead"), ("guided_json", {"type": "string", "pattern": "a$b"}, "\"pattern\": what stands at position 3 comes after a '$'"), ("guided_regex", "a{3,1}", "Lower bound is larger than upper bound"),
            ("guided_regex", "\\1", "'\\1' at position 1"), ("guided_json", {"type": "quux"}, "quux"),
            ("guided_json", {"type": "object", "properties": 7}, "properties must be an object"),
            ("guided_json", {"type": "string", "format": 7}, "wrong kind"),
            ("guided_json", {"type": "string", "pattern": "(a"}, "parenthesis"),
        ):
            reply = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 3, key: value})
            self.assertEqual(reply.status, 400, reply.text)
            error = reply.json["error"]
            self.assertEqual(error["param"], key)
            if self.has_grammar:
                self.assertIn(words, error["message"])
                self.assertNotRegex(error["message"], r"\.cc|\.h:|xgrammar|\[\d\d:|EBNF|is<|\n| $")

    def test_choices(self):
        """The answer is one of them, however it looks to a regular expression."""
        choices = ["a.c", "yes|no", "(x)", "1+1"]
        for fields in ({"guided_choice": choices}, {"structured_outputs": {"choice": choices}}):
            for text in (*choices, "abc", "yes"):
                message = self.answer(f"t</think>{text}", **fields)
                if message:
                    self.assertIn(message["content"], choices)
                    if text in choices:
                        self.assertEqual(message["content"], text)

    def test_anchors(self):
        for regex, text in (("^(yes|no)$", "no"), ("^a$|^b$", "b")):
            message = self.answer(f"t</think>{text}", guided_regex=regex)
            if message:
                self.assertEqual(message["content"], text)
        for regex in ("a^b", "a$b", "(^a)+"):
            reply = self.ask("t</think>x", guided_regex=regex)
            self.assertEqual((reply.status, reply.json["error"]["param"]), (400, "guided_regex"), reply.text)

    def test_regex(self):
        message = self.answer("t</think>abc", guided_regex="[0-9]{3}")
        if message:
            self.assertRegex(message["content"], "^[0-9]{3}$")

    def test_strict_tools(self):
        for choice in ("auto", "required", {"type": "function", "function": {"name": "get_weather"}}):
            message = self.answer("t</think>" + CALL, tools=TOOLS, tool_choice=choice)
            if message:
                self.assertEqual(json.loads(message["tool_calls"][0]["function"]["arguments"]), {"city": "Oslo", "days": 3})
        message = self.answer("t</think>I had rather talk", tools=TOOLS)
        if message:
            self.assertEqual(message["content"], "I had rather talk")

    def test_59_schema_and_tools(self):
        message = self.answer("t</think>" + CALL, tools=TOOLS, response_format=FORMAT)
        if message:
            self.assertEqual(message["tool_calls"][0]["function"]["name"], "get_weather")
        message = self.answer('t</think>{"answer": 7}', tools=TOOLS, response_format=FORMAT)
        if message:
            self.assertEqual(message["content"], '{"answer": 7}')


if __name__ == "__main__":
    unittest.main()
