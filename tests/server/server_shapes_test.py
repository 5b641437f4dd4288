"""Requests of any shape: valid bodies with values of other kinds at any place, bytes changed, methods and paths mixed up.
None may get a 5xx, and a plain request is right after them. FATHOM_SHAPES sets how many (default 3000), FATHOM_SEED which.
"""
import copy
import http.client
import json
import os
import random
import unittest

from server_under_test import Server, program_path

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "strict": True, "parameters": {
    "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}}
BODIES = {
    "/v1/chat/completions": {
        "model": None, "messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "Say ⟦t</think>hello⟧"}]},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "x"}],
        "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "n": 2, "seed": 3, "stop": ["zz"], "stop_token_ids": [7],
        "logprobs": True, "top_logprobs": 2, "logit_bias": {"5": 1}, "stream": False, "stream_options": {"include_usage": True},
        "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        "thinking": {"type": "enabled"}, "reasoning_effort": "low", "chat_template_kwargs": {"thinking": True}, "priority": 1, "min_tokens": 1},
    "/v1/completions": {"prompt": ["ab", "cd"], "max_tokens": 4, "echo": True, "logprobs": 2, "n": 2, "best_of": 2, "seed": 1, "stop": "q", "suffix": None,
                        "ignore_eos": True, "frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.1, "guided_regex": "[a-z]+", "stream": True},
    "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
                                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "o"}],
                      "instructions": "i", "max_output_tokens": 4, "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}], "tool_choice": "auto",
                      "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}, "reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "stream": False},
    "/v1/messages": {"max_tokens": 4, "system": [{"type": "text", "text": "s"}], "messages": [
        {"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "x"}, {"type": "tool_use", "id": "u", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u", "content": [{"type": "text", "text": "r"}]}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "thinking": {"type": "enabled", "budget_tokens": 100},
        "stop_sequences": ["z"], "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "stream": True},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "q"}]},
    "/generate": {"text": ["a", "b"], "sampling_params": {"temperature": 0, "max_new_tokens": 3, "stop": ["x"], "n": 1}, "return_logprob": True, "stream": False},
    "/tokenize": {"prompt": "x", "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}
FLAT = {"type": "function", "name": "g", "description": "d", "parameters": {"type": "object"}, "defer_loading": True}
# What agents send besides: their tools' other kinds, and items of calls that are no functions'.
AGENTS = [
    ("/v1/responses", {"input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]}, {"role": "user", "content": "Say ⟦t</think>x⟧"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "e"}, {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x", "namespace": "n"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "r"}, {"type": "local_shell_call", "call_id": "l", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "l", "output": "o"}, {"type": "computer_call_output", "call_id": "k", "output": {"type": "computer_screenshot", "image_url": "u"}},
        {"type": "apply_patch_call_output", "call_id": "k", "status": "failed"}, {"type": "mcp_call", "id": "m", "name": "f", "arguments": "{}", "output": "o", "error": None},
        {"type": "code_interpreter_call", "id": "i", "code": "1", "outputs": [{"type": "logs", "logs": "1"}]}, {"type": "web_search_call", "id": "w", "action": {"type": "search"}},
        {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "q"}}, {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": [FLAT]},
        {"type": "additional_tools", "role": "developer", "tools": [FLAT]}],
        "max_output_tokens": 4, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "p"}, {"type": "function", "name": "g", "namespace": "n"}]},
        "tools": [{"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"}},
                  {"type": "custom", "name": "q", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}}, {"type": "namespace", "name": "n", "description": "d", "tools": [FLAT]},
                  {"type": "tool_search", "execution": "client", "description": "d", "parameters": {"type": "object"}}, {"type": "web_search"}], "stream": True}),
    ("/v1/messages", {"max_tokens": 4, "system": "x-anthropic-billing-header: a\ns", "messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "system", "content": [{"type": "text", "text": "n"}, {"type": "tool_addition", "tool": {
            "type": "tool_definition", "definition": {"name": "g", "input_schema": {"type": "object"}}}}, {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "g"}}],
            "clear_at": "next_user_message", "output_config": {"effort": "low"}},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "u", "name": "f", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u", "content": [
            {"type": "tool_reference", "tool_name": "g"}]}]}, {"role": "system", "content": "n"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "defer_loading": True}], "thinking": {"type": "adaptive", "display": "omitted"}}),
    ("/v1/chat/completions", {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "developer", "content": "d"}, {"role": "system", "content": "s"}],
                              "max_tokens": 4, "stop": ["\n", "<"], "tools": [TOOL]}),
]
VALUES = [None, True, False, 0, -1, 1, 3, 1.5, -0.0, 1e300, 2**31, 2**63, -(2**63), 2**70, "", "x", "auto", "none", "required", "｜DSML｜", "</think>", "\u0000", "😀",
          [], {}, [None], [[]], [1, "a"], {"type": "text"}, {"type": "object"}, {"": ""}, {"type": "function"}, "a" * 5000, [0] * 300, {"$ref": "#"}]


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], path + (key,))
    elif isinstance(value, list):
        for i in range(len(value)):
            yield from places(value[i], path + (i,))


