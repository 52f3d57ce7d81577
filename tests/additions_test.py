"""Limits the files that name an optimizer, a model or a key.

A new optimizer, model or setting is cheap as long as only its own files contain its name and all
other code loops over rows. The names are read from the tables in base/job and from the reference
page. RATCHET lists the rooms that still name them elsewhere, with their number of files: the test
fails if that number grows, and also if it shrinks without its entry. docs/guides/extend.md lists
the files of each addition.
"""

import collections
import re
import unittest

import source_tree

# The files that may contain a name, by kind; a folder means everything below it.
OWN = {
    "optimizer": ("base/job/optimizers.h", "base/job/optimizers.cc", "optimizer/rules/",
                  "planner/papers/"),  # papers name the optimizers that they measured
    "model": ("base/job/models/", "worker/models/", "worker/relay/synthetic_runtime.h",
              "worker/relay/synthetic_runtime.cc", "verify/models/", "planner/papers/"),
    "schedule parameter": ("base/job/schedule.h", "base/job/schedule.cc"),
    "key": ("base/job/", "base/config/"),
}
# (kind, room): number of the room's files that contain a name although they may not.
RATCHET = {
    ("optimizer", "cli"): 3,
    ("model", "cli"): 3,
    ("model", "worker"): 1,
    ("schedule parameter", "cli"): 1,
    ("key", "checkpoint"): 2,
    ("key", "cli"): 3,
    ("key", "compression"): 1,
    ("key", "verify"): 1,
    ("key", "worker"): 2,
}

# Code that is not part of the product may compare by name.
NOT_PRODUCT = re.compile(r"^(?:bench|tests|third_party)/|(?:^|/)testing/|_test\.\w+$|\.cuh?$")
NAMES = r"kNames<{0}>\s*=\s*\{{([^}}]*)\}}"
ENUMERATORS = r"enum class {0}\s*\{{([^}}]*)\}}"
SCHEDULE_STRUCT = re.compile(r"struct ScheduleSpec \{(.*?)\n\};", re.DOTALL)


def enumeration(text, name):
    """Returns the names of an enumeration in texts, and its enumerators."""
    names = re.findall(r'"(\w+)"', re.search(NAMES.format(name), text).group(1))
    enumerators = re.findall(r"\bk\w+", re.search(ENUMERATORS.format(name), text).group(1))
    return names, enumerators


def name_pattern(names, enumerators):
    """Returns a pattern that matches a name as a word, or capitalized as a part of one: "sgd",
    SgdRule, OptimizerName::kSgd."""
    lower = "|".join(re.escape(name) for name in names)
    capital = "|".join({e[1:] for e in enumerators} | {n[0].upper() + n[1:] for n in names})
    return re.compile(rf"(?<![a-zA-Z])(?:{lower})(?![a-z])|(?:{capital})(?![a-z])")


def patterns(read):
    """Returns {kind: pattern over code and strings}. `read` returns the text of a path."""
    optimizers, optimizer_enumerators = enumeration(read("base/job/optimizers.h"), "OptimizerName")
    models, model_enumerators = enumeration(read("base/job/models/model_spec.h"), "ModelType")
    if models[-1] != "program" or model_enumerators[-1] != "kProgram":
        raise AssertionError("the last type of a model is the one of those that come as data")
    if optimizers[-1] != "plugin" or optimizer_enumerators[-1] != "kPlugin":
        raise AssertionError("the last optimizer is the one of those that come as objects")
    # Their names are words of everyday use, and stand for no particular model or optimizer.
    models, model_enumerators = models[:-1], model_enumerators[:-1]
    optimizers, optimizer_enumerators = optimizers[:-1], optimizer_enumerators[:-1]
    if len(optimizers) != len(optimizer_enumerators) or len(models) != len(model_enumerators):
        raise AssertionError("an enumeration and its names differ in length")
    fields = re.findall(r"^\s*(?:double|uint64_t) (\w+) = ",
                        SCHEDULE_STRUCT.search(read("base/job/schedule.h")).group(1), re.MULTILINE)
    # Fields with words of everyday use would be found everywhere.
    fields = [field for field in fields if field not in ("power", "warmup_steps")]
    keys = re.findall(r"^\| `([\w.]+)` \|", read("docs/reference/config.md"), re.MULTILINE)
    return {
        "optimizer": name_pattern(optimizers, optimizer_enumerators),
        "model": name_pattern(models, model_enumerators),
        "schedule parameter": re.compile(r"\b(?:" + "|".join(fields) + r")\b"),
        "key": re.compile('"(?:' + "|".join(re.escape(key) for key in keys) + ')"'),
    }


def is_own(kind, path):
    return any(path == own or (own.endswith("/") and path.startswith(own)) for own in OWN[kind])


