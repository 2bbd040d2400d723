"""`compare.py` with stand-ins for the three programs: `python3 -m unittest discover tools/compare`."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import compare

# A stand-in writes its name to a log, and prints a speed in the format of the program it replaces.
STAND_IN = """#!{python}
import json, sys
if "--help" in sys.argv:
    print("--n-prompt {help}")
    sys.exit()
open({log!r}, "a").write({name!r} + "\\n")
row = {{"n_prompt": 512, "n_gen": 0, "avg_ts": {speed}}}
if {name!r} == "latent":
    row |= {{"read_bandwidth_gb_per_s": 40.0, "of_roofline": 0.5, "roofline_ts": 80.0}}
print(json.dumps([row]))
"""


class Compare(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.log = self.folder / "log"
        for name, help_text, speed in [("latent", "", 40), ("lc", "", 20), ("ik", "-mla", 25)]:
            text = STAND_IN.format(python=sys.executable, log=str(self.log), name=name, help=help_text, speed=speed)
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        (self.folder / "model").touch()

    def compare(self, rounds: int, used: list[float]) -> tuple[str, str, list[str]]:
        """Output, errors and the order of the runs; `used` are the cores that other processes use in each round."""
        peers = ["--peer", str(self.folder / "lc"), "--peer", str(self.folder / "ik")]
        words = ["compare.py", *peers, "--latent", str(self.folder / "latent"), "-m", str(self.folder / "model")]
        words += ["-n", "0", "-r", str(rounds), "--json", str(self.folder / "out.json")]
        out, errors = io.StringIO(), io.StringIO()
        with (
            mock.patch.object(sys, "argv", words),
            mock.patch.object(compare.CpuClock, "others", side_effect=used),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            compare.main()
        return out.getvalue(), errors.getvalue(), self.log.read_text().split()

    def test_programs_alternate_after_a_warm_up(self) -> None:
        out, _, order = self.compare(3, [0.0, 0.01, 0.02])
        expected = "latent lc ik  latent lc ik  lc ik latent  ik latent lc"
        self.assertEqual(order, expected.split())
        self.assertIn("| pp512 | latent | 40.00 (40.00 to 40.00) | 50% | | | 80.00 | 40.0 |", out)
        self.assertIn("| pp512 | llama.cpp | 20.00 (20.00 to 20.00) | 25% | 2.00 | 2.00 to 2.00 | | |", out)
        self.assertIn("| pp512 | ik_llama.cpp | 25.00 (25.00 to 25.00) | 31% | 1.60 | 1.60 to 1.60 | | |", out)
        self.assertIn("3 of 3 rounds kept", out)

    def test_disturbed_rounds_are_discarded_and_repeated(self) -> None:
        out, errors, order = self.compare(2, [0.0, 0.7, 0.05])
        self.assertIn("discarded: other processes used 0.70 cores", errors)
        self.assertIn("2 of 3 rounds kept, after a warm-up; 1 discarded", out)
        self.assertEqual(len(order), 4 * 3)
        figures = json.loads((self.folder / "out.json").read_text())
        programs = figures["programs"] if isinstance(figures, dict) else figures
        self.assertEqual([len(program["rounds"]) for program in programs], [2, 2, 2])

    def test_a_machine_that_is_never_quiet_is_an_error(self) -> None:
        with self.assertRaises(SystemExit) as ended:
            self.compare(1, [1.0, 1.0, 1.0])
        self.assertIn("all 3 rounds were disturbed", str(ended.exception))

    def test_cpu_time_of_others_is_the_machines_without_ones_own(self) -> None:
        stat, ticks = self.folder / "stat", os.sysconf("SC_CLK_TCK")
        own = os.times_result((1.0, 0.0, 1.0, 0.0, 0.0))
        # user, nice, system, idle, iowait, irq, softirq, steal
        stat.write_text("cpu 100 0 100 5000 700 0 0 0\ncpu0 1 1\n")
        with mock.patch("os.times", return_value=own), mock.patch("time.monotonic", return_value=10.0):
            clock = compare.CpuClock(stat)
        stat.write_text(f"cpu {100 + 5 * ticks} 0 100 9000 9000 0 0 {ticks}\ncpu0 1 1\n")
        own = os.times_result((1.0, 0.0, 3.0, 1.0, 0.0))
        with mock.patch("os.times", return_value=own), mock.patch("time.monotonic", return_value=12.0):
            # Six busy CPU seconds, three of them by children, in two seconds of wall time.
            self.assertAlmostEqual(clock.others(), 1.5)


if __name__ == "__main__":
    unittest.main()
