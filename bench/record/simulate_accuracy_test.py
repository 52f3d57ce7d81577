"""Tests the inputs that the comparison of simulated and real runs gives to both sides, and its
figures. Nothing is timed, and no job runs.

Argument: the path of eps."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # not the folder of a link's target
import simulate_accuracy as accuracy

EPS = None


def figure(measured, simulated, digits=3):
    return accuracy.Figure("step, s", measured, simulated, digits)


def options(*arguments):
    return accuracy.parse_arguments([f"--eps={EPS}", *arguments])


class Descriptions(unittest.TestCase):
    """The simulator receives the rates of the real processes."""

    def simulate(self, scenario):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as name:
            folder = pathlib.Path(name)
            accuracy.write_inputs(scenario, folder, 0.001)
            return accuracy.run_json(accuracy.simulate_command(EPS, scenario, folder, 20))

    def scenario(self, name):
        return next(s for s in accuracy.SCENARIOS if s.name == name)

    def test_every_scenario_has_two_servers_and_four_workers(self):
        for scenario in accuracy.SCENARIOS:
            simulation = self.simulate(scenario)
            self.assertEqual((simulation["servers"], simulation["workers"], simulation["parts"]),
                             (2, 4, 4), scenario.name)
            self.assertEqual(simulation["mode"] == "sealed", "sealed" in scenario.name)
            self.assertEqual(simulation["replay"] == "log", "log" in scenario.name)

    def test_passes_take_the_configured_time(self):
        scenario = self.scenario("compute")
        # Forward passes over all stages but the last, and backward passes three times as long.
        passes = (scenario.layers - 1) + 3 * scenario.layers
        step = accuracy.simulated_step(self.simulate(scenario))
        self.assertAlmostEqual(step, passes * scenario.pass_ms / 1e3, delta=0.01)
        slow = accuracy.simulated_step(self.simulate(self.scenario("straggler")))
        self.assertAlmostEqual(slow, 2 * passes * scenario.pass_ms / 1e3, delta=0.02)

    def test_both_servers_share_the_links_tcp_rate(self):
        self.assertAlmostEqual(accuracy.link_rate(100), 11.955e6, delta=1e3)
        scenario = self.scenario("network")
        simulation = self.simulate(scenario)
        self.assertEqual(simulation["bottleneck"], "server send")
        elements = scenario.width * (scenario.width + 1)
        fetched = 4 * 4 * elements * (2 * scenario.layers - 1)
        self.assertAlmostEqual(simulation["step"]["busiest"]["server send"],
                               fetched / accuracy.link_rate(scenario.megabits), delta=1e-6)

    def deaths(self, name, away=0.5):
        """Returns what the deaths add to an undisturbed run, and the time of a step."""
        scenario = self.scenario(name)
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            accuracy.write_inputs(scenario, pathlib.Path(folder), 0.001)
            death, into = accuracy.simulate_deaths(options(), scenario, folder, away)
        undisturbed = self.simulate(scenario)
        step = accuracy.simulated_step(undisturbed)
        self.assertAlmostEqual(into, accuracy.DEATH_AT * step)
        return death._replace(total=death.total - undisturbed["wall"]), step

    def test_deaths_roll_back_to_the_cut_before_each(self):
        for name in ("worker killed", "server killed"):
            death, step = self.deaths(name)
            self.assertEqual(death.repeated, 3 * 2)
            again = (2 + accuracy.DEATH_AT) * step
            self.assertAlmostEqual(death.total, 3 * (0.5 + again), delta=0.02)
            self.assertAlmostEqual(death.missed, 0.5 + 3 * step, delta=0.01)

    def test_a_server_with_a_log_repeats_no_step(self):
        death, step = self.deaths("server killed, log")
        self.assertEqual(death.repeated, 0)
        away = 0.5 - 1.5 / 11 * step  # workers continue for a visit and a half of eleven
        self.assertAlmostEqual(death.total, 3 * away, delta=0.05)
        self.assertAlmostEqual(death.missed, away + (1 - accuracy.DEATH_AT) * step, delta=0.02)

    def test_a_replaced_worker_restarts_a_sealed_step(self):
        death, step = self.deaths("worker killed, sealed")
        self.assertEqual(death.repeated, 0)
        self.assertAlmostEqual(death.missed, 0.5 + step, delta=0.01)
        self.assertAlmostEqual(death.total, 3 * (0.5 + accuracy.DEATH_AT * step), delta=0.02)


class Figures(unittest.TestCase):
    def test_a_difference_is_relative_to_the_measurement(self):
        self.assertAlmostEqual(accuracy.difference(figure(2.0, 1.8)), -0.1)

    def test_the_goal_is_about_the_median_and_inclusive(self):
        self.assertTrue(accuracy.is_met([figure(1.0, 1.1), figure(1.0, 1.1), figure(1.0, 9.0)]))
        self.assertTrue(accuracy.is_met([figure(2.0, 2.0 - 0.2999)]))
        self.assertFalse(accuracy.is_met([figure(1.0, 1.16)]))
        self.assertFalse(accuracy.is_met([figure(1.0, 0.84)]))

    def test_whole_numbers_are_equal_in_every_round(self):
        self.assertTrue(accuracy.is_met([figure(2, 2, 0), figure(0, 0, 0)]))
        self.assertFalse(accuracy.is_met([figure(2, 2, 0), figure(100, 101, 0)]))

    def test_the_table_has_every_figure_and_verdict(self):
        rounds = [[figure(1.0, 1.0), figure(10.0, 20.0)], [figure(1.2, 1.0), figure(10.0, 20.0)]]
        lines, met = accuracy.table({"a": rounds})
        self.assertFalse(met)
        self.assertEqual(len(lines), 3)
        self.assertIn("1.100 [1.000..1.200]", lines[1])
        self.assertTrue(lines[1].endswith("met"))
        self.assertIn("100.0 [100.0..100.0]", lines[2])
        self.assertTrue(lines[2].endswith("MISSED"))
        self.assertTrue(accuracy.table({"a": [[figure(1.0, 1.0)]]})[1])

    def test_all_deaths_lie_in_the_run(self):
        with self.assertRaises(SystemExit):
            options(f"--steps={accuracy.STEPS_OF_DEATHS[-1] - accuracy.BEGIN}")
        self.assertEqual(options("--rounds=2").rounds, 2)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
