"""Codex CLI and Claude Code, unmodified, against `fathom serve` on the scripted executor: each runs a command and calls a
tool of an MCP server, and says what the script wants said of the results. Installs both from PyPI into .cache/agents; exits
77 where that fails. By hand: they are large, and want their own ways of the machine.
  python3 tests/harness/agents.py [PATH_TO_FATHOM]
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / ".cache" / "agents"
PACKAGES = ("openai-codex-cli-bin==0.163.0", "claude-agent-sdk==0.2.189")
sys.path.insert(0, str(ROOT / "tests" / "server"))
from server_under_test import Server  # noqa: E402

# What a command prints so that it is the script's next answer; the mark itself may not stand in the script.
SAY = r"printf '\342\237\246u</think>It printed.\342\237\247'"


def call(name, **parameters):
    inner = "\n".join(f'<｜DSML｜parameter name="{k}" string="true">{v}</｜DSML｜parameter>' for k, v in parameters.items())
    return f'⟦t</think>I look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{name}">\n{inner}\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>⟧'


def install():
    if not (VENV / "bin" / "pip").exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    if subprocess.run([VENV / "bin" / "pip", "install", "-q", *PACKAGES]).returncode:
        print("skipped: the agents cannot be installed from PyPI")
        sys.exit(77)
    find = lambda name: next(path for path in VENV.rglob(name) if path.is_file() and os.access(path, os.X_OK))
    return find("codex_cli_bin/bin/codex"), find("_bundled/claude")


class Agents:
    def __init__(self, server, home, codex, claude):
        self.server, self.home, self.codex, self.claude = server, pathlib.Path(home), codex, claude
        self.num_failed = self.num_seen = 0
        mcp = str(ROOT / "tests" / "harness" / "mcp_weather.py")
        self.mcp = self.home / "mcp.json"
        self.mcp.write_text(json.dumps({"mcpServers": {"m": {"command": sys.executable, "args": [mcp]}}}))
        (self.home / "work").mkdir()
        (self.home / "codex").mkdir()
        (self.home / "codex" / "config.toml").write_text(f"""
model = "mini-v4"
model_provider = "fathom"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.fathom]
name = "fathom"
base_url = "http://127.0.0.1:{server.port}/v1"
wire_api = "responses"
[mcp_servers.m]
command = "{sys.executable}"
args = ["{mcp}"]
""")

    def run(self, title, expected, command, **environment):
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), **environment}
        done = subprocess.run([str(part) for part in command], cwd=self.home / "work", env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        lines = [line for line in self.server.log if " request id=" in line]
        new, self.num_seen = lines[self.num_seen:], len(lines)
        said = done.stdout.strip().splitlines()[-1:]
        right = done.returncode == 0 and said == [expected] and len(new) == 2
        self.num_failed += not right
        counts = [re.search(r"prompt_tokens=(\d+) cached_tokens=(\d+)", line).groups() for line in new]
        print(f"{'right' if right else 'WRONG'}: {title}: {said}; prompt tokens and those of them found: {counts}")
        if not right:
            print(done.stdout[-2000:])

    def run_codex(self, title, expected, prompt):
        self.run(title, expected, [self.codex, "exec", "--skip-git-repo-check", prompt], CODEX_HOME=str(self.home / "codex"))

    def run_claude(self, title, expected, prompt, tool, *flags, **environment):
        self.run(title, expected, [self.claude, "-p", prompt, *flags, "--allowedTools", tool],
                 ANTHROPIC_BASE_URL=f"http://127.0.0.1:{self.server.port}", ANTHROPIC_AUTH_TOKEN="none", ANTHROPIC_MODEL="mini-v4",
                 ANTHROPIC_DEFAULT_HAIKU_MODEL="mini-v4", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_AUTOUPDATER="1", **environment)


def main():
    program = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "fathom")
    os.chdir(ROOT)
    codex, claude = install()
    for binary in (codex, claude):
        print(subprocess.run([binary, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip())
    with tempfile.TemporaryDirectory() as home, Server(program, "--max-context", "65536") as server:
        agents = Agents(server, home, codex, claude)
        agents.run_codex("codex, a command", "It printed.", "Look. " + call("exec_command", cmd=SAY))
        agents.run_codex("codex, a tool of an MCP server", "It rains in Oslo.", "Look. " + call("mcp__m__weather", city="Oslo"))
        agents.run_claude("claude, a command", "It printed.", "Look. " + call("Bash", command=SAY, description="looks"), "Bash")
        agents.run_claude("claude, a tool of an MCP server", "It rains in Oslo.", "Look. " + call("mcp__m__weather", city="Oslo"), "mcp__m__weather",
                          "--mcp-config", agents.mcp, ENABLE_TOOL_SEARCH="false")
        print(f"{agents.num_failed} runs failed")
        return 1 if agents.num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
