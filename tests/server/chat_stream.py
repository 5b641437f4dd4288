"""Puts the chunks of a streamed chat back together."""


def assemble(chunks):
    """{choice index: {"content", "reasoning_content", "tool_calls", "finish_reason", "logprobs"}}, as the whole reply has it."""
    out = {}
    for chunk in chunks:
        for key in ("id", "object", "created", "model", "choices"):
            assert key in chunk, f"chunk without {key}: {chunk}"
        for choice in chunk["choices"]:
            message = out.setdefault(
                choice["index"],
                {"content": "", "reasoning_content": "", "tool_calls": [], "finish_reason": None, "logprobs": []},
            )
            assert message["finish_reason"] is None, f"a chunk after the finish: {chunk}"
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                target = message["tool_calls"][call["index"]]
                target["arguments"] += call["function"].get("arguments", "")
            if choice.get("logprobs"):
                message["logprobs"] += choice["logprobs"]["content"]
            if choice["finish_reason"] is not None:
                message["finish_reason"] = choice["finish_reason"]
    return out


def of_whole(reply):
    """The same of a reply that was not streamed."""
    out = {}
    for choice in reply["choices"]:
        message = choice["message"]
        out[choice["index"]] = {
            "content": message["content"] or "",
            "reasoning_content": message.get("reasoning_content") or "",
            "tool_calls": [
                {"id": c["id"], "name": c["function"]["name"], "arguments": c["function"]["arguments"]}
                for c in message.get("tool_calls", [])
            ],
            "finish_reason": choice["finish_reason"],
            "logprobs": (choice["logprobs"] or {}).get("content", []),
        }
    return out


def without_ids(messages):
    for message in messages.values():
        for call in message["tool_calls"]:
            call.pop("id")
    return messages
