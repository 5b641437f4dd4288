"""Every field that a route reads, with values of the wrong kind and out of range: 400 that names it, and after each a plain
request that is right. And with a right value: 200. Rows: (field, kind, a right value[, fields that must stand beside it]).
"""
import copy
import json
import unittest

from server_under_test import Server, program_path

# Written into the body as they stand: no JSON library makes them.
RAW = {"huge": "1e999", "-huge": "-1e999", "nan": "NaN", "inf": "Infinity", "long": "9" * 60}


def integer(low, high):
    return ["5", "", True, False, 1.5, [], [1], {}, low - 1, high + 1, *RAW]


def number(low, high, open_low=False):
    return ["0.5", "", True, False, [], {}, low if open_low else low - 0.01, high + 0.01, *RAW]


BOOL = ["true", "", 0, 1, [], {}, "huge"]
TEXT = [5, 0, True, False, [], {}, "huge"]
OBJECT = ["x", "", 5, True, [], [{}], "nan"]
LIST = ["x", 5, True, {}, "nan"]
NUMBERS = {"huge", "-huge", "nan", "inf", "long"}


def choice(*wrong):
    return [*TEXT, "no-such-value", *wrong]


INT32 = 2**31 - 1
SAMPLING = [
    ("temperature", number(0, 2), 0.5), ("top_p", number(0, 1, True), 0.5), ("min_p", number(0, 1), 0.1), ("top_k", integer(-1, INT32), 5),
    ("repetition_penalty", number(0, 100, True), 1.1), ("frequency_penalty", number(-2, 2), -1), ("presence_penalty", number(-2, 2), 1),
    ("seed", ["5", True, 1.5, [], {}, -(2**63) - 1, 2**64, *RAW], 2**64 - 1), ("logit_bias", OBJECT, {"5": 1, "99999": 2}),
    ("logit_bias.5", number(-100, 100), 3), ("logit_bias.-1", [1], None), ("logit_bias.x", [1], None), ("logit_bias.99999999999999999999", [1], None),
]
STOPS = [
    ("stop", [5, True, {}, "nan"], ["zz"]), ("stop[0]", [5, True, [], {}, "", "x" * 1025, "huge"], "zz"), ("stop", [["a"] * 65], None),
    ("stop_token_ids", LIST, [7, 151645]), ("stop_token_ids[0]", ["7", True, [], {}, -1, 1.5, 2**31, *RAW], 7),
    ("include_stop_str_in_output", BOOL, True), ("ignore_eos", BOOL, False), ("skip_special_tokens", BOOL, True), ("min_tokens", integer(0, INT32), 1),
]
SHARES = [("n", integer(1, 128), 2), ("priority", integer(-1000, 1000), 3), ("cache_salt", TEXT, "s")]
STREAM = [("stream", BOOL, True), ("stream_options", OBJECT, {"include_usage": True}),
          ("stream_options.include_usage", BOOL, True, {"stream": True}), ("stream_options.continuous_usage_stats", BOOL, True, {"stream": True})]
UNUSED = [("user", TEXT, "u"), ("store", BOOL, False), ("metadata", OBJECT, {"a": "b"}), ("service_tier", TEXT, "auto"),
          ("safety_identifier", TEXT, "s"), ("prompt_cache_key", TEXT, "k")]