def strangers(kind, pattern, sources):
    """Yields (path, line, match) of the first name in each product file that may not contain it.

    `sources`: path -> text.
    """
    for path, text in sorted(sources.items()):
        if NOT_PRODUCT.search(path) or is_own(kind, path):
            continue
        code = re.sub(r"^[ \t]*#[ \t]*include.*$", "",
                      source_tree.cpp_code(text, keep_strings=True), flags=re.MULTILINE)
        for line, match in source_tree.matches(pattern, code):
            yield path, line, match.group()
            break


def violations(kind, pattern, sources, ratchet):
    found = collections.defaultdict(list)
    for path, line, name in strangers(kind, pattern, sources):
        found[path.split("/", 1)[0]].append(f"{path}:{line}: names {name}")
    for room in sorted(set(found) | {r for k, r in ratchet if k == kind}):
        allowed = ratchet.get((kind, room), 0)
        if len(found[room]) > allowed:
            yield (f"{kind}: {len(found[room])} files of {room}/ name one, {allowed} may:\n  " +
                   "\n  ".join(found[room]))
        elif len(found[room]) < allowed:
            yield (f"{kind}: {room}/ is down to {len(found[room])} files, RATCHET allows "
                   f"{allowed}: lower it")


class PlantedViolations(unittest.TestCase):
    """Checks that each rule finds its violation and accepts the nearest legal text."""

    @classmethod
    def setUpClass(cls):
        cls.patterns = patterns(source_tree.read)

    def found(self, kind, path, text, ratchet=None):
        return list(violations(kind, self.patterns[kind], {path: text}, ratchet or {}))

    def test_a_branch_on_an_optimizer(self):
        for text in ("if (spec.name == OptimizerName::kAdamW) return 12;", 'name == "sgd"',
                     "SgdScalars scalars;", "case OptimizerName::kSgd:", "kSgdFields",
                     "kAdamWFields"):
            self.assertEqual(len(self.found("optimizer", "storage/a.cc", text)), 1, text)
            for path in ("base/job/optimizers.cc", "optimizer/rules/sgd.cc",
                         "storage/a_test.cc", "storage/testing/a.cc", "bench/a.cc"):
                self.assertEqual(self.found("optimizer", path, text), [], path)
        for text in ("// as AdamW does", "for (const OptimizerRow& row : Optimizers()) {}", "msgd"):
            self.assertEqual(self.found("optimizer", "storage/a.cc", text), [], text)

    def test_a_branch_on_a_model(self):
        for text in ("spec.model.type == ModelType::kGpt2", "spec.model.gpt2.n_embd",
                     'type == "gpt2"', "Gpt2Config c;", "model.synthetic.tied"):
            self.assertEqual(len(self.found("model", "planner/a.cc", text)), 1, text)
            self.assertEqual(self.found("model", "base/job/models/gpt2.cc", text), [])
            self.assertEqual(self.found("model", "worker/models/gpt2.cc", text), [])
        for text in ("FamilyOf(spec.model.type).width(spec.model)", '#include "a/gpt2.h"'):
            self.assertEqual(self.found("model", "planner/a.cc", text), [], text)

    def test_a_key_that_is_written_a_second_time(self):
        for text in ('Refuse("training.steps")', '{"optimizer.lr", 1}'):
            self.assertEqual(len(self.found("key", "cli/a.cc", text)), 1, text)
            self.assertEqual(self.found("key", "base/job/a.cc", text), [], text)
        for text in ('"set training.steps=5"', '"training.stepz"', 'Key(training.steps)'):
            self.assertEqual(self.found("key", "cli/a.cc", text), [], text)

    def test_a_schedule_parameter_outside_of_its_formula(self):
        for text in ("schedule.num_cycles", '"min_lr_ratio"'):
            self.assertEqual(len(self.found("schedule parameter", "eps_server/a.cc", text)), 1)
            self.assertEqual(self.found("schedule parameter", "base/job/schedule.cc", text), [])

    def test_the_ratchet_only_falls(self):
        text = "OptimizerName::kSgd"
        for ratchet, count in [({}, 1), ({("optimizer", "storage"): 1}, 0),
                               ({("optimizer", "storage"): 2}, 1), ({("model", "storage"): 1}, 1)]:
            self.assertEqual(len(self.found("optimizer", "storage/a.cc", text, ratchet)), count)
        self.assertEqual(
            len(list(violations("optimizer", self.patterns["optimizer"], {},
                                {("optimizer", "storage"): 1}))), 1)


class Tree(unittest.TestCase):
    """Applies the rules to the tree."""

    def test_names_stay_in_their_files(self):
        sources = {p: source_tree.read(p) for p in source_tree.files() if source_tree.is_cpp(p)}
        self.assertGreater(len(sources), 100)
        found = [v for kind, pattern in patterns(source_tree.read).items()
                 for v in violations(kind, pattern, sources, RATCHET)]
        if found:
            self.fail("\n" + "\n".join(found))

    def test_own_files_are_in_the_tree(self):
        paths = source_tree.files()
        for kind, owns in OWN.items():
            for own in owns:
                self.assertTrue(any(p == own or p.startswith(own) for p in paths), (kind, own))


if __name__ == "__main__":
    source_tree.main()
