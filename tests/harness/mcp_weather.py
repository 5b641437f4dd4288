"""A tool server by the Model Context Protocol on standard input and output, with one tool. For agents.py: its answer is
also what the scripted model says next."""
import json
import sys

TOOL = {"name": "weather", "description": "Weather of a city",
        "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "weather", "version": "1"}}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"rain ⟦v</think>It rains in {params['arguments']['city']}.⟧"}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message["method"], message.get("params"))}), flush=True)
