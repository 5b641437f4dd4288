"""The web page in headless Chromium: sends, sees the streamed answer, stops one, returns a tool's result, reloads.

Needs PyPI playwright and Debian's chromium; exits 77 (skipped) where they are missing. With --shots DIR it leaves
screenshots there. --model runs it on a real model instead of the scripted executor (for looking at).
"""
import argparse
import pathlib
import re
import sys

from server_under_test import PATIENCE_S, Server, program_path, wait_for

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    print("skipped: PyPI playwright is absent")
    sys.exit(77)
if not pathlib.Path("/usr/bin/chromium").exists():
    print("skipped: /usr/bin/chromium is absent (apt-get install chromium)")
    sys.exit(77)

CALL = ('I use the tool.</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="calculator">\n<｜DSML｜parameter name="expression" '
        'string="true">12*(3+4)</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>')


class Page:
    def __init__(self, page, shots):
        self.page, self.shots = page, shots

    def shot(self, name):
        if self.shots:
            self.page.screenshot(path=f"{self.shots}/{name}.png")

    def send(self, text):
        self.page.fill("#input", text)
        self.page.keyboard.press("Enter")

    def wait_done(self):
        expect(self.page.locator("#send")).to_have_text("Send")

    @property
    def last(self):
        return self.page.locator(".turn.assistant").last


def run_scripted(page, p):
    expect(page.locator("#model")).to_have_text("mini-v4")
    expect(page.locator("#dot")).to_have_class("dot ok")
    p.shot("1-empty")

    p.send("Hello! ⟦They greet me.</think>Hello, **friend**. Here is code:\n\n```\nx = 1 < 2\n```\n\n- one\n- two⟧")
    p.wait_done()
    expect(p.last.locator(".text b")).to_have_text("friend")
    expect(p.last.locator(".text pre")).to_have_text("x = 1 < 2")
    expect(p.last.locator(".text li")).to_have_count(2)
    assert p.last.locator("details.thinking").get_attribute("open") is None, "thinking is folded"
    p.last.locator("details.thinking summary").click()
    expect(p.last.locator("details.thinking .body")).to_have_text("They greet me.")
    expect(p.last.locator(".meta")).to_contain_text("tokens")
    p.shot("2-answer")

    # Where its time went.
    p.last.locator(".times").click()
    expect(p.last.locator(".timeline .bar i.k-prefill")).not_to_have_count(0)
    expect(p.last.locator(".timeline .bar i.k-decode")).not_to_have_count(0)
    expect(p.last.locator(".timeline .key")).to_contain_text("writing")
    p.shot("2-time-line")
    p.last.locator(".times").click()
    expect(p.last.locator(".timeline")).to_have_count(0)

    # A stream is seen while it runs, and stops.
    p.send("Go on. ⟦t</think>" + "word " * 40 + "⟧ and on ⟦t</think>on and on ×3000⟧")
    expect(page.locator("#send")).to_have_text("Stop")
    expect(p.last.locator("details.thinking")).to_be_visible()
    wait_for(lambda: "on and on" in p.last.inner_text(), "the answer begins while it streams")
    seen = len(p.last.inner_text())
    wait_for(lambda: len(p.last.inner_text()) > seen, "the answer grows while it streams")
    expect(page.locator("#send")).to_have_text("Stop")
    p.shot("3-streaming")
    page.click("#send")
    p.wait_done()
    expect(p.last.locator(".meta")).to_contain_text("stopped")

    # Markup in a message is text.
    p.send("<img src=x onerror=\"window.pwned=1\"> ⟦t</think><img src=x onerror=\"window.pwned=1\"> `a<b`⟧")
    p.wait_done()
    assert page.evaluate("window.pwned") is None
    expect(p.last.locator(".text code")).to_have_text("a<b")

    # A tool call: shown, its result returned, the answer after it.
    page.click("#new-chat")
    page.click("#t-tools")
    p.send("12*(3+4)? ⟦" + CALL + "⟧")
    p.wait_done()
    expect(p.last.locator(".call .name")).to_have_text("calculator")
    expect(p.last.locator(".call input")).to_have_value("84")
    p.shot("4-tool-call")
    p.last.locator(".call input").fill("84 ⟦done</think>It is 84.⟧")
    p.last.locator(".call button").click()
    p.wait_done()
    expect(p.last.locator(".text")).to_have_text("It is 84.")
    p.shot("5-tool-result")

    # Settings are kept, and the conversation too.
    page.click("#open-settings")
    page.fill("#s-max_tokens", "5")
    p.shot("6-settings")
    page.click("#save")
    page.click("#t-tools")
    page.reload()
    expect(p.last.locator(".text")).to_have_text("It is 84.")
    p.send("Long ⟦t</think>one two three four five six seven⟧")
    p.wait_done()
    expect(p.last.locator(".meta")).to_contain_text("cut off")

    # An error is shown, and the next message works.
    page.click("#open-settings")
    page.fill("#s-temperature", "9")
    page.fill("#s-max_tokens", "")
    page.click("#save")
    p.send("x")
    p.wait_done()
    expect(p.last.locator(".error")).to_contain_text("temperature")
    page.click("#open-settings")
    page.fill("#s-temperature", "0")
    page.click("#save")
    p.send("again ⟦t</think>fine⟧")
    p.wait_done()
    expect(p.last.locator(".text")).to_have_text("fine")
    # Drafts: the share that was right, and the alarm when they are suddenly all wrong.
    p.send("many ⟦t</think>" + "word ×600⟧")
    p.wait_done()
    expect(page.locator("#g-drafts")).to_have_text(re.compile(r"^[67]\d %$"))
    expect(page.locator("#g-drafts-text")).to_have_text("drafts accepted")
    expect(page.locator("#g-per-step")).to_have_text(re.compile(r"^[23]\.\d\d$"))
    p.send("wrong ⟦✗t</think>" + "word ×150⟧")
    p.wait_done()
    expect(page.locator("#g-drafts-text")).to_have_text("drafts accepted: far fewer than before")
    p.shot("7-alarm")
    # Live numbers arrive.
    expect(page.locator("#g-running")).to_have_text("0")
    expect(page.locator("#g-cache")).to_contain_text("%")