MODEL = [("model", TEXT, "mini-v4")]
THINKING = [
    ("reasoning_effort", choice(), "low"), ("chat_template_kwargs", OBJECT, {"foo": 1}), ("chat_template_kwargs.thinking", BOOL, True),
    ("chat_template_kwargs.enable_thinking", BOOL, True), ("chat_template_kwargs.drop_thinking", BOOL, True), ("chat_template_kwargs.reasoning_effort", choice(), "low"),
    ("thinking", OBJECT, {"type": "enabled"}), ("thinking.type", choice(), "enabled"), ("include_reasoning", BOOL, True),
]
CONSTRAINTS = [
    ("response_format", OBJECT, {"type": "text"}), ("response_format.type", choice(), "text"),
    ("response_format.json_schema", OBJECT, None, {"response_format": {"type": "json_schema"}}),
    ("response_format.json_schema.schema", [5, "x", [], "nan"], None, {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
    ("response_format.json_schema.name", TEXT, None, {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
    ("response_format.json_schema.strict", BOOL, None, {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
    ("guided_regex", TEXT, None), ("guided_choice", LIST, None), ("guided_choice[0]", [5, True, [], {}, ""], None), ("guided_choice", [[]], None),
    ("guided_json", [5, "x", [], "nan"], None), ("guided_grammar", ["root ::= \"a\""], None),
    ("structured_outputs", OBJECT, {}), ("structured_outputs.regex", TEXT, None), ("structured_outputs.choice", LIST, None),
    ("structured_outputs.json_object", BOOL, False), ("structured_outputs.grammar", ["root ::= \"a\""], None), ("structured_outputs.structural_tag", [{}], None),
]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "strict": False, "parameters": {"type": "object"}}}
TOOLS = [
    ("tools", LIST, [TOOL]), ("tools[0]", ["f", 5, True, []], TOOL), ("tools[0].type", choice(), "function", {"tools": [TOOL]}),
    ("tools[0].function", OBJECT, TOOL["function"], {"tools": [TOOL]}), ("tools[0].function.name", [*TEXT, "", 'a"b'], "g", {"tools": [TOOL]}),
    ("tools[0].function.description", TEXT, "e", {"tools": [TOOL]}), ("tools[0].function.parameters", OBJECT, {}, {"tools": [TOOL]}),
    ("tools[0].function.strict", BOOL, False, {"tools": [TOOL]}), ("tools[1].function.name", ["f"], None, {"tools": [TOOL, copy.deepcopy(TOOL)]}),
    ("tool_choice", [5, True, [], "no-such-value", {}, {"type": "function"}, {"type": "function", "function": {"name": "g"}}], "auto", {"tools": [TOOL]}),
    ("tool_choice.type", [5, True, [], {}], None, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("parallel_tool_calls", BOOL, False),
]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c", "content": "r"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
PART = {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}]}
MESSAGES = [
    ("messages", [*LIST, []], TURNS), ("messages[0]", ["q", 5, True, []], TURNS[0]), ("messages[0].role", choice(), "user"),
    ("messages[0].content", [5, True, {}], "q"), ("messages[0].content[0]", [5, True, []], None, PART), ("messages[0].content[0].type", [*TEXT, "image_url", "input_audio", "file"], None, PART),
    ("messages[0].content[0].text", TEXT, "q", PART), ("messages[1].tool_calls", LIST, [CALL], {"messages": TURNS}),
    ("messages[1].tool_calls[0].id", TEXT, "c", {"messages": TURNS}), ("messages[1].tool_calls[0].function", OBJECT, None, {"messages": TURNS}),
    ("messages[1].tool_calls[0].function.name", [*TEXT, ""], "f", {"messages": TURNS}),
    ("messages[1].tool_calls[0].function.arguments", [5, True, [], "[1]", "5"], {"a": 1}, {"messages": TURNS}),
    ("messages[1].content[0].refusal", TEXT, "no", {"messages": [TURNS[0], {"role": "assistant", "content": [{"type": "refusal"}]}, TURNS[0]]}),
    ("messages[1].reasoning_content", TEXT, "r", {"messages": TURNS}), ("messages[2].tool_call_id", TEXT, "c", {"messages": TURNS}),
]
LIMITS = [("max_tokens", integer(1, INT32), 9), ("max_completion_tokens", integer(1, INT32), 9),
          ("max_tokens", ["5", True, -1, "huge"], 9, {"max_completion_tokens": 9}), ("min_tokens", [10], None, {"max_tokens": 9})]

BLOCK = {"messages": [{"role": "user", "content": [{"type": "text", "text": "q", "cache_control": {"type": "ephemeral"}}]}]}
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]}
USED = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, USE]},
                     {"role": "user", "content": [RESULT]}]}
THEIR_TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}
NOTED = {"messages": [{"role": "user", "content": "q"}, {"role": "system", "content": [{"type": "text", "text": "s"}, {"type": "tool_addition", "tool": {
    "type": "tool_definition", "definition": copy.deepcopy(THEIR_TOOL)}}]}]}
