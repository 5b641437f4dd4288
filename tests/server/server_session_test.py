"""One recorded agent session (10 turns, tools, thinking) replayed through chat, responses and messages on the embedded
model: the same answers everywhere, the same prompts, and a prefix cache that finds all but the last turn.

With --record it asks the chat API anew and writes tests/data/agent_session.json.
"""
import json
import pathlib
import re
import sys
import unittest

from chat_stream import assemble
from server_under_test import Server, program_path

SESSION = pathlib.Path(__file__).parent.parent / "data" / "agent_session.json"
SYSTEM = "Be brief."
TOOLS = [
    {"name": "get_weather", "description": "Get the current weather for a city",
     "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
    {"name": "calculator", "description": "Evaluate an arithmetic expression",
     "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}},
]
ASKED = ["What is the weather in Oslo?", "17*23?", "What is 12*34? Use the calculator.", "What is the capital of Norway?",
         "What is the weather in Paris?", "My name is Bob.", "What is 45+37?", "What is the weather in Tokyo?", "What is my name?",
         "What is 81*19? Use the calculator."]


def tool_result(name, arguments):
    """What the agent's tools say, made up once and for all."""
    arguments = json.loads(arguments)
    if name == "calculator":
        numbers = re.fullmatch(r"\s*(\d+)\s*\*\s*(\d+)\s*", arguments.get("expression", ""))
        return json.dumps({"result": int(numbers[1]) * int(numbers[2])} if numbers else {"error": "not an expression"})
    return json.dumps({"temperature": 7 + len(arguments.get("city", "")), "condition": "rain"})


class Chat:
    path = "/v1/chat/completions"

    def body(self, messages, stream):
        return {"messages": [{"role": "system", "content": SYSTEM}, *messages], "temperature": 0, "max_tokens": 300, "stream": stream,
                "thinking": {"type": "enabled"}, "stream_options": {"include_usage": True},
                "tools": [{"type": "function", "function": tool} for tool in TOOLS]}

    def read(self, reply, stream):
        if stream:
            message, usage = assemble(reply.chunks)[0], reply.chunks[-1]["usage"]
            calls = [{"name": c["name"], "arguments": c["arguments"]} for c in message["tool_calls"]]
        else:
            message, usage = reply.json["choices"][0]["message"], reply.json["usage"]
            calls = [{"name": c["function"]["name"], "arguments": c["function"]["arguments"]} for c in message.get("tool_calls", [])]
        return ({"reasoning": message.get("reasoning_content") or "", "content": message["content"] or "", "calls": calls},
                usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])

    def assistant(self, answer, number):
        message = {"role": "assistant", "content": answer["content"], "reasoning_content": answer["reasoning"]}
        if answer["calls"]:
            message["tool_calls"] = [{"id": f"call_{number}_{i}", "type": "function", "function": dict(call)} for i, call in enumerate(answer["calls"])]
        return [message]

    def user(self, text):
        return [{"role": "user", "content": text}]

    def results(self, results, number):
        return [{"role": "tool", "tool_call_id": f"call_{number}_{i}", "content": result} for i, result in enumerate(results)]


class Responses:
    path = "/v1/responses"

    def body(self, messages, stream):
        return {"instructions": SYSTEM, "input": messages, "temperature": 0, "max_output_tokens": 300, "stream": stream,
                "thinking": {"type": "enabled"}, "tools": [{"type": "function", **tool} for tool in TOOLS]}

    def read(self, reply, stream):
        response = json.loads(reply.events[-1][1])["response"] if stream else reply.json
        answer = {"reasoning": "", "content": "", "calls": []}
        for item in response["output"]:
            if item["type"] == "reasoning":
                answer["reasoning"] += "".join(part["text"] for part in item["content"])
            elif item["type"] == "message":
                answer["content"] += "".join(part["text"] for part in item["content"])
            else:
                answer["calls"].append({"name": item["name"], "arguments": item["arguments"]})
        usage = response["usage"]
        return answer, usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]

    def assistant(self, answer, number):
        items = []
        if answer["reasoning"]:
            items.append({"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": [{"type": "reasoning_text", "text": answer["reasoning"]}]})
        if answer["content"]:
            items.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer["content"]}]})
        items += [{"type": "function_call", "call_id": f"call_{number}_{i}", **call} for i, call in enumerate(answer["calls"])]
        return items

    def user(self, text):
        return [{"role": "user", "content": [{"type": "input_text", "text": text}]}]

    def results(self, results, number):
        return [{"type": "function_call_output", "call_id": f"call_{number}_{i}", "output": result} for i, result in enumerate(results)]


