"""Tests how the last line of ./test is counted."""

import os
import tempfile
import unittest

import count_tests
import source_tree


def summary(label, status):
    return {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}


class Counting(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(self.folder.cleanup)

    def result(self, label, xml):
        name = label.strip("/").replace(":", "_").replace("/", "_") + " xml"
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(xml)
        uri = "file://" + path.replace(" ", "%20")
        return {"id": {"testResult": {"label": label}},
                "testResult": {"testActionOutput": [{"name": "test.log", "uri": uri},
                                                    {"name": "test.xml", "uri": uri}]}}

    def test_counts_gtest_and_bazel_cases_and_names_failures(self):
        gtest = """<testsuites tests="4"><testsuite name="A">
            <testcase name="Passes" status="run" result="completed" classname="A" />
            <testcase name="Fails" status="run" result="completed" classname="A">
              <failure message="a.cc:3&#x0A;1 is not 2"></failure></testcase>
            <testcase name="DISABLED_Rests" status="notrun" result="suppressed" classname="A" />
            <testcase name="Skips" status="run" result="skipped" classname="A"><skipped/></testcase>
            </testsuite></testsuites>"""
        script = """<testsuites><testsuite name="s"><testcase name="s" status="run"></testcase>
            </testsuite></testsuites>"""
        passed, failed = count_tests.count([
            self.result("//a:a_test", gtest), summary("//a:a_test", "FAILED"),
            self.result("//b:s_test", script), summary("//b:s_test", "PASSED")])
        self.assertEqual(passed, 2)
        self.assertEqual(failed, ["//a:a_test A.Fails\n    a.cc:3\n    1 is not 2"])

    def test_shows_the_end_of_the_output_of_a_crash(self):
        crash = """<testsuites><testsuite name="s"><testcase name="s">
            <error message="exited with error code 134"></error></testcase>
            <system-out><![CDATA[[ RUN ] A.Fails\n\nbroken: x == y\n]]></system-out>
            </testsuite></testsuites>"""
        self.assertEqual(
            count_tests.count([self.result("//a:a_test", crash), summary("//a:a_test", "FAILED")]),
            (0, ["//a:a_test s\n    [ RUN ] A.Fails\n    broken: x == y"]))

    def test_a_target_failing_without_a_failed_case_counts_once(self):
        clean = "<testsuite><testcase name='x'/></testsuite>"
        passed, failed = count_tests.count([
            self.result("//a:leaks_test", clean), summary("//a:leaks_test", "FAILED"),
            summary("//a:slow_test", "TIMEOUT"), summary("//a:broken_test", "FAILED_TO_BUILD"),
            self.result("//a:torn_test", "<testsuite><testca"), summary("//a:torn_test", "PASSED")])
        self.assertEqual(passed, 1)
        self.assertEqual(failed, ["//a:broken_test (failed to build)", "//a:leaks_test (failed)",
                                  "//a:slow_test (timeout)",
                                  "//a:torn_test (no readable test.xml)"])

    def test_reads_events_up_to_a_truncated_line(self):
        path = os.path.join(self.folder.name, "events")
        with open(path, "w", encoding="utf-8") as out:
            out.write('{"id": {}}\n{"id": {"te')
        self.assertEqual(count_tests.read_events(path), [{"id": {}}])


if __name__ == "__main__":
    source_tree.main()