COUNTED = [
    *MODEL, ("system", [5, True, {}], "s"), ("system[0]", ["s", 5, {"type": "image"}, {"type": "text", "text": 5}], {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}),
    ("messages", [*LIST, []], USED["messages"]), ("messages[0]", ["q", 5, True, []], {"role": "user", "content": "q"}), ("messages[0].role", [*TEXT, "developer", "tool"], "system"),
    ("messages[1].clear_at", choice(), "never", NOTED), ("messages[1].output_config", OBJECT, {"effort": "low"}, NOTED), ("messages[1].content", [5, True, {}, None], "s", NOTED),
    ("messages[1].content[0]", [5, "s", {}, {"type": "image"}, {"type": "text", "text": 5}], {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}, NOTED),
    ("messages[1].content[1].tool", [5, "f", None], {"type": "tool_reference", "name": "f"}, NOTED), ("messages[1].content[1].tool.definition", ["f", 5, None], THEIR_TOOL, NOTED),
    ("messages[1].content[1].tool.definition.name", [*TEXT, None], "h", NOTED), ("messages[1].content[1].tool.definition.type", choice("web_search_20250305"), "custom", NOTED),
    ("messages[0].content", [5, True, {}], "q"), ("messages[0].content[0].type", [*TEXT, "image", "document", "hologram"], "text", BLOCK), ("messages[0].content[0].text", TEXT, "q", BLOCK),
    ("messages[1].content[0].thinking", TEXT, "t", USED), ("messages[1].content[1].id", TEXT, "c", USED), ("messages[1].content[1].name", [*TEXT, ""], "f", USED),
    ("messages[1].content[1].input", OBJECT, {"a": 1}, USED), ("messages[2].content[0].tool_use_id", TEXT, "c", USED), ("messages[2].content[0].is_error", BOOL, True, USED),
    ("messages[2].content[0].content", [5, True, {}], "r", USED), ("messages[2].content[0].content[0]", ["r", 5, {}, {"type": "text", "text": 5}], {"type": "image", "source": {}}, USED),
    ("tools", LIST, [THEIR_TOOL]), ("tools[0]", ["f", 5, True, []], THEIR_TOOL), ("tools[0].type", choice("web_search_20250305"), "custom", {"tools": [THEIR_TOOL]}),
    ("tools[0].name", [*TEXT, "", 'a"b'], "g", {"tools": [THEIR_TOOL]}), ("tools[0].description", TEXT, "e", {"tools": [THEIR_TOOL]}),
    ("tools[0].input_schema", OBJECT, {}, {"tools": [THEIR_TOOL]}), ("tools[0].strict", BOOL, False, {"tools": [THEIR_TOOL]}), ("tools[0].defer_loading", BOOL, True, {"tools": [THEIR_TOOL]}),
    ("tools[1].name", ["f"], None, {"tools": [THEIR_TOOL, copy.deepcopy(THEIR_TOOL)]}),
    ("tool_choice", OBJECT, {"type": "auto"}, {"tools": [THEIR_TOOL]}), ("tool_choice.type", choice(), "none", {"tools": [THEIR_TOOL]}),
    ("tool_choice", [{"type": "tool", "name": "g"}], {"type": "tool", "name": "f"}, {"tools": [THEIR_TOOL]}), ("tool_choice.name", TEXT, None, {"tools": [THEIR_TOOL], "tool_choice": {"type": "tool"}}),
    ("tool_choice.disable_parallel_tool_use", BOOL, True, {"tools": [THEIR_TOOL], "tool_choice": {"type": "auto"}}),
    ("thinking", OBJECT, {"type": "disabled"}), ("thinking.type", choice(), "adaptive"), ("thinking.display", choice(), "omitted", {"thinking": {"type": "adaptive"}}), ("thinking.budget_tokens", integer(0, 2**30), 2000, {"thinking": {"type": "enabled"}}),
    ("output_config", OBJECT, {"effort": "high"}), ("output_config.effort", choice(), "low"), ("output_config.format", OBJECT, {"type": "text"}), ("output_format", OBJECT, None),
]