class Messages:
    path = "/v1/messages"

    def body(self, messages, stream):
        return {"system": [{"type": "text", "text": SYSTEM}], "messages": messages, "temperature": 0, "max_tokens": 300, "stream": stream,
                "thinking": {"type": "adaptive"},
                "tools": [{"name": t["name"], "description": t["description"], "input_schema": t["parameters"]} for t in TOOLS]}

    def read(self, reply, stream):
        if not stream:
            blocks, usage = reply.json["content"], reply.json["usage"]
        else:
            blocks, usage = [], {}
            for name, data in ((name, json.loads(data)) for name, data in reply.events):
                if name == "message_start":
                    usage.update(data["message"]["usage"])
                elif name == "content_block_start":
                    blocks.append({**data["content_block"], "json": ""})
                elif name == "content_block_delta":
                    delta = data["delta"]
                    if delta["type"] == "input_json_delta":
                        blocks[-1]["json"] += delta["partial_json"]
                    elif delta["type"] in ("text_delta", "thinking_delta"):
                        blocks[-1][delta["type"].removesuffix("_delta")] += delta[delta["type"].removesuffix("_delta")]
                elif name == "message_delta":
                    usage.update(data["usage"])
            for block in blocks:
                if block["type"] == "tool_use":
                    block["input"] = json.loads(block["json"] or "{}")
        answer = {"reasoning": "".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
                  "content": "".join(b["text"] for b in blocks if b["type"] == "text"),
                  "calls": [{"name": b["name"], "arguments": json.dumps(b["input"], ensure_ascii=False)} for b in blocks if b["type"] == "tool_use"]}
        return answer, usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]

    def assistant(self, answer, number):
        blocks = []
        if answer["reasoning"]:
            blocks.append({"type": "thinking", "thinking": answer["reasoning"], "signature": ""})
        if answer["content"]:
            blocks.append({"type": "text", "text": answer["content"]})
        blocks += [{"type": "tool_use", "id": f"call_{number}_{i}", "name": c["name"], "input": json.loads(c["arguments"])} for i, c in enumerate(answer["calls"])]
        return [{"role": "assistant", "content": blocks}]

    def user(self, text):
        return [{"role": "user", "content": text}]

    def results(self, results, number):
        return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"call_{number}_{i}", "content": r} for i, r in enumerate(results)]}]


class SessionTest(unittest.TestCase):
    def replay(self, api):
        """[(prompt tokens, cached tokens)] of each request of the session; every second one streams."""
        counts = []
        with Server(program_path(), scripted=False) as server:
            messages = []
            for number, step in enumerate(json.loads(SESSION.read_text())["steps"]):
                if "user" in step:
                    messages += api.user(step["user"])
                stream = number % 2 == 1
                reply = server.post(api.path, api.body(messages, stream))
                self.assertEqual(reply.status, 200, reply.text)
                answer, prompt_tokens, cached_tokens = api.read(reply, stream)
                self.assertEqual(answer, step["answer"], f"step {number} through {api.path}")
                counts.append((prompt_tokens, cached_tokens))
                messages += api.assistant(answer, number)
                if step["answer"]["calls"]:
                    messages += api.results(step["results"], number)
        return counts

    def test_three_apis_one_session(self):
        steps = json.loads(SESSION.read_text())["steps"]
        self.assertEqual(sum("user" in step for step in steps), 10)
        self.assertGreaterEqual(sum(bool(step["answer"]["calls"]) for step in steps), 4)
        self.assertTrue(all(step["answer"]["reasoning"] for step in steps if "user" in step))
        counts = {}
        for api in (Chat(), Responses(), Messages()):
            counts[api.path] = self.replay(api)
        first = counts[Chat.path]
        for key, those in counts.items():
            self.assertEqual(those, first, f"{key}: the same prompts, and as much of them found")
        # What is found ends with a block, and leaves out at most the prompt's last turns: with tools the reasoning of
        # earlier ones stays, so that each prompt continues the one before.
        for (before, _), (_, cached) in zip(first, first[1:]):
            self.assertEqual(cached % 128, 0)
            self.assertGreaterEqual(cached, before // 128 * 128 - 128)
        self.assertEqual(first[0][1], 0)
        cached = [c for _, c in first]
        self.assertEqual(cached, sorted(cached), "what is found grows")
        self.assertGreater(cached[-1], 0.6 * first[-1][0])


def record():
    api, steps, messages = Chat(), [], []
    with Server(program_path(), scripted=False) as server:
        for question in ASKED:
            step = {"user": question}
            messages += api.user(question)
            for _ in range(3):
                answer, prompt, cached = api.read(server.post(api.path, api.body(messages, False)), False)
                print(prompt, cached, answer)
                number = len(steps)
                messages += api.assistant(answer, number)
                steps.append({**step, "answer": answer})
                if not answer["calls"]:
                    break
                steps[-1]["results"] = [tool_result(c["name"], c["arguments"]) for c in answer["calls"]]
                messages += api.results(steps[-1]["results"], number)
                step = {}
    SESSION.write_text(json.dumps({"model": "mini-v4", "system": SYSTEM, "tools": TOOLS, "steps": steps}, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    record() if "--record" in sys.argv else unittest.main()
