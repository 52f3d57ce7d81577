"""Counts the test cases of one bazel run from its build event file.

Prints the failed cases with the beginning of their message, or with the end of the output if they
have none, and "N passed, N failed" alone on the last line. The event file names the
test.xml of every target that ran or was cached. A search through bazel-testlogs would also count
results of targets that no longer exist.

A target that failed without naming a failed case (a crash, a timeout, a broken build) counts as
one failed case. Skipped and disabled cases do not count. The exit code is 0 only if something
passed and nothing failed.
"""

import json
import sys
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree

REASON_LINES = 6


def read_events(path):
    """Returns the events of a --build_event_json_file up to the first truncated line."""
    events = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return events


def path_of(uri):
    return urllib.request.url2pathname(urllib.parse.urlparse(uri).path)


def indented(lines):
    return "".join(f"\n    {line.strip()}" for line in lines)


def cases_of(xml_path):
    """Returns (name, state) of every case in a test.xml; state is passed, failed or skipped.

    The name of a failed case is followed by some lines that say why.
    """
    cases = []
    root = ElementTree.parse(xml_path)
    output = [line for log in root.iter("system-out") for line in (log.text or "").splitlines()
              if line.strip()]
    for case in root.iter("testcase"):
        name = ".".join(filter(None, [case.get("classname"), case.get("name")]))
        if case.find("failure") is not None:
            state = "failed"
            name += indented(case.find("failure").get("message", "").splitlines()[:REASON_LINES])
        elif case.find("error") is not None:
            state = "failed"
            name += indented(output[-REASON_LINES:])
        elif case.find("skipped") is not None or case.get("status") == "notrun" or (
                case.get("result") in ("skipped", "suppressed")):
            state = "skipped"
        else:
            state = "passed"
        cases.append((name, state))
    return cases


def count(events):
    """Returns (number of passed cases, names of failed cases) of a run."""
    xml_of_target = {}
    status_of_target = {}
    for event in events:
        identity = event.get("id", {})
        if "testResult" in event:
            label = identity["testResult"]["label"]
            for output in event["testResult"].get("testActionOutput", []):
                if output["name"] == "test.xml":
                    xml_of_target.setdefault(label, []).append(path_of(output["uri"]))
        elif "testSummary" in event:
            status_of_target[identity["testSummary"]["label"]] = (
                event["testSummary"]["overallStatus"])
    passed = 0
    failed = []
    for label, status in sorted(status_of_target.items()):
        failed_here = []
        for xml_path in xml_of_target.get(label, []):
            try:
                cases = cases_of(xml_path)
            except (OSError, ElementTree.ParseError):
                cases = [("(no readable test.xml)", "failed")]
            passed += sum(state == "passed" for _, state in cases)
            failed_here += [f"{label} {name}" for name, state in cases if state == "failed"]
        if status != "PASSED" and not failed_here:
            failed_here = [f"{label} ({status.lower().replace('_', ' ')})"]
        failed += failed_here
    return passed, failed


def main():
    passed, failed = count(read_events(sys.argv[1]))
    for name in failed:
        print(f"failed: {name}")
    print(f"{passed} passed, {len(failed)} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