ITEMS = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "q"}]}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "r"}]}]}
OTHERS = {"input": [{"role": "user", "content": "q"}, {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
                    {"type": "custom_tool_call_output", "call_id": "c", "output": "r"}, {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}},
                    {"type": "shell_call_output", "call_id": "c", "output": []}, {"type": "mcp_call", "id": "c", "name": "f", "arguments": "{}", "output": "r"}]}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: A"}
CUSTOM = {"tools": [{"type": "custom", "name": "f", "description": "d", "format": GRAMMAR}]}
FLAT_TOOL = {"type": "function", "name": "f", "description": "d", "strict": False, "parameters": {"type": "object"}}
SPACE = {"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [FLAT_TOOL]}]}
SEARCH = {"tools": [{"type": "tool_search", "execution": "client", "description": "d", "parameters": {}}],
          "input": [{"role": "user", "content": "q"}, {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}},
                    {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [FLAT_TOOL]}, {"type": "additional_tools", "tools": [{**FLAT_TOOL, "name": "g"}]}]}
FLAT = {"tools": [{"type": "web_search"}, FLAT_TOOL]}  # the place in errors is the one among all of them

ROUTES = {
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "Say ⟦t</think>x⟧"}], "max_tokens": 9}, [
        *MODEL, *SAMPLING, *STOPS, *SHARES, *STREAM, *UNUSED, *THINKING, *CONSTRAINTS, *TOOLS, *MESSAGES, *LIMITS,
        ("logprobs", BOOL, True), ("top_logprobs", integer(0, 20), 2, {"logprobs": True}), ("top_logprobs", [3], None), ("continue_final_message", BOOL, False),
        ("functions", [[]], None), ("function_call", ["auto"], None),
    ]),
    "/v1/completions": ({"prompt": "Say ⟦x⟧", "max_tokens": 4}, [
        *MODEL, *SAMPLING, *STOPS, *SHARES, *STREAM, *CONSTRAINTS, ("user", TEXT, "u"), ("max_tokens", integer(0, INT32), 3), ("best_of", integer(1, 2**20), 1), ("best_of", [2], None),
        ("echo", BOOL, True), ("logprobs", integer(0, 20), 2), ("suffix", [5, True, [], {}, "x"], ""), ("prompt", [5, True, {}, [], None, "nan"], ["a", "b"]),
        ("prompt[0]", [True, {}, None], [5, 6]), ("prompt[0][0]", ["5", True, [], {}, -1, 4096, 1.5, None, *RAW], 5, {"prompt": [[5, 6]]}), ("prompt[1]", ["5", True, {}], 6, {"prompt": [5, 6]}),
    ]),
    "/v1/responses": ({"input": "Say ⟦t</think>x⟧", "max_output_tokens": 9}, [
        *MODEL, *SAMPLING, *STOPS, *UNUSED, *THINKING, ("stream", BOOL, True), ("stream_options", OBJECT, {}), ("max_output_tokens", integer(1, INT32), 9), ("instructions", TEXT, "i"),
        ("top_logprobs", integer(0, 20), 2), ("include", LIST, ["message.output_text.logprobs"]), ("include[0]", TEXT, "reasoning.encrypted_content"), ("metadata.a", [1, True, [], {}], "b"),
        ("truncation", choice(), "auto"), ("background", [*BOOL, True], False), ("previous_response_id", ["r", 5], None), ("conversation", ["c", {}], None), ("prompt", [{"id": "p"}], None),
        ("max_tool_calls", integer(0, 2**30), 3), ("reasoning", OBJECT, {"effort": "low", "summary": "auto"}), ("reasoning.effort", choice(), "none"), ("reasoning.summary", TEXT, "auto"),
        ("text", OBJECT, {"verbosity": "low"}), ("text.verbosity", TEXT, "low"), ("text.format", OBJECT, {"type": "text"}), ("text.format.type", choice(), "text"),
        ("text.format.schema", [5, "x", []], None, {"text": {"format": {"type": "json_schema", "name": "n"}}}),
        ("input", [5, True, {}, [], None, "nan"], ITEMS["input"]), ("input[0]", ["q", 5, True, []], ITEMS["input"][0]), ("input[0].type", ["item_reference", "hologram"], "message", ITEMS),
        ("input[0].role", choice("tool"), "developer", ITEMS), ("input[0].content", [5, True, {}], "q", ITEMS), ("input[0].content[0].type", [*TEXT, "input_image", "input_file"], "input_text", ITEMS),
        ("input[0].content[0].text", TEXT, "q", ITEMS), ("input[1].name", [*TEXT, ""], "f", ITEMS), ("input[1].call_id", TEXT, "c", ITEMS),
        ("input[1].arguments", [5, True, [], "[1]", "5"], "{}", ITEMS), ("input[2].call_id", TEXT, "c", ITEMS), ("input[2].output", [5, True, {}, None], "r", ITEMS),
        ("input[2].output[0]", ["r", 5, {}, {"type": "input_text", "text": 5}], {"type": "input_image"}, ITEMS),
        ("input[1].name", [*TEXT, ""], "f", OTHERS), ("input[1].call_id", TEXT, "c", OTHERS), ("input[1].input", [*TEXT, None], "", OTHERS), ("input[2].output", [5, True, {}, None], ["r"][:0], OTHERS),
        ("input[3].action", [5, True, [], "x", None], {"type": "exec"}, OTHERS), ("input[3].call_id", TEXT, "c", OTHERS), ("input[4].output", [5, True, None], {"a": 1}, OTHERS),
        ("input[4].call_id", TEXT, "c", OTHERS), ("input[5].name", [*TEXT, ""], "g", OTHERS), ("input[5].arguments", [5, True, [], "[1]"], {}, OTHERS), ("input[5].id", TEXT, "c", OTHERS),
        ("tools[0].name", [*TEXT, "", 'a"b'], "g", CUSTOM), ("tools[0].description", TEXT, "e", CUSTOM), ("tools[0].format", OBJECT, {"type": "text"}, CUSTOM),
        ("tools[0].format.type", choice(), "text", CUSTOM), ("tools[0].format.syntax", choice(), "lark", CUSTOM), ("tools[0].format.definition", [*TEXT, ""], "start: B", CUSTOM),
        ("tools[0].description", TEXT, "e", SEARCH), ("tools[0].parameters", OBJECT, {}, SEARCH), ("tools[0].execution", [], "server", SEARCH), ("input[1].arguments", [5, True, [], "[1]"], {}, SEARCH),
        ("input[1].call_id", TEXT, "c", SEARCH), ("input[2].call_id", TEXT, "c", SEARCH), ("input[2].execution", TEXT, "server", SEARCH), ("input[2].tools", [*LIST, None], [], SEARCH),
        ("input[2].tools[0]", ["f", 5, True, []], SPACE["tools"][0], SEARCH), ("input[2].tools[0].name", [*TEXT, "", 'a"b', None], "g", SEARCH), ("input[3].tools[0].parameters", OBJECT, {}, SEARCH),
        ("tools[0].name", [*TEXT, "", 'a"b', None], "m", SPACE), ("tools[0].description", TEXT, "e", SPACE), ("tools[0].tools", LIST, [], SPACE), ("tools[0].tools[0]", ["f", 5, True, []], FLAT_TOOL, SPACE),
        ("tools[0].tools[0].name", [*TEXT, "", 'a"b', None], "g", SPACE), ("tools[0].tools[0].parameters", OBJECT, {}, SPACE), ("tools[0].tools[0].type", TEXT, "custom", SPACE),
        ("tools[0].tools[1].name", ["f"], None, {"tools": [{**SPACE["tools"][0], "tools": [FLAT_TOOL, copy.deepcopy(FLAT_TOOL)]}]}), ("input[1].namespace", TEXT, "n", OTHERS),
        ("tools[0].type", TEXT, "function", CUSTOM), ("tools[1].name", ["f"], None, {"tools": [*CUSTOM["tools"], copy.deepcopy(FLAT_TOOL)]}),
        ("tools", LIST, [FLAT_TOOL]), ("tools[0]", ["f", 5, True, []], FLAT_TOOL), ("tools[1].name", [*TEXT, "", 'a"b'], "g", FLAT), ("tools[1].description", TEXT, "e", FLAT),
        ("tools[1].parameters", OBJECT, {}, FLAT), ("tools[1].strict", BOOL, False, FLAT), ("tools[2].name", ["f"], None, {"tools": [*FLAT["tools"], copy.deepcopy(FLAT_TOOL)]}),
        ("tool_choice", [5, True, [], "no-such-value", {"type": "function", "name": "g"}], "auto", FLAT), ("tool_choice.type", [5, "web_search"], None, {**FLAT, "tool_choice": {"type": "function", "name": "f"}}),
        ("parallel_tool_calls", BOOL, False),
    ]),
    "/v1/messages": ({"messages": [{"role": "user", "content": "Say ⟦x⟧"}], "max_tokens": 9}, [
        *COUNTED, *[row for row in SAMPLING if row[0] in ("temperature", "top_p", "top_k")], ("max_tokens", [*integer(1, INT32), None], 9), ("stream", BOOL, True),
        ("stop_sequences", LIST, ["zz"]), ("stop_sequences[0]", [5, True, [], {}, "", "x" * 1025], "zz"), ("stop_sequences", [["a"] * 65], None),
        ("metadata", OBJECT, {"user_id": "u"}), ("metadata.user_id", TEXT, "u"), ("service_tier", TEXT, "auto"),
    ]),
    "/v1/messages/count_tokens": ({"messages": [{"role": "user", "content": "q"}]}, COUNTED),
    "/generate": ({"text": "Say ⟦x⟧", "sampling_params": {"max_new_tokens": 4}}, [
        ("sampling_params", OBJECT, {}), *[("sampling_params." + row[0], *row[1:]) for row in SAMPLING + STOPS if row[0] != "min_tokens"], ("sampling_params.n", integer(1, 128), 2),
        ("sampling_params.max_new_tokens", integer(0, INT32), 3), ("sampling_params.min_new_tokens", integer(0, 2**30), 1), ("sampling_params.regex", ["a"], None),
        ("sampling_params.json_schema", ["{}"], None), ("sampling_params.ebnf", ["a"], None), ("stream", BOOL, True), ("return_logprob", BOOL, True), ("top_logprobs_num", integer(0, 20), 2),
        ("text", [5, True, {}, [], None], ["a", "b"]), ("input_ids", [5, True, {}, []], [5, 6]), ("input_ids[0]", [True, {}], 5),
    ]),
    "/tokenize": ({"prompt": "x"}, [*MODEL, ("prompt", [5, True, {}, [], None], "x"), ("return_token_strs", BOOL, True), ("add_special_tokens", BOOL, False), ("messages", [*LIST, []], TURNS),
                                    ("messages[0].role", choice(), "developer")]),
    "/detokenize": ({"tokens": [5]}, [*MODEL, ("tokens", [*LIST, None], [5, 6]), ("tokens[0]", ["5", True, [], {}, -1, 4096, 1.5, None, *RAW], 5)]),
    "/start_profile": ({}, [("num_steps", integer(1, 10000), None)]),
}
# Read by no route, sent by real clients, and so without effect whatever they hold.
IGNORED = {
    "/v1/chat/completions": ["cache_prompt", "spaces_between_special_tokens", "top_a", "guided_decoding_backend", "verbosity", "modalities", "web_search_options", "rid"],
    "/v1/completions": ["cache_prompt", "spaces_between_special_tokens", "use_beam_search", "length_penalty"],
    "/v1/responses": ["text_format", "client_metadata"],
    "/v1/messages": ["container", "context_management", "mcp_servers", "betas"],
    "/generate": ["rid", "lora_path", "logprob_start_len", "return_text_in_logprobs", "image_data"],
}


