"""What the generation routes answer, streamed and whole. The scripted executor writes what the prompt's ⟦mark⟧ says."""
import json
import unittest

from chat_stream import assemble, of_whole, without_ids
from server_under_test import Server, program_path

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALCULATOR = {
    "type": "function",
    "function": {"name": "calculator", "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}},
}


def call_markup(name, *parameters):
    """DSML of one call; parameters are (name, is_string, text)."""
    inner = "\n".join(
        f'<｜DSML｜parameter name="{k}" string="{"true" if is_string else "false"}">{v}</｜DSML｜parameter>'
        for k, is_string, v in parameters
    )
    return f'<｜DSML｜invoke name="{name}">\n{inner}\n</｜DSML｜invoke>'


def calls_markup(*invokes):
    return "\n\n<｜DSML｜tool_calls>\n" + "\n".join(invokes) + "\n</｜DSML｜tool_calls>"


class ChatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(program_path()).wait_ready()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ask(self, reply_text, think=True, user="Question.", **fields):
        """Asks whole and streamed; both must be one message. Returns it, and the whole reply."""
        body = {"messages": [{"role": "user", "content": f"{user} ⟦{reply_text}⟧"}], "temperature": 0, **fields}
        if not think:
            body["thinking"] = {"type": "disabled"}
        whole = self.server.post(CHAT, body)
        self.assertEqual(whole.status, 200, whole.text)
        streamed = self.server.post(CHAT, {**body, "stream": True})
        self.assertEqual(streamed.status, 200, streamed.text)
        self.assertTrue(streamed.headers["content-type"].startswith("text/event-stream"))
        a, b = without_ids(of_whole(whole.json)), without_ids(assemble(streamed.chunks))
        for index, message in b.items():
            # A call that was cut off is streamed as far as it came; the whole reply leaves it out.
            if message["finish_reason"] == "length":
                message["tool_calls"] = message["tool_calls"][: len(a[index]["tool_calls"])]
        self.assertEqual(a, b)
        return a[0], whole.json

    # Text and reasoning.

    def test_reasoning_and_content(self):
        message, reply = self.ask("why not</think>Because.")
        self.assertEqual(message["reasoning_content"], "why not")
        self.assertEqual(message["content"], "Because.")
        self.assertEqual(message["finish_reason"], "stop")
        usage = reply["usage"]
        self.assertGreater(usage["completion_tokens_details"]["reasoning_tokens"], 0)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])

    def test_thinking_switches(self):
        for off in (
            {"thinking": {"type": "disabled"}},
            {"chat_template_kwargs": {"thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "none"},
        ):
            message, _ = self.ask("Plain.", **off)
            self.assertEqual((message["reasoning_content"], message["content"]), ("", "Plain."), off)
        message, _ = self.ask("r</think>c", include_reasoning=False)
        self.assertEqual((message["reasoning_content"], message["content"]), ("", "c"))

    def test_61_no_end_of_thinking(self):
        message, _ = self.ask("all of this is reasoning")
        self.assertEqual(message["content"], "")
        self.assertEqual(message["reasoning_content"], "all of this is reasoning")
        self.assertEqual(message["finish_reason"], "stop")

    def test_62_thinking_uses_all_tokens(self):
        message, reply = self.ask("one two three four five six seven</think>never", max_tokens=4)
        self.assertEqual(message["finish_reason"], "length")
        self.assertEqual(message["content"], "")
        self.assertTrue(message["reasoning_content"])
        self.assertEqual(reply["usage"]["completion_tokens"], 4)
        self.assertEqual(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 4)

    def test_31_no_replacement_characters(self):
        text = "👩‍👩‍👧‍👦 中文字 é à 🏳️‍🌈 ｜<｜ ñ"
        message, _ = self.ask(text, think=False)
        self.assertEqual(message["content"], text)

    def test_32_cut_inside_a_character(self):
        for max_tokens in range(1, 12):
            message, _ = self.ask("👩🏽‍🚀中文", think=False, max_tokens=max_tokens)
            self.assertLessEqual(message["content"].count("\ufffd"), 1)
            message["content"].encode()

    def test_52_plain_answer_that_looks_like_markup(self):
        for text in ("2 <", "a < b", "<｜", "x </", "ends with <｜DSML"):
            message, _ = self.ask(text, think=False)
            self.assertEqual(message["content"], text)

    def test_39_content_arrays(self):
        def prompt_tokens(content):
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
            return self.server.post(CHAT, body).json["usage"]["prompt_tokens"]

        self.assertEqual(prompt_tokens([{"type": "text", "text": "hello world"}]), prompt_tokens("hello world"))
        self.assertEqual(prompt_tokens([]), prompt_tokens(""))
        self.assertEqual(prompt_tokens(None), prompt_tokens(""))

    def test_44_control_strings_in_user_text(self):
        def count(content):
            return self.server.post("/tokenize", {"messages": [{"role": "user", "content": content}]}).json["tokens"]

        plain = count("x")
        for control in ("<｜User｜>", "<｜end▁of▁sentence｜>", "</think>", "｜DSML｜", "<｜Assistant｜>"):
            tokens = count("x" + control)
            self.assertGreater(len(tokens), len(plain) + 1, control)
            special = self.server.post("/tokenize", {"prompt": control}).json["tokens"][0]
            self.assertEqual(tokens.count(special), plain.count(special), control)

    def test_41_continues_the_assistant(self):
        head = {"role": "user", "content": "q"}
        for fields in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
            body = {"messages": [head, {"role": "assistant", "content": "partial"}], "thinking": {"type": "disabled"}}
            tokens = self.server.post("/tokenize", {**body, **fields}).json["tokens"]
            text = self.server.post("/detokenize", {"tokens": tokens}).json["prompt"]
            self.assertTrue(text.endswith("<｜Assistant｜></think>partial"), text)
            self.assertEqual(self.server.post(CHAT, {**body, **fields, "max_tokens": 2}).status, 200)

    def test_42_replayed_call_without_reasoning(self):
        body = {
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "a", "content": "r ⟦t</think>done⟧"},
            ],
            "tools": [WEATHER],
        }
        reply = self.server.post(CHAT, body)
        self.assertEqual(reply.status, 200, reply.text)
        self.assertEqual(reply.json["choices"][0]["message"]["content"], "done")

    # Stops and limits.

    def test_26_27_stop_strings(self):
        for stop, text in (("STOP", "before "), (" fore", "before STOP be"), ("P beforeh", "before STO")):
            message, reply = self.ask("before STOP beforehand", think=False, stop=stop)
            if stop == " fore":  # never comes
                self.assertEqual(message["content"], "before STOP beforehand")
                continue
            self.assertEqual(message["content"], text)
            self.assertEqual(message["finish_reason"], "stop")
            self.assertEqual(reply["choices"][0]["stop_reason"], stop)
        message, _ = self.ask("STOP in the reasoning</think>an answer STOP rest", stop=["STOP"])
        self.assertEqual(message["reasoning_content"], "STOP in the reasoning")
        self.assertEqual(message["content"], "an answer ")
        message, _ = self.ask("one two", think=False, stop="two", include_stop_str_in_output=True)
        self.assertEqual(message["content"], "one two")

    def test_26_stop_inside_a_token_on_completions(self):
        text = "alpha beforehand omega"
        for stop in ("beforehand", "efore", "hand om", "ha", "a"):
            body = {"prompt": f"Say ⟦{text}⟧", "max_tokens": 40, "temperature": 0, "stop": [stop]}
            whole = self.server.post(COMPLETIONS, body).json["choices"][0]
            chunks = self.server.post(COMPLETIONS, {**body, "stream": True}).chunks
            self.assertEqual(whole["text"], text[: text.index(stop)])
            self.assertEqual("".join(c["choices"][0]["text"] for c in chunks), whole["text"])
            self.assertEqual(whole["finish_reason"], "stop")

    def test_the_separator_of_calls_is_no_text(self):
        """Stop strings that match what stands between an answer and its calls, drafts off and on, whole and streamed."""
        call = calls_markup(call_markup("get_weather", ("city", True, "Oslo")))
        with Server(program_path(), "--drafts", "3") as drafting:
            plain = self.server
            try:
                for self.server in (plain, drafting):
                    for stop in ("\n", "\n\n", "<", ["e\n", "\n<"]):
                        for text in ("", "Let me see"):
                            message, _ = self.ask(text + call, think=False, tools=[WEATHER], stop=stop)
                            self.assertEqual((message["content"] or "", message["finish_reason"]), (text, "tool_calls"), repr(stop))
                            self.assertEqual(json.loads(message["tool_calls"][0]["arguments"]), {"city": "Oslo"})
                    # The same characters as text.
                    for text, stop, content in (("One\nTwo" + call, "\n", "One"), ("One\n\nTwo", "\n\n", "One"), ("One\n", "\n", "One"), ("1 <", "<", "1 "),
                                                ("One\n\n\n<｜DSML｜tool_calls>", "\n", "One")):
                        message, reply = self.ask(text, think=False, tools=[WEATHER], stop=stop)
                        self.assertEqual((message["content"], message["finish_reason"], message["tool_calls"]), (content, "stop", []), text)
                        self.assertEqual(reply["choices"][0]["stop_reason"], stop)
                    # The answer's tokens end where its text may still be a separator.
                    count = self.ask("One\n", think=False, tools=[WEATHER])[1]["usage"]["completion_tokens"] - 1
                    message, reply = self.ask("One\n\nTwo", think=False, tools=[WEATHER], stop="\n", max_tokens=count)
                    self.assertEqual((message["content"], reply["choices"][0]["stop_reason"]), ("One", "\n"))
                    for path, body, told in (
                        ("/v1/messages", {"max_tokens": 99, "messages": [{"role": "user", "content": f"q ⟦Let me see{call}⟧"}], "stop_sequences": ["\n"],
                                          "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}]}, '"stop_reason":"tool_use"'),
                        ("/v1/responses", {"input": f"q ⟦t</think>Let me see{call}⟧", "stop": "\n", "tools": [{"type": "function", "name": "get_weather"}]},
                         '"type":"function_call"')):
                        for stream in (False, True):
                            self.assertIn(told, self.server.post(path, {**body, "temperature": 0, "stream": stream}).text.replace(" ", ""))
            finally:
                self.server = plain

    def test_24_min_tokens_hold_stops_back(self):
        message, _ = self.ask("a b a b a b a b", think=False, stop="b", min_tokens=4)
        self.assertGreater(message["content"].count("b"), 0)

    def test_1_echo_without_new_tokens(self):
        reply = self.server.post(COMPLETIONS, {"prompt": "hello big world", "max_tokens": 0, "echo": True, "logprobs": 1})
        self.assertEqual(reply.status, 200, reply.text)
        choice = reply.json["choices"][0]
        self.assertEqual(choice["text"], "hello big world")
        lists = choice["logprobs"]
        count = reply.json["usage"]["prompt_tokens"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(len(lists[key]), count, key)
        self.assertIsNone(lists["token_logprobs"][0])
        self.assertIsNone(lists["top_logprobs"][0])
        self.assertTrue(all(isinstance(x, float) for x in lists["token_logprobs"][1:]))
        self.assertEqual(reply.json["usage"]["completion_tokens"], 0)
        self.assertEqual(choice["finish_reason"], "length")

    def test_lm_eval_form(self):
        prompts = [[5, 6, 7, 8], [9, 10, 11]]
        reply = self.server.post(
            COMPLETIONS,
            {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True},
        ).json
        self.assertEqual([c["index"] for c in reply["choices"]], [0, 1])
        for prompt, choice in zip(prompts, reply["choices"]):
            lists = choice["logprobs"]
            self.assertEqual(len(lists["token_logprobs"]), len(prompt) + 1)
            self.assertIsNone(lists["token_logprobs"][0])
            self.assertTrue(all(isinstance(d, dict) and d for d in lists["top_logprobs"][1:]))

    def test_6_7_context_limits(self):
        context = self.server.get("/v1/models").json["data"][0]["max_model_len"]
        for path, key in ((COMPLETIONS, "prompt"), ("/generate", "input_ids")):
            for extra in (0, 1, 1000):
                reply = self.server.post(path, {key: [5] * (context + extra)})
                self.assertEqual(reply.status, 400)
                self.assertIn(str(context + extra), reply.json["error"]["message"])
                self.assertIn(str(context), reply.json["error"]["message"])
        reply = self.server.post(COMPLETIONS, {"prompt": [5] * (context - 1), "max_tokens": 10, "ignore_eos": True}).json
        self.assertEqual(reply["usage"]["completion_tokens"], 1)
        self.assertEqual(reply["choices"][0]["finish_reason"], "length")
        over = "word " * context
        for path, body in (("/v1/responses", {"input": over}), ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": over}]})):
            reply = self.server.post(path, body)
            self.assertEqual(reply.status, 400)
            self.assertRegex(reply.json["error"]["message"], rf"\d+ tokens.*{context}")
        long_chat = {"messages": [{"role": "user", "content": "word " * context}]}
        reply = self.server.post(CHAT, long_chat)
        self.assertEqual((reply.status, reply.json["error"]["code"]), (400, "context_length_exceeded"))
        self.assertEqual(reply.json["error"]["param"], "messages")

    # Choices, prompts, seeds, log probabilities.

    def test_11_n_counts_the_prompt_once(self):
        one = self.server.post(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "ignore_eos": True}).json
        two = self.server.post(
            CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "ignore_eos": True, "n": 2}
        ).json
        self.assertEqual(two["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"])
        self.assertEqual(two["usage"]["completion_tokens"], 10)
        self.assertEqual([c["index"] for c in two["choices"]], [0, 1])

    def test_16_same_seed_same_text(self):
        body = {"prompt": "abc", "max_tokens": 20, "temperature": 1, "ignore_eos": True}
        for seed in (42, -1, 2**63):
            texts = {self.server.post(COMPLETIONS, {**body, "seed": seed}).json["choices"][0]["text"] for _ in range(3)}
            self.assertEqual(len(texts), 1)
        free = {self.server.post(COMPLETIONS, body).json["choices"][0]["text"] for _ in range(4)}
        self.assertGreater(len(free), 1)

    def test_21_forms_of_prompt(self):
        ids = self.server.post("/tokenize", {"prompt": "Say ⟦first⟧"}).json["tokens"]
        other = self.server.post("/tokenize", {"prompt": "Say ⟦second⟧"}).json["tokens"]
        for prompt, expected in (
            ("Say ⟦first⟧", ["first"]),
            (ids, ["first"]),
            (["Say ⟦first⟧", "Say ⟦second⟧"], ["first", "second"]),
            ([ids, other, ids], ["first", "second", "first"]),
        ):
            reply = self.server.post(COMPLETIONS, {"prompt": prompt, "temperature": 0, "max_tokens": 20}).json
            self.assertEqual([c["text"] for c in reply["choices"]], expected)
            self.assertEqual([c["index"] for c in reply["choices"]], list(range(len(expected))))
        many = [f"Say ⟦number {i}⟧" for i in range(300)]
        reply = self.server.post(COMPLETIONS, {"prompt": many, "temperature": 0, "max_tokens": 20}).json
        self.assertEqual([c["text"] for c in reply["choices"]], [f"number {i}" for i in range(300)])

    def test_completions_streamed_is_whole(self):
        for fields in ({}, {"echo": True}, {"logprobs": 2}, {"echo": True, "logprobs": 0}, {"n": 3, "seed": 1}):
            body = {"prompt": ["Say ⟦some words 中文 here⟧", "ab"], "max_tokens": 12, "temperature": 0, **fields}
            whole = self.server.post(COMPLETIONS, body).json
            chunks = self.server.post(COMPLETIONS, {**body, "stream": True}).chunks
            texts, logprobs, ends = {}, {}, {}
            for chunk in chunks:
                for choice in chunk["choices"]:
                    texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
                    if choice["logprobs"]:
                        logprobs.setdefault(choice["index"], []).extend(choice["logprobs"]["token_logprobs"])
                    if choice["finish_reason"]:
                        ends[choice["index"]] = choice["finish_reason"]
            for choice in whole["choices"]:
                self.assertEqual(texts[choice["index"]], choice["text"], fields)
                self.assertEqual(ends[choice["index"]], choice["finish_reason"])
                if choice["logprobs"]:
                    self.assertEqual(logprobs[choice["index"]], choice["logprobs"]["token_logprobs"])

    def test_chat_logprobs_one_entry_a_token(self):
        message, reply = self.ask("r</think>four words of answer", logprobs=True, top_logprobs=3)
        self.assertEqual(len(message["logprobs"]), reply["usage"]["completion_tokens"])
        for entry in message["logprobs"]:
            self.assertEqual(len(entry["top_logprobs"]), 3)
            self.assertEqual(entry["top_logprobs"][0]["token"], entry["token"])
        joined = b"".join(bytes(e["bytes"]) for e in message["logprobs"]).decode()
        self.assertTrue(joined.startswith("r</think>four words of answer"), joined)

    # Streams.

    def test_64_usage_chunk(self):
        body = {"messages": [{"role": "user", "content": "Say ⟦t</think>abc def⟧"}], "stream": True}
        for options, expects in ((None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)):
            chunks = self.server.post(CHAT, {**body, "stream_options": options}).chunks
            last = chunks[-1]
            if expects:
                self.assertEqual(last["choices"], [])
                self.assertGreater(last["usage"]["completion_tokens"], 0)
                self.assertTrue(all(c["usage"] is None for c in chunks[:-1]))
            else:
                self.assertTrue(all(c["choices"] and "usage" not in c for c in chunks))
        chunks = self.server.post(CHAT, {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}).chunks
        counts = [c["usage"]["completion_tokens"] for c in chunks]
        self.assertEqual(counts, sorted(counts))
        whole = self.server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 3, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}).chunks
        self.assertEqual((whole[-1]["choices"], whole[-1]["usage"]["completion_tokens"]), ([], 3))

    def test_66_shape_of_chunks(self):
        chunks = self.server.post(CHAT, {"messages": [{"role": "user", "content": "⟦t</think>x⟧"}], "stream": True}).chunks
        self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual(len({(c["id"], c["object"], c["created"], c["model"]) for c in chunks}), 1)
        self.assertEqual(chunks[0]["object"], "chat.completion.chunk")

    # Tools.

    def test_46_tool_matrix(self):
        one = calls_markup(call_markup("get_weather", ("city", True, "Oslo")))
        for thinking in (True, False):
            start = "I look</think>" if thinking else ""
            for _ in range(2):
                message, _ = self.ask(start + one, think=thinking, tools=[WEATHER, CALCULATOR])
                self.assertEqual(message["tool_calls"], [{"name": "get_weather", "arguments": '{"city": "Oslo"}'}])
                self.assertEqual((message["content"], message["finish_reason"]), ("", "tool_calls"))
                # What the script wants to say does not matter where a call is demanded.
                for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
                    message, _ = self.ask(start + one, think=thinking, tools=[WEATHER, CALCULATOR], tool_choice=choice)
                    self.assertEqual(message["tool_calls"], [{"name": "get_weather", "arguments": '{"city": "Oslo"}'}])
                    self.assertEqual(message["finish_reason"], "tool_calls")
                message, _ = self.ask(start + "Just text.", think=thinking, tools=[WEATHER], tool_choice="none")
                self.assertEqual((message["content"], message["tool_calls"]), ("Just text.", []))

    def test_46_none_bars_the_markup(self):
        body = {"messages": [{"role": "user", "content": "⟦" + calls_markup(call_markup("f")) + "⟧"}], "tools": [WEATHER],
                "tool_choice": "none", "thinking": {"type": "disabled"}, "max_tokens": 40, "temperature": 0}
        message = self.server.post(CHAT, body).json["choices"][0]["message"]
        self.assertNotIn("tool_calls", message)
        self.assertNotIn("｜DSML｜", message["content"])

    def test_calls_that_nobody_offered_are_text(self):
        """Clients look at tool_calls where they sent tools; without any, what the model wrote is its answer."""
        markup = calls_markup(call_markup("get_weather", ("city", True, "Oslo"), ("days", False, "3")))
        for fields in ({}, {"tools": []}, {"tools": None}):
            message, _ = self.ask("I look</think>Well." + markup, **fields)
            self.assertEqual((message["reasoning_content"], message["content"]), ("I look", "Well." + markup))
            self.assertEqual((message["tool_calls"], message["finish_reason"]), ([], "stop"))
        # Inside the reasoning it stays reasoning.
        message, _ = self.ask("I call" + markup + " and on</think>Done.")
        self.assertEqual((message["reasoning_content"], message["content"]), ("I call" + markup + " and on", "Done."))
        # A cut-off one too is text as far as it came.
        message, _ = self.ask(markup, think=False, max_tokens=12)
        self.assertEqual(message["finish_reason"], "length")
        self.assertTrue(message["content"] and markup.startswith(message["content"]), message)
        # Tools that stand in a message are offered.
        head = {"role": "system", "content": "s", "tools": [WEATHER]}
        body = {"messages": [head, {"role": "user", "content": "⟦t</think>" + markup + "⟧"}], "temperature": 0}
        message = self.server.post(CHAT, body).json["choices"][0]["message"]
        self.assertEqual(message["tool_calls"][0]["function"]["name"], "get_weather")

    def test_46_demanded_calls_come_though_the_model_would_not(self):
        for choice, names in (
            ("required", {"get_weather", "calculator"}),
            ({"type": "function", "function": {"name": "calculator"}}, {"calculator"}),
        ):
            body = {"messages": [{"role": "user", "content": "Say ⟦t</think>I had rather talk.⟧"}], "tools": [WEATHER, CALCULATOR],
                    "tool_choice": choice, "max_tokens": 200, "temperature": 0, "stream": True}
            message = assemble(self.server.post(CHAT, body).chunks)[0]
            self.assertEqual(message["content"], "")
            self.assertIn(message["tool_calls"][0]["name"], names)

    def test_49_types_of_parameters(self):
        markup = calls_markup(
            call_markup("f", ("b", False, "true"), ("i", False, "7"), ("l", False, "[1, 2]"), ("o", False, '{"x": null}'), ("s", True, "7"))
        )
        message, _ = self.ask(markup, think=False, tools=[WEATHER])
        self.assertEqual(json.loads(message["tool_calls"][0]["arguments"]), {"b": True, "i": 7, "l": [1, 2], "o": {"x": None}, "s": "7"})

    def test_51_string_round_trip(self):
        for value in ("2>&1", "<", "</", 'say "hi"\n  twice', "｜", "a </b> c", "x < y </ z"):
            message, _ = self.ask(calls_markup(call_markup("f", ("v", True, value))), think=False, tools=[WEATHER])
            self.assertEqual(json.loads(message["tool_calls"][0]["arguments"]), {"v": value})

    def test_parallel_calls(self):
        markup = calls_markup(call_markup("get_weather", ("city", True, "A")), call_markup("calculator", ("expression", True, "1+1")))
        message, _ = self.ask(markup, think=False, tools=[WEATHER, CALCULATOR])
        self.assertEqual([c["name"] for c in message["tool_calls"]], ["get_weather", "calculator"])
        message, _ = self.ask(markup, think=False, tools=[WEATHER, CALCULATOR], parallel_tool_calls=False)
        self.assertEqual([c["name"] for c in message["tool_calls"]], ["get_weather"])

    def test_54_cut_inside_a_call(self):
        markup = calls_markup(call_markup("get_weather", ("city", True, "Oslo and surroundings")))
        for max_tokens in range(3, 40, 4):
            message, _ = self.ask(markup, think=False, tools=[WEATHER], max_tokens=max_tokens)
            if message["finish_reason"] == "length":
                self.assertEqual(message["tool_calls"], [])
            else:
                json.loads(message["tool_calls"][0]["arguments"])
            self.assertNotIn("DSML", message["content"])

    # The prefix cache.

    def test_79_cached_tokens(self):
        body = {"messages": [{"role": "user", "content": "long " * 1500 + "⟦t</think>ok⟧"}], "temperature": 0}
        first, second = self.server.post(CHAT, body).json, self.server.post(CHAT, body).json
        self.assertEqual(first["choices"], second["choices"])
        self.assertGreater(second["usage"]["prompt_tokens_details"]["cached_tokens"], 1000)

    def test_82_prompts_around_4096(self):
        mark = self.server.post("/tokenize", {"prompt": " ⟦across the border⟧"}).json["tokens"]
        for length in (4094, 4095, 4096, 4097, 4098):
            body = {"prompt": [5] * (length - len(mark)) + mark, "max_tokens": 20, "temperature": 0}
            for _ in range(2):  # cold, then by the prefix cache
                reply = self.server.post(COMPLETIONS, body).json
                self.assertEqual(reply["usage"]["prompt_tokens"], length)
                self.assertEqual(reply["choices"][0]["text"], "across the border")

    def test_87_conversation_of_many_turns(self):
        messages, before, share = [], 0, []
        for turn in range(50):
            messages.append({"role": "user", "content": "tell me more " * 30 + f"⟦t{turn}</think>answer {turn}⟧"})
            reply = self.server.post(CHAT, {"messages": messages, "temperature": 0}).json
            message = reply["choices"][0]["message"]
            self.assertEqual(message["content"], f"answer {turn}")
            messages.append({"role": "assistant", "content": message["content"]})
            usage = reply["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            # All but the last turn: the prompt before, up to where it began to think and to its last full block.
            self.assertGreaterEqual(cached, before - 8 - 128, f"turn {turn}")
            share.append(cached / usage["prompt_tokens"])
            before = usage["prompt_tokens"]
        self.assertGreater(share[-1], 0.96)


if __name__ == "__main__":
    unittest.main()
