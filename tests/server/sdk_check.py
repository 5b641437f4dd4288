"""The official SDKs, unmodified, against `fathom serve` with the embedded model: chat, streaming, a tools round trip,
reasoning, structured output, log probabilities, cancelling, errors as the SDKs' own exception classes.

Needs PyPI openai and anthropic; exits 77 (skipped) where they are missing.
"""
import json
import sys
import unittest

from server_under_test import Server, program_path, wait_for

try:
    import anthropic
    import openai
except ImportError as missing:
    print(f"skipped: PyPI {missing.name} is absent")
    sys.exit(77)

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Get the current weather for a city", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "calculator", "description": "Evaluate an arithmetic expression",
                                      "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}},
]


class Sdk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(program_path(), "--api-key", "sk-test", "--key-max-concurrent", "8", scripted=False).wait_ready()
        url = f"http://127.0.0.1:{cls.server.port}"
        cls.openai = openai.OpenAI(base_url=url + "/v1", api_key="sk-test", max_retries=0)
        cls.anthropic = anthropic.Anthropic(base_url=url, api_key="sk-test", max_retries=0)
        cls.url = url
        cls.has_grammar = cls.server.has_grammar({"x-api-key": "sk-test"})

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def chat(self, text, **fields):
        return self.openai.chat.completions.create(
            model="mini-v4", messages=[{"role": "user", "content": text}], temperature=0, **fields)

    # openai

    def test_models(self):
        self.assertEqual([m.id for m in self.openai.models.list()], ["mini-v4"])
        self.assertEqual(self.openai.models.retrieve("mini-v4").owned_by, "fathom")

    def test_chat_and_reasoning(self):
        reply = self.chat("17*23?")
        message = reply.choices[0].message
        self.assertEqual(message.content, "391")
        self.assertIn("391", message.reasoning_content)
        self.assertGreater(reply.usage.completion_tokens_details.reasoning_tokens, 0)
        reply = self.chat("17*23?", extra_body={"thinking": {"type": "disabled"}})
        self.assertEqual(reply.choices[0].message.content, "391")
        self.assertFalse(getattr(reply.choices[0].message, "reasoning_content", None))

    def test_streaming(self):
        content, reasoning, usage = "", "", None
        for chunk in self.chat("17*23?", stream=True, stream_options={"include_usage": True}):
            if chunk.choices:
                content += chunk.choices[0].delta.content or ""
                reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
            usage = chunk.usage or usage
        self.assertEqual((content, "391" in reasoning), ("391", True))
        self.assertGreater(usage.completion_tokens, 5)

    def test_tools_round_trip(self):
        for stream in (False, True):
            messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
            kwargs = dict(model="mini-v4", messages=messages, tools=TOOLS, temperature=0)
            if stream:
                with self.openai.chat.completions.stream(**kwargs) as events:
                    message = events.get_final_completion().choices[0].message
            else:
                message = self.openai.chat.completions.create(**kwargs).choices[0].message
            call = message.tool_calls[0]
            self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"city": "Oslo"}))
            messages.append({"role": "assistant", "content": message.content, "tool_calls": [
                {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}}]})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 12, "condition": "rain"}'})
            final = self.openai.chat.completions.create(model="mini-v4", messages=messages, tools=TOOLS, temperature=0)
            self.assertIn("12", final.choices[0].message.content)

    def test_required_and_named(self):
        for choice in ("required", {"type": "function", "function": {"name": "calculator"}}):
            reply = self.chat("What is 12*34? Use the calculator.", tools=TOOLS, tool_choice=choice)
            self.assertEqual(reply.choices[0].finish_reason, "tool_calls")
            json.loads(reply.choices[0].message.tool_calls[0].function.arguments)

    def test_structured_output(self):
        schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"], "additionalProperties": False}
        ask = lambda **f: self.chat("What is 17*23? Answer in JSON.", max_tokens=200, response_format={
            "type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}, **f)
        if not self.has_grammar:
            with self.assertRaises(openai.BadRequestError):
                ask()
            return
        for thinking in ("enabled", "disabled"):
            value = json.loads(ask(extra_body={"thinking": {"type": thinking}}).choices[0].message.content)
            self.assertEqual(list(value), ["answer"])
            self.assertIsInstance(value["answer"], int)

    def test_logprobs(self):
        reply = self.chat("17*23?", logprobs=True, top_logprobs=5, extra_body={"thinking": {"type": "disabled"}})
        entries = reply.choices[0].logprobs.content
        self.assertEqual(len(entries), reply.usage.completion_tokens)
        self.assertEqual(entries[0].token, entries[0].top_logprobs[0].token)
        legacy = self.openai.completions.create(model="mini-v4", prompt="17*23?", max_tokens=3, logprobs=2, echo=True, temperature=0)
        self.assertIsNone(legacy.choices[0].logprobs.token_logprobs[0])

    def test_cancel(self):
        stream = self.openai.completions.create(model="mini-v4", prompt="Once", max_tokens=5000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        wait_for(lambda: "\nfathom_requests_running 0" in self.server.get("/metrics", headers={"x-api-key": "sk-test"}).text,
                 "the request is gone")

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("x", top_p=7)
        self.assertEqual(caught.exception.param, "top_p")
        with self.assertRaises(openai.NotFoundError):
            self.openai.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "x"}])
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.url + "/v1", api_key="no", max_retries=0).models.list()
        with self.assertRaises(openai.APITimeoutError):
            self.openai.with_options(timeout=0.3).completions.create(
                model="mini-v4", prompt="Once", max_tokens=5000, extra_body={"ignore_eos": True})

    def test_responses(self):
        reply = self.openai.responses.create(model="mini-v4", input="17*23?", temperature=0)
        self.assertEqual(reply.output_text, "391")
        self.assertEqual(reply.output[0].type, "reasoning")
        with self.openai.responses.stream(model="mini-v4", input="17*23?", temperature=0) as events:
            kinds = [event.type for event in events]
            self.assertEqual(events.get_final_response().output_text, "391")
        self.assertIn("response.output_text.delta", kinds)

    def test_custom_tool(self):
        tool = {"type": "custom", "name": "calculator", "description": "Evaluate an arithmetic expression"}
        kwargs = dict(model="mini-v4", input="17*23?", tools=[tool], tool_choice={"type": "custom", "name": "calculator"}, temperature=0)
        with self.openai.responses.stream(**kwargs) as events:
            deltas = "".join(event.delta for event in events if event.type == "response.custom_tool_call_input.delta")
            streamed = events.get_final_response().output[-1]
        call = self.openai.responses.create(**kwargs).output[-1]
        for item in (streamed, call):
            self.assertEqual((item.type, item.name, item.input), ("custom_tool_call", "calculator", deltas))
        again = [{"role": "user", "content": "17*23?"}, call.to_dict(), {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "391"}]
        self.assertEqual(self.openai.responses.create(model="mini-v4", input=again, tools=[tool], temperature=0).status, "completed")

    # anthropic

    def message(self, text, **fields):
        # Newer releases of the SDK have no argument for sampling.
        sampling = {"temperature": 0, **fields.pop("sampling", {})}
        return self.anthropic.messages.create(
            model="mini-v4", max_tokens=200, messages=[{"role": "user", "content": text}], extra_body=sampling, **fields)

    def test_anthropic_message(self):
        reply = self.message("17*23?")
        self.assertEqual((reply.content[0].text, reply.stop_reason), ("391", "end_turn"))
        reply = self.message("17*23?", thinking={"type": "enabled", "budget_tokens": 1024})
        self.assertEqual([b.type for b in reply.content], ["thinking", "text"])
        counted = self.anthropic.messages.count_tokens(model="mini-v4", messages=[{"role": "user", "content": "17*23?"}])
        self.assertEqual(counted.input_tokens, self.message("17*23?").usage.input_tokens)

    def test_anthropic_stream_and_tools(self):
        tools = [{"name": t["function"]["name"], "description": t["function"]["description"], "input_schema": t["function"]["parameters"]} for t in TOOLS]
        messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
        with self.anthropic.messages.stream(model="mini-v4", max_tokens=300, messages=messages, tools=tools, extra_body={"temperature": 0}) as stream:
            for _ in stream:
                pass
            reply = stream.get_final_message()
        call = next(b for b in reply.content if b.type == "tool_use")
        self.assertEqual((call.name, call.input, reply.stop_reason), ("get_weather", {"city": "Oslo"}, "tool_use"))
        messages += [{"role": "assistant", "content": reply.content},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 12, "condition": "rain"}'}]}]
        final = self.anthropic.messages.create(model="mini-v4", max_tokens=300, messages=messages, tools=tools, extra_body={"temperature": 0})
        self.assertIn("12", final.content[0].text)

    def test_anthropic_system_message_and_first_usage(self):
        messages = [{"role": "user", "content": "early " * 300 + "17*23?"}, {"role": "system", "content": "Be brief."}]
        counted = self.anthropic.messages.count_tokens(model="mini-v4", messages=messages).input_tokens
        for is_warm in (False, True):
            with self.anthropic.messages.stream(model="mini-v4", max_tokens=20, messages=messages) as stream:
                first = next(event for event in stream if event.type == "message_start").message.usage
                last = stream.get_final_message().usage
            for usage in (first, last):
                self.assertEqual(usage.input_tokens + usage.cache_read_input_tokens, counted)
                self.assertEqual(usage.cache_read_input_tokens > 255, is_warm)

    def test_anthropic_errors(self):
        with self.assertRaises(anthropic.BadRequestError):
            self.message("x", sampling={"top_p": 7})
        with self.assertRaises(anthropic.NotFoundError):
            self.anthropic.messages.create(model="claude", max_tokens=5, messages=[{"role": "user", "content": "x"}])
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=self.url, api_key="no", max_retries=0).messages.count_tokens(model="mini-v4", messages=[{"role": "user", "content": "x"}])


if __name__ == "__main__":
    unittest.main()
