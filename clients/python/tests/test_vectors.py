import json
import os
import unittest
from dataclasses import asdict
from pathlib import Path

from pacegate import Decision, Pacegate, PacegateError, PacegateUnavailable, client_network, rate_limit_headers

FILE = os.environ.get("PACEGATE_VECTORS", Path(__file__).parent / "../../vectors.json")
OPTIONAL = ("granted", "permit", "reservation")
VECTORS = json.loads(Path(FILE).read_text(encoding="utf-8"))


def plain(decision):
    """Returns the members of a decision, with times in microseconds, and without optional members that are missing."""
    members = {name: value for name, value in asdict(decision).items() if value is not None or name not in OPTIONAL}
    for name in ("retry_after", "reset_after"):
        if members[name] is not None:
            members[name] = round(members[name], 6)
    return members


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

        def send(call, body):
            nonlocal now
            sent.append((call, json.loads(body)))
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
            name = step.get("call", "check")
            call = lambda: getattr(client, name)(**step["request"])
            if "error" in step:
                with self.assertRaises(PacegateError) as raised:
                    call()
                error = raised.exception
                self.assertEqual(
                    {"status": error.status, "type": error.type, "detail": error.detail}, step["error"]
                )
            elif step.get("unavailable"):
                self.assertRaises(PacegateUnavailable, call)
            elif "decision" in step:
                self.assertEqual(plain(call()), step["decision"])
            else:
                self.assertEqual(call(), step["result"])
            self.assertEqual(sent, [] if step["sent"] is None else [(name, step["sent"])])

    def test_headers(self):
        for row in VECTORS["headers"]:
            self.assertEqual(rate_limit_headers(Decision(**row["decision"])), row["headers"])

    def test_addresses(self):
        for address, network in VECTORS["addresses"]:
            self.assertEqual(client_network(address), network)


if __name__ == "__main__":
    unittest.main()
