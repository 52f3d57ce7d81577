"""Prints the ten most expensive actions and tests of a bazel build and test run.

Arguments: the profile that the build wrote (--profile=FILE.gz), and the events that the test run
wrote (--build_event_json_file). Times are elapsed seconds; cached actions do not count. A missing
file prints nothing.
"""

import gzip
import json
import os
import sys

import count_tests

SHOWN = 10


def actions_of(profile):
    """Yields (seconds, description) of the actions in a profile, which is a Chrome trace."""
    for event in profile["traceEvents"]:
        if event.get("cat") == "action processing":
            yield event.get("dur", 0) / 1e6, event["name"]


def tests_of(events):
    """Yields (seconds, label and shard) of the tests that ran."""
    for event in events:
        if "testResult" in event and "testAttemptDurationMillis" in event["testResult"]:
            identity = event["id"]["testResult"]
            shard = identity.get("shard")
            name = identity["label"] + (f", shard {shard}" if shard else "")
            yield int(event["testResult"]["testAttemptDurationMillis"]) / 1e3, name


def print_dearest(what, costs):
    dearest = sorted(costs, reverse=True)[:SHOWN]
    if dearest:
        print(f"the {len(dearest)} most expensive {what}:")
    for seconds, name in dearest:
        print(f"  {seconds:6.1f} s  {name}")


def main():
    profile, events = sys.argv[1:]
    if os.path.exists(profile):
        with gzip.open(profile, "rt", encoding="utf-8") as text:
            print_dearest("actions", actions_of(json.load(text)))
    if os.path.exists(events):
        print_dearest("tests", tests_of(count_tests.read_events(events)))


if __name__ == "__main__":
    main()