def change(rng, body):
    body = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        path = rng.choice(list(places(body)))
        if not path:
            body = rng.choice(VALUES) if rng.random() < 0.1 else body
            continue
        target = body
        for step in path[:-1]:
            target = target[step]
        what = rng.random()
        if what < 0.65:
            target[path[-1]] = copy.deepcopy(rng.choice(VALUES))
        elif what < 0.85:
            del target[path[-1]]
        elif isinstance(target, list):
            target.append(copy.deepcopy(target[path[-1]]))
        else:
            target[rng.choice(("type", "content", "name", "id", "extra", "text"))] = copy.deepcopy(rng.choice(VALUES))
        if not isinstance(body, (dict, list)):
            break
    return body


def change_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 2, 8))):
        at = rng.randrange(len(data))
        data[at : at + rng.choice((0, 1, 1, 3))] = bytes(rng.choice((0, 9, 34, 44, 58, 91, 92, 93, 123, 125, 128, 255, rng.randrange(256))) for _ in range(rng.choice((0, 1, 2))))
        if not data:
            break
    return bytes(data)


class ShapesTest(unittest.TestCase):
    def test_no_shape_is_a_5xx(self):
        rng = random.Random(int(os.environ.get("FATHOM_SEED", "1")))
        statuses = {}
        with Server(program_path(), "--request-timeout", "30") as server:
            connection = server.connect()
            for number in range(int(os.environ.get("FATHOM_SHAPES", "3000"))):
                path, body = rng.choice([*BODIES.items(), *AGENTS])
                body = change(rng, body)
                data = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
                if rng.random() < 0.25:
                    data = change_bytes(rng, data)
                method, where = ("POST", path) if rng.random() < 0.95 else (rng.choice(("GET", "PUT", "DELETE", "OPTIONS", "HEAD")), path + rng.choice(("", "/", "?a=b", "/x")))
                headers = {"Content-Type": rng.choice(("application/json", "text/plain", "multipart/form-data", ""))}
                try:
                    connection.request(method, where, body=data, headers=headers)
                    reply = connection.getresponse()
                    text = reply.read()
                except (http.client.HTTPException, ConnectionError) as error:
                    self.fail(f"request {number}: {error!r} for {method} {where} {data[:2000]!r}")
                statuses[reply.status] = statuses.get(reply.status, 0) + 1
                self.assertLess(reply.status, 500, f"request {number}: {method} {where} {data[:2000]!r}: {text[:300]!r}")
                if reply.status >= 400 and method != "HEAD":
                    self.assertIn("error", json.loads(text), f"request {number}")
                if reply.will_close:
                    connection.close()
                if number % 500 == 499:
                    plain = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say ⟦t</think>Right.⟧"}], "temperature": 0})
                    self.assertEqual(plain.json["choices"][0]["message"]["content"], "Right.")
            connection.close()
            server.wait_idle()
            self.assertEqual(server.metric("fathom_context_blocks_used"), 0)
        print("statuses:", dict(sorted(statuses.items())))
        self.assertGreater(statuses.get(200, 0), 200)
        self.assertGreater(statuses.get(400, 0), 500)


if __name__ == "__main__":
    unittest.main()
