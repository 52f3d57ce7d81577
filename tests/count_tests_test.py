"""Tests the counting behind the last line of ./test."""

import os
import sys
import tempfile
import unittest

import source_tree

sys.path.insert(0, str(source_tree.ROOT / "tools"))
import count_tests  # pylint: disable=wrong-import-position


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

    def test_counts_cases_of_gtest_and_of_bazel_and_names_the_failed(self):
        gtest = """<testsuites tests="4"><testsuite name="A">
            <testcase name="Passes" status="run" result="completed" classname="A" />
            <testcase name="Fails" status="run" result="completed" classname="A">
              <failure message="no"></failure></testcase>
            <testcase name="DISABLED_Rests" status="notrun" result="suppressed" classname="A" />
            <testcase name="Skips" status="run" result="skipped" classname="A"><skipped/></testcase>
            </testsuite></testsuites>"""
        script = """<testsuites><testsuite name="s"><testcase name="s" status="run"></testcase>
            </testsuite></testsuites>"""
        passed, failed = count_tests.count([
            self.result("//a:a_test", gtest), summary("//a:a_test", "FAILED"),
            self.result("//b:s_test", script), summary("//b:s_test", "PASSED")])
        self.assertEqual(passed, 2)
        self.assertEqual(failed, ["//a:a_test A.Fails"])

    def test_a_target_that_fails_without_a_failed_case_counts_as_one(self):
        clean = "<testsuite><testcase name='x'/></testsuite>"
        passed, failed = count_tests.count([
            self.result("//a:leaks_test", clean), summary("//a:leaks_test", "FAILED"),
            summary("//a:slow_test", "TIMEOUT"), summary("//a:broken_test", "FAILED_TO_BUILD"),
            self.result("//a:torn_test", "<testsuite><testca"), summary("//a:torn_test", "PASSED")])
        self.assertEqual(passed, 1)
        self.assertEqual(failed, ["//a:broken_test (failed to build)", "//a:leaks_test (failed)",
                                  "//a:slow_test (timeout)",
                                  "//a:torn_test (no readable test.xml)"])

    def test_reads_events_up_to_a_line_that_was_cut_off(self):
        path = os.path.join(self.folder.name, "events")
        with open(path, "w", encoding="utf-8") as out:
            out.write('{"id": {}}\n{"id": {"te')
        self.assertEqual(count_tests.read_events(path), [{"id": {}}])


if __name__ == "__main__":
    source_tree.main()
