"""The embedded model behind the server: what depends on a model's own numbers."""
import unittest

from server_under_test import Server, program_path

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTIONS = ("17*23?", "Capital of France", "What is 12*34?", "What is the capital of Norway?")


class DraftsTest(unittest.TestCase):
    """The same requests with and without speculation."""

    @classmethod
    def setUpClass(cls):
        cls.plain = Server(program_path(), scripted=False).wait_ready()
        cls.drafting = Server(program_path(), "--drafts", "3", scripted=False).wait_ready()

    @classmethod
    def tearDownClass(cls):
        assert cls.plain.stop() == 0
        assert cls.drafting.stop() == 0

    def both(self, path, body):
        replies = [server.post(path, body) for server in (self.plain, self.drafting)]
        for reply in replies:
            self.assertEqual(reply.status, 200, reply.text)
        return [reply.json for reply in replies]

    def test_14_logprobs_with_and_without_drafts(self):
        for question in QUESTIONS:
            for temperature in (0, 0.8):
                body = {"messages": [{"role": "user", "content": question}], "temperature": temperature, "seed": 7, "max_tokens": 60,
                        "logprobs": True, "top_logprobs": 5}
                a, b = self.both(CHAT, body)
                self.assertEqual(a["choices"], b["choices"], question)
                self.assertEqual(len(a["choices"][0]["logprobs"]["content"]), a["usage"]["completion_tokens"])
        self.drafting.wait_idle()
        self.assertGreater(self.drafting.metric("fathom_accepted_tokens_total"), 0, "drafts were made")

    def test_every_choice_repeats_its_own_prompt(self):
        """Several prompts and several choices at once, some found in the prefix cache: the prompt's log probabilities are
        those that it has alone."""
        prompts = ["The capital of France is", [5, 6, 7], "A much longer prompt, " * 60, [9, 8, 7, 6, 5, 4]]
        body = {"max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 2}
        for server in (self.plain, self.drafting):
            server.post(COMPLETIONS, {"prompt": prompts[2], "max_tokens": 1})
            alone = [server.post(COMPLETIONS, {**body, "prompt": prompt}).json["choices"][0]["logprobs"] for prompt in prompts]
            for lists in alone:
                self.assertEqual([value is None for value in lists["token_logprobs"]], [True] + [False] * (len(lists["tokens"]) - 1))
            as_list = [prompt if isinstance(prompt, list) else server.post("/tokenize", {"prompt": prompt}).json["tokens"] for prompt in prompts]
            together = {**body, "prompt": as_list, "n": 3}
            whole = server.post(COMPLETIONS, together).json["choices"]
            self.assertEqual([choice["index"] for choice in whole], list(range(12)))
            streamed = [{"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []} for _ in range(12)]
            for chunk in server.post(COMPLETIONS, {**together, "stream": True}).chunks:
                for choice in chunk["choices"]:
                    for key, values in (choice["logprobs"] or {}).items():
                        streamed[choice["index"]][key] += values
            for index in range(12):
                self.assertEqual(whole[index]["logprobs"], alone[index // 3], index)
                self.assertEqual(streamed[index], alone[index // 3], index)

    def test_29_nothing_after_a_stop_with_drafts(self):
        whole = self.plain.post(COMPLETIONS, {"prompt": "17*23?", "max_tokens": 24, "temperature": 0, "ignore_eos": True}).json
        text = whole["choices"][0]["text"]
        for end in range(1, len(text), 3):
            stop = text[max(0, end - 2) : end]
            body = {"prompt": "17*23?", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stop": [stop], "logprobs": 0}
            a, b = self.both(COMPLETIONS, body)
            self.assertEqual(a["choices"], b["choices"], stop)
            self.assertEqual(b["choices"][0]["text"], text[: text.index(stop)])
            # What was drafted behind the match is in no field.
            self.assertNotIn(stop, "".join(b["choices"][0]["logprobs"]["tokens"][:-1]))


class PrefixCacheTest(unittest.TestCase):
    def test_warm_answers_are_checked_against_cold_ones(self):
        """--check-prefix-cache computes every hit a second time without the cache and compares, bit by bit."""
        with Server(program_path(), "--check-prefix-cache", scripted=False) as server:
            messages = [{"role": "system", "content": "Answer with few words. " * 20}]
            questions = ["17*23?", "Capital of France", "What is 12*34?", "My name is Bob.", "What is my name?", "What is the capital of Norway?"]
            for question in questions * 2:
                messages.append({"role": "user", "content": question})
                reply = server.post(CHAT, {"messages": messages, "temperature": 0.7, "seed": 5, "max_tokens": 40}).json
                messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
            self.assertGreater(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 255)
            server.wait_idle()
            self.assertGreaterEqual(server.metric("fathom_prefix_checks_total"), 8)
            self.assertEqual(server.metric("fathom_prefix_checks_failed_total"), 0)


if __name__ == "__main__":
    unittest.main()
