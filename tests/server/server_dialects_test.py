"""Anthropic messages and OpenAI responses: streams rebuild the whole answer, items sent back are read."""
import copy
import json
import unittest

from server_under_test import Server, program_path


class AnthropicAndResponsesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(program_path()).wait_ready()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    TOOL_TEXT = ('\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Oslo'
                 "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>")
    TOOL = {"name": "get_weather", "description": "d", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}

    def messages(self, text, **fields):
        body = {"max_tokens": 200, "temperature": 0, "messages": [{"role": "user", "content": f"Say ⟦{text}⟧"}], **fields}
        whole = self.server.post("/v1/messages", body)
        self.assertEqual(whole.status, 200, whole.text)
        streamed = self.server.post("/v1/messages", {**body, "stream": True})
        return whole.json, [(name, json.loads(data)) for name, data in streamed.events]

    def rebuild(self, events):
        names = [name for name, _ in events]
        self.assertEqual((names[0], names[-2], names[-1]), ("message_start", "message_delta", "message_stop"))
        self.assertTrue(all(name == data["type"] for name, data in events))
        blocks, open_block = [], None
        for name, data in events:
            if name == "content_block_start":
                self.assertIsNone(open_block)
                self.assertEqual(data["index"], len(blocks))
                open_block, json_text = dict(data["content_block"]), ""
            elif name == "content_block_delta":
                delta = data["delta"]
                if delta["type"] == "input_json_delta":
                    json_text += delta["partial_json"]
                elif delta["type"] != "signature_delta":
                    key = delta["type"].removesuffix("_delta")
                    open_block[key] += delta[key]
            elif name == "content_block_stop":
                if open_block["type"] == "tool_use":
                    open_block["input"] = json.loads(json_text or "{}")
                blocks.append(open_block)
                open_block = None
        return blocks, events[-2][1]

    def strip_ids(self, blocks):
        return [{k: v for k, v in block.items() if k != "id"} for block in blocks]

    def test_effort_of_messages(self):
        """output_config.effort is the encoder's: the prefix of the highest is counted."""
        body = {"messages": [{"role": "user", "content": "q"}], "thinking": {"type": "adaptive"}}
        count = lambda **fields: self.server.post("/v1/messages/count_tokens", {**body, **fields}).json["input_tokens"]
        self.assertGreater(count(output_config={"effort": "max"}), count() + 20)
        self.assertEqual(count(output_config={"effort": "low"}), count())

    def test_logprobs_of_responses(self):
        """One entry for each token of the message's text, the same streamed; none unless asked for."""
        body = {"input": "Say ⟦a thought</think>Hello there, é.⟧", "temperature": 0}
        for asked, num_top in (({"top_logprobs": 3}, 3), ({"include": ["message.output_text.logprobs"]}, 0), ({}, None)):
            whole = self.server.post("/v1/responses", {**body, **asked})
            part = [item for item in whole.json["output"] if item["type"] == "message"][0]["content"][0]
            entries = part["logprobs"]
            if num_top is None:
                self.assertEqual(entries, [])
                continue
            self.assertEqual(b"".join(bytes(e["bytes"]) for e in entries).decode(), "Hello there, é.")
            self.assertTrue(all(len(e["top_logprobs"]) == num_top and e["logprob"] <= 0 for e in entries))
            events = [json.loads(data) for _, data in self.server.post("/v1/responses", {**body, **asked, "stream": True}).events]
            streamed = [e for event in events if event["type"] == "response.output_text.delta" for e in event["logprobs"]]
            done = [event for event in events if event["type"] == "response.output_text.done"][0]
            self.assertEqual((streamed, done["logprobs"]), (entries, entries))
            self.assertEqual(events[-1]["response"]["output"][1]["content"][0]["logprobs"], entries)

    def test_developer_is_system(self):
        """OpenAI's newer name of a system message; the encoder's developer would be a turn of the user's."""
        for rest in ([], [{"role": "assistant", "content": "a"}, {"role": "user", "content": "q2"}]):
            tokens = [self.server.post("/tokenize", {"messages": [{"role": role, "content": "Be brief."}, {"role": "user", "content": "q"}, *rest]}).json["tokens"]
                      for role in ("system", "developer")]
            self.assertEqual(*tokens)
        for role in ("system", "developer"):
            usage = self.server.post("/v1/chat/completions", {"messages": [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Say ⟦t</think>x⟧"}]}).json["usage"]
            self.assertEqual(usage["prompt_tokens"], self.server.post("/v1/responses", {"input": [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Say ⟦t</think>x⟧"}]}).json["usage"]["input_tokens"])

    def test_messages_streamed_is_whole(self):
        for text, fields, stop in (
            ("Hello there.", {}, "end_turn"),
            ("a thought</think>Hello.", {"thinking": {"type": "enabled", "budget_tokens": 2000}}, "end_turn"),
            ("Hello" + self.TOOL_TEXT, {"tools": [self.TOOL]}, "tool_use"),
            (self.TOOL_TEXT, {"tools": [self.TOOL], "tool_choice": {"type": "any"}}, "tool_use"),
            (self.TOOL_TEXT, {"tools": [self.TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}}, "tool_use"),
            ("one two three four five", {"max_tokens": 3}, "max_tokens"),
            ("one END two", {"stop_sequences": ["END"]}, "stop_sequence"),
        ):
            whole, events = self.messages(text, **fields)
            blocks, delta = self.rebuild(events)
            self.assertEqual(self.strip_ids(whole["content"]), self.strip_ids(blocks), text)
            self.assertEqual(whole["stop_reason"], stop, text)
            self.assertEqual(delta["delta"]["stop_reason"], stop)
            self.assertEqual(delta["usage"]["output_tokens"], whole["usage"]["output_tokens"])
            self.assertEqual(whole["stop_sequence"], "END" if stop == "stop_sequence" else None)

    def test_cached_tokens_are_told_first(self):
        """What the prefix cache gave stands in the first event that has a usage, not only in the last."""
        text = "early " * 400 + "⟦one two three⟧"
        body = {"max_tokens": 50, "temperature": 0, "messages": [{"role": "user", "content": text}], "stream": True}
        cold, warm = ([json.loads(data) for _, data in self.server.post("/v1/messages", body).events] for _ in range(2))
        counted = self.server.post("/v1/messages/count_tokens", {"messages": body["messages"]}).json["input_tokens"]
        for events, is_warm in ((cold, False), (warm, True)):
            start, end = events[0]["message"]["usage"], events[-2]["usage"]
            for key in ("input_tokens", "cache_read_input_tokens"):
                self.assertEqual(start[key], end[key], key)
            self.assertEqual(start["cache_read_input_tokens"] > 255, is_warm)
            self.assertEqual(start["input_tokens"] + start["cache_read_input_tokens"], counted)
        chat = {"messages": [{"role": "user", "content": "chat " + text}], "temperature": 0, "stream": True, "n": 2, "thinking": {"type": "disabled"},
                "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        for path, fields in (("/v1/chat/completions", chat), ("/v1/completions", {**chat, "prompt": "raw " + text, "messages": None})):
            for is_warm in (False, True):
                told = [chunk["usage"]["prompt_tokens_details"]["cached_tokens"] for chunk in self.server.post(path, fields).chunks
                        if not chunk["choices"] or chunk["choices"][0]["index"] == 0]
                self.assertEqual(set(told), {told[-1]}, path)
                self.assertEqual(told[-1] > 255, is_warm, "choices after the first find what it computed: no hit of the request's")
        native = {"text": "native " + text, "sampling_params": {"max_new_tokens": 20, "temperature": 0}, "stream": True}
        self.server.post("/generate", native)
        told = [json.loads(data)["meta_info"]["cached_tokens"] for _, data in self.server.post("/generate", native).events[:-1]]
        self.assertEqual(set(told), {told[-1]})
        self.assertGreater(told[-1], 255)

    def test_calls_that_nobody_offered_are_text(self):
        whole, events = self.messages("Hello" + self.TOOL_TEXT)
        blocks, delta = self.rebuild(events)
        self.assertEqual(whole["content"], [{"type": "text", "text": "Hello" + self.TOOL_TEXT}])
        self.assertEqual(blocks, whole["content"])
        self.assertEqual((whole["stop_reason"], delta["delta"]["stop_reason"]), ("end_turn", "end_turn"))
        body = {"input": "Say ⟦a thought</think>Hi." + self.TOOL_TEXT + "⟧", "temperature": 0}
        output = self.server.post("/v1/responses", body).json["output"]
        streamed = json.loads(self.server.post("/v1/responses", {**body, "stream": True}).events[-1][1])["response"]["output"]
        for items in (output, streamed):
            self.assertEqual([i["type"] for i in items], ["reasoning", "message"])
            self.assertEqual(items[1]["content"][0]["text"], "Hi." + self.TOOL_TEXT)

    def test_messages_conversation(self):
        body = {
            "max_tokens": 50,
            "system": [{"type": "text", "text": "Be brief."}],
            "tools": [self.TOOL],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "look"},
                                                  {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                                             {"type": "text", "text": "and? ⟦It rains.⟧"}]},
            ],
        }
        reply = self.server.post("/v1/messages", body).json
        self.assertEqual(reply["content"], [{"type": "text", "text": "It rains."}])
        counted = self.server.post("/v1/messages/count_tokens", {k: v for k, v in body.items() if k != "max_tokens"}).json
        usage = reply["usage"]
        self.assertEqual(counted["input_tokens"], usage["input_tokens"] + usage["cache_read_input_tokens"])

    def test_notes_of_the_system_among_messages(self):
        """Harnesses put system messages behind the user's turn, on every API; the answer begins behind them all the same."""
        tokens = lambda *messages: self.server.post("/tokenize", {"messages": list(messages)}).json["tokens"]
        say = lambda role, text: {"role": role, "content": text}
        head, tail = tokens(say("user", "q"), say("assistant", "a"), say("user", "")), tokens(say("user", ""))
        answer = tail[2:]  # behind the beginning and the user's token
        for note in ("system", "developer"):
            self.assertEqual(tokens(say("user", "q"), say(note, "N")), tokens(say("user", "q\n\nN")))
            self.assertEqual(tokens(say("user", "q"), say(note, "N"), say(note, "M")), tokens(say("user", "q\n\nN\n\nM")))
            self.assertEqual(tokens(say("user", "q"), say(note, "N"), say("assistant", "a"), say("user", "")), tokens(say("user", "q\n\nN"), say("assistant", "a"), say("user", "")))
            self.assertEqual(tokens(say("system", "S"), say(note, "N")), tokens(say("system", "S"), say("user", "N")))
            self.assertEqual(tokens(say(note, "N")), tokens(say(note, "N"), say("user", "")))
            # Where a turn of the user's follows, the encoder's own place.
            self.assertEqual(tokens(say("user", "q"), say("assistant", "a"), say(note, ""), say("user", "")), head)
            self.assertEqual(tokens(say("user", "q"), say(note, "N"))[-len(answer):], answer)
        for path, body, count in (("/v1/messages", {"max_tokens": 50, "messages": [say("user", "⟦x y⟧"), say("system", "Note.")]}, "/v1/messages/count_tokens"),
                                  ("/v1/responses", {"input": [say("user", "⟦t</think>x y⟧"), say("developer", "Note.")]}, "/v1/responses/input_tokens"),
                                  ("/v1/chat/completions", {"messages": [say("user", "⟦t</think>x y⟧"), say("system", "Note.")]}, None)):
            reply = self.server.post(path, body)
            self.assertIn('"x y"', reply.text, "the script's answer begins where the assistant's turn does")
            if count:
                usage = reply.json["usage"]
                self.assertEqual(self.server.post(count, body).json["input_tokens"], usage["input_tokens"] + usage.get("cache_read_input_tokens", 0))

    def test_system_messages_of_messages(self):
        count = lambda *messages, **fields: self.server.post("/v1/messages/count_tokens", {"messages": list(messages), **fields}).json["input_tokens"]
        say = lambda role, content, **fields: {"role": role, "content": content, **fields}
        q, a, note = say("user", "q"), say("assistant", "a"), say("system", "Be brief.")
        self.assertEqual(count(note, q), count(q, system="Be brief."))
        self.assertEqual(count(note, q, system="S"), count(q, system="S\n\nBe brief."))
        self.assertEqual(count(q, say("system", [{"type": "text", "text": "N"}, {"type": "text", "text": "M"}])), count(say("user", "q\n\nN\n\nM")))
        # One that is cleared by the next turn of the user's is there until then.
        passing = say("system", "Be brief.", clear_at="next_user_message")
        self.assertEqual(count(q, passing), count(q, note))
        self.assertEqual(count(q, passing, a, q), count(q, a, q))
        self.assertEqual(count(q, say("system", "", output_config={"effort": "low"}), a, q), count(q, a, q))
        # Tools that come later are offered; references to what `tools` has, and what goes, change nothing.
        reference = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "get_weather"}}
        definition = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": self.TOOL}}
        removal = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "get_weather"}}
        note = lambda text: say("system", text)
        gone = "The tool get_weather cannot be called any more."
        self.assertEqual(count(q, say("system", [reference, removal]), tools=[self.TOOL]), count(q, note("[tool_reference get_weather]\n\n" + gone), tools=[self.TOOL]))
        self.assertEqual(count(q, say("system", [definition])), count(q, note("[tool_reference get_weather]"), tools=[self.TOOL]), "none else is at the head")
        # Deferred: not at the head, whose prefix is found whatever comes up later, but defined where it comes up.
        other, late = {"name": "now", "input_schema": {"type": "object"}}, {**self.TOOL, "defer_loading": True}
        told = "<functions>\n<function>" + json.dumps({"name": "get_weather", "description": "d", "parameters": self.TOOL["input_schema"]}) + "</function>\n</functions>"
        self.assertEqual(count(q, tools=[other, late]), count(q, tools=[other]))
        self.assertEqual(count(q, say("system", [reference]), tools=[other, late]), count(q, note(told), tools=[other]))
        self.assertEqual(count(q, say("system", [definition]), tools=[other]), count(q, note(told), tools=[other]))
        searched = [say("assistant", [{"type": "tool_use", "id": "t", "name": "now", "input": {}}]),
                    say("user", [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "get_weather"}]}])]
        as_text = [searched[0], say("user", [{"type": "tool_result", "tool_use_id": "t", "content": told}])]
        self.assertEqual(count(q, *searched, tools=[other, late]), count(q, *as_text, tools=[other]))
        again = [searched[0], copy.deepcopy(searched[1])]
        again[1]["content"][0]["content"] *= 2
        as_text[1]["content"][0]["content"] = told + "\n[tool_reference get_weather]"
        self.assertEqual(count(q, *again, tools=[other, late]), count(q, *as_text, tools=[other]), "defined once")
        body = {"max_tokens": 200, "temperature": 0, "messages": [q, *searched, say("user", f"⟦{self.TOOL_TEXT}⟧")], "tools": [other, late], "tool_choice": {"type": "any"}}
        self.assertEqual(self.server.post("/v1/messages", body).json["content"][0]["name"], "get_weather")
        body = {"max_tokens": 200, "temperature": 0, "messages": [say("user", f"⟦{self.TOOL_TEXT}⟧"), say("system", [definition])]}
        self.assertEqual(self.server.post("/v1/messages", body).json["stop_reason"], "tool_use")
        # What a search for tools gave reads as text.
        use = say("assistant", [{"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}])
        result = lambda part: say("user", [{"type": "tool_result", "tool_use_id": "t", "content": [part]}])
        self.assertEqual(count(q, use, result({"type": "tool_reference", "tool_name": "f"})), count(q, use, result({"type": "text", "text": "[tool_reference f]"})))
        # Thinking that is not to be shown is in the signature, and read from there when the block comes back.
        turns = {}
        for display in ("summarized", "omitted"):
            whole, events = self.messages("hm, é</think>Hello.", thinking={"type": "adaptive", "display": display})
            blocks, delta = self.rebuild(events)
            for data in [data for name, data in events if name == "content_block_delta" and data["delta"]["type"] == "signature_delta"]:
                blocks[data["index"]]["signature"] += data["delta"]["signature"]
            self.assertEqual(blocks, whole["content"])
            self.assertEqual([(block["type"], block.get("thinking")) for block in blocks], [("thinking", "hm, é" if display == "summarized" else ""), ("text", None)])
            self.assertGreater(delta["usage"]["output_tokens_details"]["thinking_tokens"], 2)
            turns[display] = say("assistant", blocks)
        seen = [count(q, turn, q, thinking={"type": "adaptive"}, tools=[self.TOOL]) for turn in (*turns.values(), say("assistant", "Hello."))]
        self.assertEqual(seen[0], seen[1])
        self.assertGreater(seen[0], seen[2], "with tools the reasoning of earlier turns stays")
        foreign = say("assistant", [{"type": "thinking", "thinking": "", "signature": "EqQB"}, {"type": "text", "text": "Hello."}])
        self.assertEqual(count(q, foreign, q, thinking={"type": "adaptive"}, tools=[self.TOOL]), seen[2])
        self.assertEqual(count(q, thinking={"type": "between_tools"}), count(q, thinking={"type": "disabled"}))

    def test_a_request_of_claude_code(self):
        """The shape of its first request of a session, as its users' reports have it."""
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
        body = {"model": "mini-v4", "max_tokens": 32000, "stream": True, "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
                "metadata": {"user_id": "user_1_account__session_2"}, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.208.abc; cc_entrypoint=cli; cch=36ee5;"}, {"type": "text", "text": "You are a tool.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
                "tools": [{"name": "get_weather", "description": "d", "input_schema": schema, "eager_input_streaming": True}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nr\n</system-reminder>"},
                                                          {"type": "text", "text": f"weather? ⟦t</think>Let me see.{self.TOOL_TEXT}⟧", "cache_control": {"type": "ephemeral"}}]},
                             {"role": "system", "content": "The following skills are available."}]}
        headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "authorization": "Bearer x", "x-app": "cli"}
        reply = self.server.post("/v1/messages?beta=true", body, headers=headers)
        self.assertEqual(reply.status, 200, reply.text)
        blocks, delta = self.rebuild([(name, json.loads(data)) for name, data in reply.events])
        self.assertEqual([block["type"] for block in blocks], ["thinking", "text", "tool_use"])
        self.assertEqual((blocks[2]["input"], delta["delta"]["stop_reason"]), ({"city": "Oslo"}, "tool_use"))
        body["messages"] += [{"role": "assistant", "content": blocks},
                             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": blocks[2]["id"], "content": "rain", "is_error": False, "cache_control": {"type": "ephemeral"}}]},
                             {"role": "system", "content": [{"type": "text", "text": "So? ⟦t</think>It rains.⟧"}]}]
        reply = self.server.post("/v1/messages?beta=true", body, headers=headers)
        blocks, delta = self.rebuild([(name, json.loads(data)) for name, data in reply.events])
        self.assertEqual((blocks[-1]["text"], delta["delta"]["stop_reason"]), ("It rains.", "end_turn"))
        # Its first line of the system prompt differs with every request, and is not the model's business: prefixes are found.
        line = "x-anthropic-billing-header: cc_version=2.1.208.def; cc_entrypoint=cli; cch=%s;"
        told = [{"type": "text", "text": "word " * 400}]
        plain = {"max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
        self.server.post("/v1/messages", {**plain, "system": [{"type": "text", "text": line % "0aaa9"}, *told]})
        for system in ([{"type": "text", "text": line % "1bbb8"}, *told], (line % "2ccc7") + "\n" + told[0]["text"], told):
            usage = self.server.post("/v1/messages", {**plain, "system": system}).json["usage"]
            self.assertGreater(usage["cache_read_input_tokens"], 255)
            self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], self.server.post("/v1/messages/count_tokens", {**plain, "system": told}).json["input_tokens"])
        for path, small in (("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "quota"}], "metadata": {"user_id": "u"}}),
                            ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "foo"}], "tools": body["tools"]})):
            self.assertEqual(self.server.post(path + "?beta=true", {"model": "mini-v4", **small}, headers=headers).status, 200)

    def test_76_events_of_responses(self):
        body = {"input": "Say ⟦a thought</think>Hello." + self.TOOL_TEXT + "⟧", "temperature": 0, "stream": True,
                "tools": [{"type": "function", "name": "get_weather", "parameters": self.TOOL["input_schema"]}]}
        events = [(name, json.loads(data)) for name, data in self.server.post("/v1/responses", body).events]
        self.assertEqual([d["sequence_number"] for _, d in events], list(range(len(events))))
        self.assertTrue(all(name == data["type"] for name, data in events))
        names = [name for name, _ in events]
        squeezed = [n for i, n in enumerate(names) if i == 0 or n != names[i - 1]]
        item = lambda kind: ["response.output_item.added", "response.content_part.added", f"response.{kind}.delta",
                             f"response.{kind}.done", "response.content_part.done", "response.output_item.done"]
        self.assertEqual(squeezed, ["response.created", "response.in_progress", *item("reasoning_text"), *item("output_text"),
                                    "response.output_item.added", "response.function_call_arguments.delta",
                                    "response.function_call_arguments.done", "response.output_item.done", "response.completed"])
        added = [d["output_index"] for n, d in events if n == "response.output_item.added"]
        self.assertEqual(added, [0, 1, 2])
        final = events[-1][1]["response"]
        self.assertEqual([i["type"] for i in final["output"]], ["reasoning", "message", "function_call"])
        self.assertEqual(json.loads(final["output"][2]["arguments"]), {"city": "Oslo"})
        whole = self.server.post("/v1/responses", {**body, "stream": False}).json
        self.assertEqual([i["type"] for i in whole["output"]], ["reasoning", "message", "function_call"])
        self.assertEqual(whole["usage"]["output_tokens"], final["usage"]["output_tokens"])
        self.assertGreater(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 0)

    def test_77_tools_of_others_are_left_out(self):
        function = {"type": "function", "name": "get_weather", "parameters": self.TOOL["input_schema"]}
        body = {"input": "Say ⟦t</think>Hi.⟧", "temperature": 0}
        alone = self.server.post("/v1/responses", {**body, "tools": [function]}).json
        self.assertNotIn("ignored_tools", alone)
        for tools, where in (([{"type": "namespace", "name": "n" * 257, "tools": [function]}], "tools[0].name"), ([{"type": f"x{i}"} for i in range(4097)], "tools")):
            refused = self.server.post("/v1/responses", {**body, "tools": tools})
            self.assertEqual((refused.status, refused.json["error"]["param"]), (400, where))
        mixed = self.server.post("/v1/responses", {**body, "tools": [{"type": "web_search"}, function, {"type": "namespace", "name": "n"}, {"type": "web_search"}]}).json
        self.assertEqual((mixed["tools"], mixed["ignored_tools"]), ([function], ["web_search", "namespace"]))
        self.assertEqual(mixed["usage"]["input_tokens"], alone["usage"]["input_tokens"], "the model saw the one tool")
        refused = self.server.post("/v1/responses", {**body, "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}})
        self.assertEqual(refused.status, 400)
        self.assertIn("web_search", refused.json["error"]["message"])

    PATCH = "*** Begin Patch\n+a \"b\" \\ é < 2\n*** End Patch"
    LARK = {"type": "custom", "name": "apply_patch", "description": "Edits files.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin_patch hunk+ end_patch"}}

    def call_of(self, name, **parameters):
        inner = "\n".join(f'<｜DSML｜parameter name="{k}" string="true">{v}</｜DSML｜parameter>' for k, v in parameters.items())
        return f'\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{name}">\n{inner}\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'

    def prompt_of(self, body):
        return self.server.post("/v1/responses/input_tokens", body).json["input_tokens"]

    def test_custom_tools(self):
        """A tool that is called with one text: its items and events, whole and streamed, and the call sent back."""
        body = {"input": f"Say ⟦t</think>Hm.{self.call_of('apply_patch', input=self.PATCH)}⟧", "temperature": 0, "tools": [self.LARK, {"type": "custom", "name": "plain"}]}
        narrowed = [{"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "apply_patch"}]}] if self.server.has_grammar() else []
        for choice in ("auto", {"type": "custom", "name": "apply_patch"}, *narrowed):
            named = choice != "auto" and choice["type"] == "custom"
            asked = {**body, "tool_choice": choice}
            if named:  # the answer is the call alone
                asked["input"] = f"Say ⟦t</think>{self.call_of('apply_patch', input=self.PATCH)}⟧"
            whole = self.server.post("/v1/responses", asked)
            self.assertEqual(whole.status, 200, whole.text)
            self.assertEqual((whole.json["tools"], whole.json["unenforced_grammars"]), (body["tools"], ["apply_patch"]))
            call = whole.json["output"][-1]
            self.assertEqual({k: v for k, v in call.items() if k not in ("id", "call_id")},
                             {"type": "custom_tool_call", "name": "apply_patch", "input": self.PATCH, "status": "completed"})
            self.assertTrue(call["id"].startswith("ctc_") and call["call_id"].startswith("call_"))
            events = [(name, json.loads(data)) for name, data in self.server.post("/v1/responses", {**asked, "stream": True}).events]
            self.assertEqual([d["sequence_number"] for _, d in events], list(range(len(events))))
            deltas = [d["delta"] for name, d in events if name == "response.custom_tool_call_input.delta"]
            done = [d for name, d in events if name == "response.custom_tool_call_input.done"]
            self.assertGreater(len(deltas), 3, "the input streams")
            self.assertEqual(("".join(deltas), [d["input"] for d in done]), (self.PATCH, [self.PATCH]))
            self.assertFalse([name for name, _ in events if "function_call" in name])
            added = [d["item"] for name, d in events if name == "response.output_item.added"][-1]
            last = [d["item"] for name, d in events if name == "response.output_item.done"][-1]
            self.assertEqual((added["input"], added["status"], added["id"]), ("", "in_progress", last["id"]))
            self.assertEqual((last["input"], events[-1][1]["response"]["output"][-1]), (self.PATCH, last))
            # Sent back with its output: a call and its result, as those of a function with the same text.
            tail = [{"role": "user", "content": "so? ⟦t</think>Done.⟧"}]
            again = {**body, "input": [*whole.json["output"], {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Success."}, *tail]}
            self.assertEqual(self.server.post("/v1/responses", again).json["output"][-1]["content"][0]["text"], "Done.")
            as_function = [*whole.json["output"][:-1], {"type": "function_call", "call_id": call["call_id"], "name": "apply_patch", "arguments": json.dumps({"input": self.PATCH})},
                           {"type": "function_call_output", "call_id": call["call_id"], "output": [{"type": "input_text", "text": "Success."}]}, *tail]
            self.assertEqual(self.prompt_of(again), self.prompt_of({**again, "input": as_function}))
        # The model sees the grammar; a call that is cut off is as long as it came.
        self.assertGreater(self.prompt_of(body), self.prompt_of({**body, "tools": [{k: v for k, v in self.LARK.items() if k != "format"}, body["tools"][1]]}) + 10)
        cut = self.server.post("/v1/responses", {**body, "max_output_tokens": 45}).json
        self.assertEqual((cut["status"], cut["output"][-1]["type"], cut["output"][-1]["status"]), ("incomplete", "custom_tool_call", "incomplete"))
        self.assertTrue(self.PATCH.startswith(cut["output"][-1]["input"]) and cut["output"][-1]["input"], cut["output"][-1])
        # Another name of the parameter is as good; functions beside custom tools are functions.
        other = self.server.post("/v1/responses", {**body, "input": f"Say ⟦t</think>{self.call_of('apply_patch', patch=self.PATCH)}⟧"}).json
        self.assertEqual(other["output"][-1]["input"], self.PATCH)
        function = {"type": "function", "name": "get_weather", "parameters": self.TOOL["input_schema"]}
        mixed = self.server.post("/v1/responses", {**body, "tools": [self.LARK, function], "input": f"Say ⟦t</think>{self.call_of('get_weather', city='Oslo')}⟧"}).json
        self.assertEqual((mixed["output"][-1]["type"], json.loads(mixed["output"][-1]["arguments"])), ("function_call", {"city": "Oslo"}))
        for choice in ({"type": "custom", "name": "get_weather"}, {"type": "custom", "name": "none"}):
            refused = self.server.post("/v1/responses", {**body, "tools": [self.LARK, function], "tool_choice": choice})
            self.assertEqual((refused.status, refused.json["error"]["param"]), (400, "tool_choice"))

    def test_namespaces(self):
        """Tools that stand in a namespace, as agents send those of an MCP server: calls name both, and are read back."""
        def space(name, *tools):
            return {"type": "namespace", "name": name, "description": "d", "tools": list(tools)}
        weather = {"type": "function", "name": "get_weather", "description": "d", "strict": False, "parameters": self.TOOL["input_schema"]}
        flat = [{**weather, "name": name} for name in ("mcp__a__get_weather", "b__get_weather")]
        tools = [space("mcp__a__", {**weather, "defer_loading": True}), space("b", weather, {"type": "custom", "name": "patch"})]
        ask = lambda call, **fields: {"input": f"Say ⟦t</think>{call}⟧", "temperature": 0, "tools": tools, **fields}
        for name, expected in (("mcp__a__get_weather", ("mcp__a__", "get_weather")), ("b__get_weather", ("b", "get_weather"))):
            body = ask(self.call_of(name, city="Oslo"))
            call = self.server.post("/v1/responses", body).json["output"][-1]
            self.assertEqual((call["type"], call["namespace"], call["name"], json.loads(call["arguments"])), ("function_call", *expected, {"city": "Oslo"}))
            events = [json.loads(data) for _, data in self.server.post("/v1/responses", {**body, "stream": True}).events]
            items = [event["item"] for event in events if event["type"].startswith("response.output_item") and event["item"]["type"] == "function_call"]
            self.assertEqual([(item["namespace"], item["name"]) for item in items], [expected] * 2)
            self.assertEqual(events[-1]["response"]["tools"], tools)
            again = [{"role": "user", "content": "q"}, call, {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}, {"role": "user", "content": "so? ⟦t</think>It rains.⟧"}]
            self.assertEqual(self.server.post("/v1/responses", {**body, "input": again}).json["output"][-1]["content"][0]["text"], "It rains.")
            plain = [{k: v for k, v in item.items() if k != "namespace"} | ({"name": name} if item.get("name") else {}) for item in again]
            self.assertEqual(self.prompt_of({"input": again}), self.prompt_of({"input": plain}))
        custom = self.server.post("/v1/responses", ask(self.call_of("b__patch", input="x"))).json["output"][-1]
        self.assertEqual((custom["type"], custom["namespace"], custom["name"], custom["input"]), ("custom_tool_call", "b", "patch", "x"))
        self.assertEqual(self.prompt_of(ask("", tools=[tools[0], space("b", weather)])), self.prompt_of(ask("", tools=flat)))
        # A tool that is named: by its namespace, or alone where it is the only one.
        for choice in ({"type": "function", "name": "get_weather", "namespace": "b"}, {"type": "custom", "name": "patch"}):
            self.assertEqual(self.server.post("/v1/responses", ask(self.call_of("b__" + choice["name"], input="x"), tool_choice=choice)).json["output"][-1]["namespace"], "b")
        for choice in ({"type": "function", "name": "get_weather"}, {"type": "function", "name": "get_weather", "namespace": "c"}, {"type": "function", "name": "patch"}):
            refused = self.server.post("/v1/responses", ask("", tool_choice=choice))
            self.assertEqual((refused.status, refused.json["error"]["param"]), (400, "tool_choice"))
        outside = self.server.post("/v1/responses", ask(self.call_of("get_weather", city="Oslo"), tools=[*tools, weather], tool_choice={"type": "function", "name": "get_weather"}))
        self.assertNotIn("namespace", outside.json["output"][-1])

    def test_a_search_for_tools(self):
        """tool_search that the client executes: a call with an object, and what it found is offered from then on."""
        weather = {"type": "function", "name": "get_weather", "description": "d", "parameters": self.TOOL["input_schema"]}
        search = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}
        body = {"input": f"Say ⟦t</think>{self.call_of('tool_search', query='weather')}⟧", "temperature": 0, "tools": [search, {"type": "tool_search"}]}
        whole = self.server.post("/v1/responses", body).json
        self.assertEqual((whole["tools"], whole["ignored_tools"]), ([search], ["tool_search"]))
        call = whole["output"][-1]
        self.assertEqual({k: v for k, v in call.items() if k not in ("id", "call_id")},
                         {"type": "tool_search_call", "execution": "client", "arguments": {"query": "weather"}, "status": "completed"})
        events = [json.loads(data) for _, data in self.server.post("/v1/responses", {**body, "stream": True}).events]
        self.assertEqual([event["type"] for event in events][-3:], ["response.output_item.added", "response.output_item.done", "response.completed"])
        self.assertEqual((events[-3]["item"]["arguments"], events[-2]["item"]["arguments"]), ({}, {"query": "weather"}))
        found = {"type": "tool_search_output", "call_id": call["call_id"], "execution": "client", "status": "completed",
                 "tools": [{"type": "namespace", "name": "mcp__a", "description": "d", "tools": [weather]}, weather, {"type": "web_search"}]}
        items = [{"role": "user", "content": "q"}, call, found, {"role": "user", "content": f"so? ⟦t</think>{self.call_of('mcp__a__get_weather', city='Oslo')}⟧"}]
        reply = self.server.post("/v1/responses", {**body, "input": items}).json
        self.assertEqual([reply["output"][-1].get(key) for key in ("type", "namespace", "name")], ["function_call", "mcp__a", "get_weather"])
        # The search's result is text, the definitions of what it found: the prompt's head stays what it was.
        defined = lambda name: json.dumps({"name": name, **{k: weather[k] for k in ("description", "parameters")}})
        told = "<functions>\n" + "".join(f"<function>{defined(name)}</function>\n" for name in ("mcp__a__get_weather", "get_weather")) + "</functions>"
        plain = [items[0], {"type": "function_call", "call_id": "c", "name": "tool_search", "arguments": '{"query": "weather"}'},
                 {"type": "function_call_output", "call_id": "c", "output": told}, items[3]]
        as_functions = [{"type": "function", "name": "tool_search", **{k: search[k] for k in ("description", "parameters")}}]
        self.assertEqual(reply["usage"]["input_tokens"], self.prompt_of({"input": plain, "tools": as_functions}))
        # What is at the head already, and where nothing else is at the head.
        added = {"type": "additional_tools", "role": "developer", "tools": [weather]}
        for tools in ([weather], []):
            self.assertEqual(self.prompt_of({"input": [items[0], added, items[0]], "tools": tools}),
                             self.prompt_of({"input": [items[0], {"role": "system", "content": "[tool_reference get_weather]"}, items[0]], "tools": [weather]}))
        refused = self.server.post("/v1/responses", {"input": [items[0], {"type": "additional_tools", "tools": [{"type": "web_search"}]}], "tool_choice": "required"})
        self.assertEqual((refused.status, refused.json["error"]["param"]), (400, "tool_choice"))
        hosted = [{"type": "tool_search_call", "execution": "server", "call_id": None, "arguments": {"paths": []}}, {"type": "tool_search_output", "execution": "server", "call_id": None, "tools": [weather]}]
        reply = self.server.post("/v1/responses", {"input": [items[0], *hosted, items[0]], "max_output_tokens": 1})
        self.assertEqual(reply.json["ignored_items"], ["tool_search_call", "tool_search_output"])
        self.assertEqual(reply.json["usage"]["input_tokens"], self.prompt_of({"input": [items[0], items[0]], "tools": [weather]}))

    def test_a_session_of_codex(self):
        """The shape of its requests, as its users' reports have it: what came is sent back with what the client ran."""
        shell = {"type": "function", "name": "exec_command", "description": "d", "strict": False, "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"], "additionalProperties": False}}
        tools = [shell, self.LARK, {"type": "web_search", "external_web_access": False}, {"type": "namespace", "name": "mcp__m__", "description": "Tools in the mcp__m__ namespace.", "tools": [{**shell, "name": "run"}]}]
        said = lambda role, text: {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
        items = [said("developer", "<permissions>\np\n</permissions>"), said("user", "<environment_context>\ne\n</environment_context>")]
        common = {"model": "mini-v4", "instructions": "You are an agent.", "tools": tools, "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"},
                  "store": False, "stream": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": {"verbosity": "low"}, "client_metadata": {"x": "y"}}
        headers = {"authorization": "Bearer x", "accept": "text/event-stream", "openai-beta": "responses=experimental", "originator": "codex_cli_rs"}
        for script, kind, output in (
            ("t</think>I list." + self.call_of("exec_command", cmd="ls"), "function_call", "function_call_output"),
            ("u</think>" + self.call_of("apply_patch", input=self.PATCH), "custom_tool_call", "custom_tool_call_output"),
            ("v</think>" + self.call_of("mcp__m__run", cmd="ls"), "function_call", "function_call_output"),
            ("w</think>Done.", "message", None),
        ):
            reply = self.server.post("/v1/responses", {**common, "input": [*items, said("user", f"go on ⟦{script}⟧")]}, headers=headers)
            self.assertEqual(reply.status, 200, reply.text)
            events = [json.loads(data) for _, data in reply.events]
            done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            self.assertEqual((done[0]["type"], done[-1]["type"], events[-1]["type"]), ("reasoning", kind, "response.completed"))
            self.assertEqual(events[-1]["response"]["output"], done)
            usage = events[-1]["response"]["usage"]
            self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
            for item in done:  # as that client writes what it read: without ids, absent members as null
                items.append({k: v for k, v in item.items() if k not in ("id", "status")} | ({"encrypted_content": None} if item["type"] == "reasoning" else {}))
            if output:
                items.append({"type": output, "call_id": done[-1]["call_id"], "output": "Exit code: 0"})
        self.assertEqual(events[-1]["response"]["ignored_tools"], ["web_search"])
        self.assertEqual(done[-1]["content"][0]["text"], "Done.")

    def test_a_custom_tool_is_held_to_its_regex(self):
        tool = {"type": "custom", "name": "year", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{4}"}}
        body = {"input": f"Say ⟦t</think>{self.call_of('year', input='19x84')}⟧", "temperature": 0, "tools": [tool], "max_output_tokens": 200}
        reply = self.server.post("/v1/responses", body)
        if not self.server.has_grammar():
            return self.assertEqual((reply.status, reply.json["error"]["param"]), (400, "tools[0].format.syntax"))
        for choice in ("auto", "required"):
            call = self.server.post("/v1/responses", {**body, "tool_choice": choice}).json["output"][-1]
            self.assertEqual(call["type"], "custom_tool_call")
            self.assertRegex(call["input"], "^[0-9]{4}$")
        refused = self.server.post("/v1/responses", {**body, "tools": [{**tool, "format": {"type": "grammar", "syntax": "regex", "definition": "(?=a)b"}}]})
        self.assertEqual((refused.status, refused.json["error"]["param"]), (400, "tools"))

    def test_items_of_built_in_tools(self):
        """Calls and outputs of tools that clients run stay in the conversation; what other servers' tools did stays where
        the item tells it, else it is left out and named."""
        ask = {"role": "user", "content": "so? ⟦t</think>Seen.⟧"}
        shell = {"type": "exec", "command": ["ls", "-l"], "env": {}}
        message = [{"role": "user", "content": "Look."}, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "I look."}]}]

        def same(items, call, output, ignored=None):
            reply = self.server.post("/v1/responses", {"input": [*message, *items, ask], "temperature": 0})
            self.assertEqual(reply.status, 200, reply.text)
            self.assertEqual((reply.json["output"][-1]["content"][0]["text"], reply.json.get("ignored_items")), ("Seen.", ignored))
            name, arguments = call if call else (None, None)
            expected = [*message, *([{"type": "function_call", "call_id": "c", "name": name, "arguments": json.dumps(arguments)}] if call else []),
                        *([{"type": "function_call_output", "call_id": "c", "output": output}] if output is not None else []), ask]
            self.assertEqual(reply.json["usage"]["input_tokens"], self.prompt_of({"input": expected}), items)

        same([{"type": "local_shell_call", "id": "i", "call_id": "c", "status": "completed", "action": shell}, {"type": "local_shell_call_output", "id": "c", "output": "total 0"}],
             ("local_shell", {"action": shell}), "total 0")
        same([{"type": "local_shell_call", "call_id": "c", "status": "completed", "action": shell}, {"type": "function_call_output", "call_id": "c", "output": "total 0"}],
             ("local_shell", {"action": shell}), "total 0")
        ran = [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
        same([{"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}, {"type": "shell_call_output", "call_id": "c", "output": ran}],
             ("shell", {"action": {"commands": ["ls"]}}), json.dumps(ran))
        patch = {"type": "delete_file", "path": "a"}
        same([{"type": "apply_patch_call", "call_id": "c", "status": "completed", "operation": patch}, {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"}],
             ("apply_patch", {"operation": patch}), "failed")
        click, picture = {"type": "click", "x": 1, "y": 2}, {"type": "computer_screenshot", "image_url": "data:" + "x" * 500}
        same([{"type": "computer_call", "call_id": "c", "action": click, "pending_safety_checks": []}, {"type": "computer_call_output", "call_id": "c", "output": picture}],
             ("computer", {"action": click}), [picture])
        same([{"type": "mcp_call", "id": "c", "server_label": "s", "name": "roll", "arguments": "{\"n\": 2}", "output": "7"}], ("roll", {"n": 2}), "7")
        same([{"type": "mcp_call", "id": "c", "server_label": "s", "name": "roll", "arguments": "{}", "error": "no dice"}], ("roll", {}), "no dice")
        logs = [{"type": "logs", "logs": "4"}]
        same([{"type": "code_interpreter_call", "id": "c", "code": "2+2", "outputs": logs}], ("code_interpreter", {"code": "2+2"}), json.dumps(logs))
        same([{"type": "file_search_call", "id": "c", "queries": ["q"], "results": [{"text": "t"}]}], ("file_search", {"queries": ["q"]}), '[{"text": "t"}]')
        for silent in ({"type": "web_search_call", "id": "i", "status": "completed", "action": {"type": "search", "query": "q"}}, {"type": "file_search_call", "id": "i", "queries": ["q"], "results": None},
                       {"type": "image_generation_call", "id": "i", "result": "iVBO"}, {"type": "mcp_list_tools", "id": "i", "server_label": "s", "tools": []},
                       {"type": "mcp_approval_request", "id": "i", "name": "n", "arguments": "{}", "server_label": "s"}, {"type": "mcp_approval_response", "approval_request_id": "i", "approve": True},
                       {"type": "mcp_call", "id": "i", "server_label": "s", "name": "n", "arguments": "{}"}, {"type": "code_interpreter_call", "id": "i", "code": "1", "outputs": []},
                       {"type": "reasoning", "id": "i", "summary": [], "encrypted_content": "gAAA"}):
            same([silent, silent], None, None, [silent["type"]])
        for kept in ({"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}, {"type": "compaction", "encrypted_content": "x"}, {"type": "hologram"}):
            refused = self.server.post("/v1/responses", {"input": [ask, kept]})
            self.assertEqual((refused.status, refused.json["error"]["param"]), (400, "input[1].type"))

    def test_77_input_tokens(self):
        function = {"type": "function", "name": "get_weather", "parameters": self.TOOL["input_schema"]}
        for body in ({"input": "Say ⟦t</think>Hi.⟧"}, {"input": [{"role": "user", "content": "Say ⟦t</think>Hi.⟧"}], "instructions": "Be brief.", "tools": [function]}):
            counted = self.server.post("/v1/responses/input_tokens", body)
            self.assertEqual(counted.json, {"object": "response.input_tokens", "input_tokens": self.server.post("/v1/responses", body).json["usage"]["input_tokens"]})
        refused = self.server.post("/v1/responses/input_tokens", {"input": 5})
        self.assertEqual((refused.status, refused.json["error"]["param"]), (400, "input"))

    def test_77_items_sent_back(self):
        tools = [{"type": "function", "name": "get_weather", "parameters": self.TOOL["input_schema"]}]
        first = self.server.post("/v1/responses", {"input": "Say ⟦a thought</think>Hi." + self.TOOL_TEXT + "⟧", "temperature": 0, "tools": tools}).json
        call = first["output"][2]
        again = [{"role": "user", "content": "hello"}, *first["output"],
                 {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"},
                 {"role": "user", "content": [{"type": "input_text", "text": "so? ⟦t</think>It rains.⟧"}]}]
        reply = self.server.post("/v1/responses", {"input": again, "temperature": 0, "instructions": "Be brief."}).json
        self.assertEqual(reply["output"][-1]["content"][0]["text"], "It rains.")
        cut = self.server.post("/v1/responses", {"input": "Say ⟦t</think>a b c d e f g⟧", "max_output_tokens": 4}).json
        self.assertEqual((cut["status"], cut["incomplete_details"]["reason"]), ("incomplete", "max_output_tokens"))


if __name__ == "__main__":
    unittest.main()
