import json
import os
import unittest
from dataclasses import asdict
from pathlib import Path

from pacegate import Decision, Pacegate, PacegateError, client_network, rate_limit_headers

FILE = os.environ.get("PACEGATE_VECTORS", Path(__file__).parent / "../../vectors.json")
VECTORS = json.loads(Path(FILE).read_text(encoding="utf-8"))


class Vectors(unittest.TestCase):
    maxDiff = None

    def test_checks(self):
        for case in VECTORS["checks"]:
            with self.subTest(case["name"]):
                self.run_case(case)

    def run_case(self, case):
        now = 0.0
        server = None
        sent = []

        def send(body):
            nonlocal now
            sent.append(json.loads(body))
            if server is None or server.get("fails"):
                raise ConnectionRefusedError("refused")
            now += server["took_ms"] / 1000
            text = server["text"] if "text" in server else json.dumps(server["body"])
            return server["status"], text.encode()

        options = dict(case["options"])
        if "max_denial_age_ms" in options:
            options["max_denial_age"] = options.pop("max_denial_age_ms") / 1000
        client = Pacegate("http://pacegate.test", send=send, clock=lambda: now, **options)
        for step in case["steps"]:
            now, server = step["at_ms"] / 1000, step["server"]
            sent.clear()
            if "error" in step:
                with self.assertRaises(PacegateError) as raised:
                    client.check(**step["request"])
                error = raised.exception
                self.assertEqual(
                    {"status": error.status, "type": error.type, "detail": error.detail}, step["error"]
                )
            else:
                decision = asdict(client.check(**step["request"]))
                for name in ("retry_after", "reset_after"):
                    if decision[name] is not None:
                        decision[name] = round(decision[name], 6)
                self.assertEqual(decision, step["decision"])
            self.assertEqual(sent, [] if step["sent"] is None else [step["sent"]])

    def test_headers(self):
        for row in VECTORS["headers"]:
            self.assertEqual(rate_limit_headers(Decision(**row["decision"])), row["headers"])

    def test_addresses(self):
        for address, network in VECTORS["addresses"]:
            self.assertEqual(client_network(address), network)


if __name__ == "__main__":
    unittest.main()
