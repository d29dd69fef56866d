#!/usr/bin/env python3
"""Runs the tests of ranks with processes as ranks, and the ways in which a rank can go wrong. All must end in time.

Run: tests/dist/mpi_test.py MPIRUN PROGRAM
"""
import os
import subprocess
import sys
import time
import unittest

MPIRUN, PROGRAM = sys.argv[1:3]
BOUND = 60  # seconds; the scenarios' own timeout is 2, the rest is for a machine that is busy

# As root, with more ranks than cores, in a container that forbids reading another process's memory.
ENVIRONMENT = os.environ | {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}


def run(ranks: int, *arguments: str, bound: float = 600) -> tuple[int, str]:
    command = [MPIRUN, "--oversubscribe", "-n", str(ranks), PROGRAM, *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=bound)
    return done.returncode, done.stdout


class Collectives(unittest.TestCase):
    def check(self, ranks: int, tests: str = "Dist/*") -> None:
        status, output = run(ranks, f"--gtest_filter={tests}", "--gtest_brief=1")
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count("[  PASSED  ]"), ranks, output)
        self.assertNotIn("[  PASSED  ] 0 tests", output)

    def test_two_ranks(self) -> None:
        self.check(2)

    def test_four_ranks(self) -> None:
        self.check(4)

    def test_layouts_of_six_ranks(self) -> None:
        self.check(6, "Dist/Layouts.*")


class Scenarios(unittest.TestCase):
    def scenario(self, name: str, ranks: int = 4) -> tuple[int, str]:
        begin = time.monotonic()
        status, output = run(ranks, "--scenario", name, bound=BOUND)
        self.assertLess(time.monotonic() - begin, BOUND)
        return status, output

    def fails(self, name: str, *texts: str) -> None:
        status, output = self.scenario(name)
        self.assertNotEqual(status, 0, output)
        for text in texts:
            self.assertIn(text, output)

    def test_well(self) -> None:
        self.assertEqual(self.scenario("well")[0], 0)

    def test_large_messages(self) -> None:
        status, output = self.scenario("large", ranks=2)
        self.assertEqual(status, 0, output)

    def test_reductions_go_by_pieces(self) -> None:
        status, output = self.scenario("pieces", ranks=4)
        self.assertEqual(status, 0, output)

    def test_a_rank_throws(self) -> None:
        self.fails("throws", "cistron: error: rank 1: bad record: here: mend it")
        self.assertEqual(self.scenario("throws")[0], 3)

    def test_a_rank_is_late(self) -> None:
        self.fails("late", "rank 1 has not arrived within 2 s: all_reduce 2 of world on rank")

    def test_a_rank_is_late_in_a_part(self) -> None:
        self.fails("late_in_a_part", "rank 3 has not arrived within 2 s: barrier 1 of half on rank 2")

    def test_a_rank_is_stopped(self) -> None:
        self.fails("stopped", "rank 1 has not arrived within 2 s: all_reduce 2 of world on rank")

    def test_a_rank_is_killed(self) -> None:
        self.fails("killed", "process rank 1", "signal 9")

    def test_a_rank_ends_early(self) -> None:
        self.fails("ends", "called barrier", "called all_reduce of f32")

    def test_a_rank_calls_another_collective(self) -> None:
        self.fails("other", "called barrier", "called all_reduce of f32", "2 of world on rank")

    def test_a_rank_sums_more(self) -> None:
        self.fails("longer", "bytes where rank", "all_reduce 2 of world")

    def test_a_rank_drops_a_collective(self) -> None:
        self.fails("drops", "barrier 2 of world on rank 1 was dropped")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
