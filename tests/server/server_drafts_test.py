"""What the server tells of drafting: figures in /metrics, and the alarm when drafts are suddenly wrong, in the log, in
/metrics and in /health. On the scripted executor, where "⟦✗TEXT⟧" is an answer whose drafts are all wrong.
"""
import unittest

from server_under_test import Server, program_path, wait_for

CHAT = "/v1/chat/completions"
ALARM = "drafts are accepted far less often than before"


class DraftsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(program_path(), "--drafts", "3").wait_ready()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ask(self, mark, count):
        body = {"messages": [{"role": "user", "content": f"Say ⟦{mark}word ×{count}⟧"}], "temperature": 0, "thinking": {"type": "disabled"}}
        reply = self.server.post(CHAT, body).json
        # Right or wrong, drafts do not change the text.
        self.assertEqual(reply["choices"][0]["message"]["content"], "word " * count)
        self.server.wait_idle()

    def figures(self):
        names = ("draft_steps_total", "drafted_tokens_total", "accepted_tokens_total", "draft_acceptance", "draft_acceptance_history", "draft_alarm", "draft_depth")
        return {name: self.server.metric("fathom_" + name) for name in names}

    def health(self):
        reply = self.server.get("/health")
        self.assertEqual((reply.status, reply.json["status"]), (200, "ok"))
        return reply.json["detail"]

    def alarms_logged(self):
        return sum(ALARM in line for line in self.server.log)

    def test_figures_and_alarm(self):
        self.ask("", 600)
        before = self.figures()
        self.assertGreater(before["drafted_tokens_total"], 500)
        self.assertEqual(before["draft_depth"], 3)
        self.assertAlmostEqual(before["draft_acceptance_history"], 0.7, delta=0.1)  # the script's share, decided by hashes
        self.assertEqual((before["draft_alarm"], self.health(), self.alarms_logged()), (0, None, 0))
        by_place = [self.server.metric(f'fathom_accepted_tokens_by_position_total{{position="{i}"}}') for i in range(3)]
        self.assertEqual(sum(by_place), before["accepted_tokens_total"])
        self.assertEqual(by_place, sorted(by_place, reverse=True))
        for theirs, ours in (("num_drafts_total", "draft_steps_total"), ("num_draft_tokens_total", "drafted_tokens_total"),
                             ("num_accepted_tokens_total", "accepted_tokens_total"), ("draft_acceptance_rate", "draft_acceptance")):
            self.assertEqual(self.server.metric("vllm:spec_decode_" + theirs), before[ours], theirs)

        self.ask("✗", 200)
        during = self.figures()
        self.assertEqual(during["draft_alarm"], 1)
        self.assertLess(during["draft_acceptance"], 0.5 * during["draft_acceptance_history"])
        self.assertEqual(during["accepted_tokens_total"], before["accepted_tokens_total"])
        percent = lambda name: f"{round(100 * during[name])} %"
        self.assertEqual(self.health(), f"{ALARM}: {percent('draft_acceptance')} lately, {percent('draft_acceptance_history')} before")
        wait_for(lambda: self.alarms_logged() == 1, "one line in the log")

        self.ask("", 400)
        after = self.figures()
        self.assertEqual((after["draft_alarm"], self.health()), (0, None))
        self.assertGreater(after["accepted_tokens_total"], during["accepted_tokens_total"])
        self.assertEqual(self.alarms_logged(), 1)


if __name__ == "__main__":
    unittest.main()