def steps_of(field):
    """'a.b[0].c' -> ['a', 'b', 0, 'c']. The name after logit_bias is a key as it stands."""
    out = []
    for name in field.split("."):
        name, *indices = name.replace("]", "").split("[")
        out += [name, *map(int, indices)]
    return out


def with_value(body, field, value):
    body = copy.deepcopy(body)
    steps = steps_of(field)
    target = body
    for step, following in zip(steps, steps[1:]):
        if isinstance(step, int):
            while len(target) <= step:
                target.append(None)
            if not isinstance(target[step], (dict, list)):
                target[step] = [] if isinstance(following, int) else {}
        elif not isinstance(target.get(step), list if isinstance(following, int) else dict):
            target[step] = [] if isinstance(following, int) else {}
        target = target[step]
    if isinstance(steps[-1], int):
        while len(target) <= steps[-1]:
            target.append(None)
    target[steps[-1]] = value
    return body


def as_bytes(body, field, value):
    if isinstance(value, str) and value in RAW:
        return json.dumps(with_value(body, field, "<raw>")).replace('"<raw>"', RAW[value]).encode()
    return json.dumps(with_value(body, field, value)).encode()


class FieldsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(program_path()).wait_ready()
        cls.connection = cls.server.connect()

    @classmethod
    def tearDownClass(cls):
        cls.connection.close()
        assert cls.server.stop() == 0

    def post(self, path, data):
        self.connection.request("POST", path, body=data)
        reply = self.connection.getresponse()
        return reply.status, reply.read().decode()

    def check_plain(self):
        body = {"messages": [{"role": "user", "content": "Say ⟦t</think>Right.⟧"}], "temperature": 0}
        status, text = self.post("/v1/chat/completions", json.dumps(body))
        self.assertEqual((status, json.loads(text)["choices"][0]["message"]["content"]), (200, "Right."))

    def test_wrong_values_are_named(self):
        count = 0
        for path, (base, rows) in ROUTES.items():
            for field, wrong, _, *beside in rows:
                body = {**base, **(beside[0] if beside else {})}
                for value in wrong:
                    data = as_bytes(body, field, value)
                    with self.subTest(path=path, field=field, value=str(value)[:40]):
                        count += 1
                        status, text = self.post(path, data)
                        self.assertEqual(status, 400, f"{data[:600]} {text[:300]}")
                        error = json.loads(text)["error"]
                        self.assertEqual(error["param"], field, text[:300])
                        self.assertTrue(error["message"].startswith(field + ": "), error["message"])
                        self.check_plain()
        self.assertGreater(count, 2000)

    def test_right_values_pass(self):
        for path, (base, rows) in ROUTES.items():
            for field, _, right, *beside in rows:
                body = {**base, **(beside[0] if beside else {})}
                for value in ([right] if right is not None else []) + ([] if field not in base or "[" in field else [base[field]]):
                    with self.subTest(path=path, field=field):
                        status, text = self.post(path, as_bytes(body, field, value))
                        self.assertEqual(status, 200, f"{as_bytes(body, field, value)[:600]} {text[:300]}")

    def test_null_is_absent(self):
        """Of every field that may be left out, null is as good as leaving it out."""
        needed = {"/v1/chat/completions": {"messages"}, "/v1/completions": {"prompt"}, "/v1/responses": {"input"}, "/v1/messages": {"messages", "max_tokens"},
                  "/v1/messages/count_tokens": {"messages"}, "/generate": {"text"}, "/tokenize": {"prompt"}, "/detokenize": {"tokens"}, "/start_profile": {"num_steps"}}
        for path, (base, rows) in ROUTES.items():
            for field in sorted({row[0] for row in rows if "." not in row[0] and "[" not in row[0]} - needed[path]):
                with self.subTest(path=path, field=field):
                    status, text = self.post(path, as_bytes(base, field, None))
                    self.assertEqual(status, 200, text[:300])

    def test_what_is_ignored(self):
        for path, fields in IGNORED.items():
            for field in fields:
                for value in (None, True, 5, "x", [1], {"a": [1]}):
                    with self.subTest(path=path, field=field, value=value):
                        status, text = self.post(path, as_bytes(ROUTES[path][0], field, value))
                        self.assertEqual(status, 200, text[:300])


if __name__ == "__main__":
    unittest.main()