def run_model(page, p):
    p.shot("m1-empty")
    for number, text in enumerate(["17*23?", "What is the capital of Norway?", "Tell me a short story about a cat."]):
        p.send(text)
        page.wait_for_timeout(250)
        p.shot(f"m2-{number}-streaming")
        p.wait_done()
    p.shot("m3-answers")
    page.click("#new-chat")
    page.click("#t-tools")
    p.send("What is the weather in Oslo?")
    p.wait_done()
    p.shot("m4-tool")
    p.last.locator(".call input").fill('{"temperature": 12, "condition": "rain"}')
    p.last.locator(".call button").click()
    p.wait_done()
    p.shot("m5-tool-answer")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shots")
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    flags = [] if arguments.model else ["--scripted-step-us", "4000", "--drafts", "3"]
    expect.set_options(timeout=PATIENCE_S * 1000)
    with Server(program_path(), *flags, scripted=not arguments.model) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 780}, color_scheme="dark" if arguments.dark else "light")
        problems, foreign = [], []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" and "400" not in message.text else None)
        page.on("request", lambda r: foreign.append(r.url) if not r.url.startswith((f"http://127.0.0.1:{server.port}/", "data:")) else None)
        page.goto(f"http://127.0.0.1:{server.port}/")
        expect(page.locator("#model")).not_to_be_empty()
        (run_model if arguments.model else run_scripted)(page, Page(page, arguments.shots))
        browser.close()
        assert not problems, problems
        assert not foreign, foreign
    print("the page works")


if __name__ == "__main__":
    main()
