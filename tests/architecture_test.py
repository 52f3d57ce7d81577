"""Checks the allowed dependencies between rooms, and the rooms that may use a library.

The test reads the includes of every source and the deps of every BUILD file. rooms.bzl lists the
allowed dependencies, from which Bazel also derives the visibility of targets; the rules for
libraries are data at the top of this file. The planted violations below prove that each rule can
fail.
"""

import ast
import collections
import re
import unittest

import source_tree

ROOMS_FILE = "rooms.bzl"


def read_rooms(text):
    """Returns the dictionary of rooms.bzl, whose Starlark is also valid Python."""
    names = {}
    exec(compile(text, ROOMS_FILE, "exec"), names)  # pylint: disable=exec-used
    return names["ROOMS"]


ROOMS = read_rooms(source_tree.read(ROOMS_FILE))

Library = collections.namedtuple("Library", "name includes labels allowed reason")
TORCH_ROOMS = ("worker/exec", "worker/models", "verify", "bench", "tests")
GRPC_FREE = ("eps_server/core", "storage", "compression", "optimizer", "base")
LIBRARIES = [
    Library("LibTorch", re.compile(r"(?:torch|ATen|c10)/"), re.compile(r"@libtorch//"),
            lambda folder: is_under(folder, TORCH_ROOMS),
            f"only {', '.join(TORCH_ROOMS)} may see it"),
    Library("gRPC", re.compile(r"(?:grpcpp|grpc)/|.*\.grpc\.pb\.h$"),
            re.compile(r"@sys//:grpc$|//proto:eps_v1$"),
            lambda folder: not is_under(folder, GRPC_FREE),
            f"{', '.join(GRPC_FREE)} stay free of it"),
]
# Rooms that are not part of the product and may use its code for tests.
TEST_ROOMS = ("bench", "tests")
# Rooms whose binaries may not link LibTorch, not even indirectly.
TORCH_FREE = ("eps_server", "cli", "checkpoint", "storage", "optimizer", "compression", "base",
              "wire", "worker/client", "worker/relay", "worker/data")
# Deterministic rooms: callers pass them the time, and they never read a clock.
CLOCKLESS = ("eps_server/core", "base/job")
CLOCK_HEADERS = re.compile(
    r"(?:thread|chrono|ctime|fstream|filesystem|future|mutex|condition_variable|shared_mutex)$")

CLOCK_WORDS = re.compile(
    r"\bstd::(?:chrono|j?thread|mutex|condition_variable|[io]?fstream|random_device)\b|"
    r"\b(?:Mutex|MutexLock|CondVar|ThreadPool|clock_gettime|gettimeofday|fopen|getenv)\b")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def is_under(folder, roots):
    return any(folder == root or folder.startswith(root + "/") for root in roots)


def folder_of(path):
    return path.rpartition("/")[0]


def room_of(path):
    """Returns the room of a file: the longest row of rooms.bzl that is a folder above it.

    The folder testing/ of a room belongs to the room. Returns the top-level folder of a file in no
    known room.
    """
    folder = folder_of(path).removesuffix("/testing")
    while folder and folder not in ROOMS:
        if "/" not in folder:
            return folder
        folder = folder_of(folder)
    return folder


def is_test(path):
    return bool(re.search(r"_test\.\w+$", path))


def is_test_code(path):
    return is_test(path) or "/testing/" in path


def includes_of(text):
    """Returns (line number, path, whether in quotes) of each include."""
    code = source_tree.cpp_code(text, keep_strings=True)
    return [(number, match.group(2), match.group(1) == '"')
            for number, match in source_tree.matches(INCLUDE, code)]


def seen_room(include, top_folders):
    """Returns the room of an include path, None for a library. Generated messages are in proto."""
    if include.startswith("eps/v1/"):
        return "proto"
    return room_of(include) if include.split("/", 1)[0] in top_folders else None


def arrow_violation(from_path, to_room):
    room = room_of(from_path)
    if room not in ROOMS:
        return f"room {room}/ is unknown; give it a row in {ROOMS_FILE}"
    seen = set(ROOMS[room])
    if is_test_code(from_path):
        seen.update(ROOMS.get(room + "/testing", []))
        seen.update(above for above in ROOMS if room.startswith(above + "/"))
    if to_room is None or to_room == room or to_room in seen:
        return None
    return f"{room} may not see {to_room} (it may see {', '.join(sorted(seen)) or 'nothing'})"


def include_violations(path, text, folders):
    """Yields violations. `folders`: the top-level folders of the tree, to detect unlisted rooms."""
    for number, include, _ in includes_of(text):
        violation = arrow_violation(path, seen_room(include, folders))
        if violation:
            yield f"{path}:{number}: includes {include}: {violation}"
        if "/testing/" in include and not is_test_code(path) and not is_under(path, TEST_ROOMS):
            yield f"{path}:{number}: includes {include}: product code sees no code for tests"
        for library in LIBRARIES:
            if library.includes.match(include) and not library.allowed(folder_of(path)):
                yield f"{path}:{number}: includes {include} of {library.name}: {library.reason}"
        if (is_under(path, CLOCKLESS) and not is_test(path) and
                CLOCK_HEADERS.match(include)):
            yield f"{path}:{number}: includes <{include}>: no thread, clock or file here"


Target = collections.namedtuple("Target", "label folder kind files deps line")


def clock_use_violations(path, text):
    if not is_under(path, CLOCKLESS) or is_test(path):
        return
    for number, match in source_tree.matches(CLOCK_WORDS, source_tree.cpp_code(text)):
        yield f"{path}:{number}: uses {match.group()}: no thread, clock or file here"


def absolute(label, folder):
    if label.startswith(":"):
        return f"//{folder}{label}"
    if label.startswith("//") and ":" not in label:
        return f"{label}:{label.rpartition('/')[2]}"
    return label


def strings_in(node):
    """Returns the texts in an expression: all branches of a select(), but not its conditions."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    parts = node.values if isinstance(node, ast.Dict) else ast.iter_child_nodes(node)
    return [text for part in parts for text in strings_in(part)]


def targets_of(path, text):
    """Returns the rules of a BUILD file."""
    folder = folder_of(path)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
            continue
        strings = {k.arg: strings_in(k.value) for k in node.keywords}
        if len(strings.get("name", [])) != 1:
            continue
        deps = strings.get("deps", []) + strings.get("implementation_deps", [])
        deps = [d for d in deps if d.startswith((":", "/", "@"))]
        kind = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        yield Target(absolute(":" + strings["name"][0], folder), folder, kind,
                     strings.get("srcs", []) + strings.get("hdrs", []),
                     [absolute(d, folder) for d in deps], node.lineno)


def dep_violations(targets):
    for target in targets:
        where = f"{target.folder}/BUILD:{target.line}: {target.label}"
        for dep in target.deps:
            if dep.startswith("//"):
                path = target.folder + ("/x_test.cc" if target.kind == "cc_test" else "/x.cc")
                violation = arrow_violation(path, room_of(dep[2:].replace(":", "/")))
                if violation:
                    yield f"{where} depends on {dep}: {violation}"
            for library in LIBRARIES:
                if library.labels.match(dep) and not library.allowed(target.folder):
                    yield f"{where} depends on {dep}: {library.name}: {library.reason}"


def linked_torch_violations(targets):
    deps_of = {target.label: target.deps for target in targets}
    for target in targets:
        if not is_under(target.folder, TORCH_FREE):
            continue
        trails = [[target.label]]
        seen = {target.label}
        while trails:
            trail = trails.pop()
            if trail[-1].startswith("@libtorch//"):
                yield f"{' -> '.join(trail)}: {target.folder} stays free of LibTorch"
                break
            fresh = [d for d in deps_of.get(trail[-1], []) if d not in seen]
            seen.update(fresh)
            trails += [trail + [d] for d in fresh]


def rocksdb_violations(sources, targets):
    """Yields violations of the rule that only the catalogue's store depends on RocksDB, besides the
    test code of its room and the benchmarks that compare with it.

    `sources`: path -> text.
    """
    targets = [t for t in targets if not is_under(t.folder, ["bench"])]
    files = {path for path, text in sources.items() if not path.startswith("bench/") and
             any(include.startswith("rocksdb/") for _, include, _ in includes_of(text))}
    users = [t for t in targets
             if "@sys//:rocksdb" in t.deps or files & {f"{t.folder}/{f}" for f in t.files}]
    test_code = [t for t in users if t.kind == "cc_test" or t.folder.endswith("/testing")]
    owners = [t for t in users if t not in test_code]
    strangers = [t for t in test_code if t.folder.split("/")[0] not in
                 {owner.folder.split("/")[0] for owner in owners}]
    if len(owners) > 1 or strangers:
        labels = ", ".join(sorted(t.label for t in owners + strangers))
        yield (f"RocksDB is seen by {labels}; one target (the catalogue's) may see it, and tests "
               "beside it")
    owned = {f"{t.folder}/{f}" for t in users for f in t.files}
    for path in sorted(files - owned):
        yield f"{path}: includes RocksDB's headers and belongs to no target that depends on it"


class PlantedViolations(unittest.TestCase):
    """Checks that each rule finds its violation and accepts the nearest legal text."""

    FOLDERS = {"newroom", "docs"} | {room.split("/")[0] for room in ROOMS}

    def includes(self, path, include):
        return list(include_violations(path, f"// x\n#include {include}\n", self.FOLDERS))

    def test_arrows_between_rooms(self):
        cases = [
            ("base/a.h", '"base/job/job_spec.h"'), ("base/job/a.h", '"compression/codec.h"'),
            ("base/job/a.h", '"base/config/config.h"'), ("wire/a.cc", '"base/config/config.h"'),
            ("storage/disk/a.cc", '"storage/cuts/cut.h"'),
            ("checkpoint/a.cc", '"cli/launch/plan.h"'),
            ("storage/cuts/a.cc", '"storage/state_backend.h"'),
            ("compression/a.cc", '"optimizer/a.h"'), ("optimizer/a.cc", '"storage/a.h"'),
            ("storage/a.cc", '"eps_server/core/a.h"'), ("worker/relay/a.h", '"eps_server/a.h"'),
            ("worker/a.cc", '"storage/state_backend.h"'), ("worker/a.cc", '"optimizer/a.h"'),
            ("eps_server/shell/a.cc", '"worker/relay/relay.h"'),
            ("verify/a.cc", '"eps_server/core/shard_core.h"'), ("cli/a.cc", '"tests/a.h"'),
            ("base/a.h", '"eps/v1/data.pb.h"'), ("base/a.h", '"newroom/a.h"'),
            ("newroom/a.h", '"base/ids.h"'),
            ("newroom/deep/a.h", '"base/ids.h"'),
        ]
        for path, include in cases:
            self.assertEqual(len(self.includes(path, include)), 1, (path, include))
        for path, include in [
                ("base/job/a.h", '"base/ids.h"'), ("storage/a.cc", '"optimizer/update_rule.h"'),
                ("compression/codecs/mx/a.h", '"base/job/layout/chunk_map.h"'),
                ("storage/cuts/a_test.cc", '"storage/testing/simulated_disk.h"'),
                ("storage/testing/a.cc", '"storage/backends/nvme_backend.h"'),
                ("worker/client/a.cc", '"eps/v1/data.pb.h"'), ("worker/a.cc", '"wire/channel.h"'),
                ("tests/a.cc", '"eps_server/core/a.h"'), ("base/a.cc", '"yaml-cpp/yaml.h"'),
                ("base/a.cc", "<vector>"), ("base/a.cc", '"absl/status/status.h"')]:
            self.assertEqual(self.includes(path, include), [], (path, include))

    def test_product_code_sees_no_test_code(self):
        kit = '"storage/disk/testing/simulated_disk.h"'
        self.assertEqual(len(self.includes("storage/cuts/a.cc", kit)), 1)
        self.assertEqual(self.includes("storage/cuts/a_test.cc", kit), [])
        self.assertEqual(self.includes("storage/testing/a.h", kit), [])
        self.assertEqual(self.includes("bench/a.cc", kit), [])

    def test_libraries_stay_in_their_rooms(self):
        for path, include in [
                ("worker/relay/a.cc", '"torch/torch.h"'), ("worker/client/a.cc", "<ATen/ATen.h>"),
                ("cli/a.cc", '"c10/core/Device.h"'), ("eps_server/main.cc", "<torch/all.h>"),
                ("eps_server/core/a.h", "<grpcpp/grpcpp.h>"), ("storage/a.cc", '"grpc/grpc.h"'),
                ("base/job/a.cc", '"grpcpp/server.h"')]:
            self.assertEqual(len(self.includes(path, include)), 1, (path, include))
        for path, include in [
                ("worker/exec/a.cc", '"ATen/ops/addmm.h"'), ("worker/models/gpt2/a.cc", "<c10/a>"),
                ("eps_server/rpc/a.cc", '"grpcpp/server.h"'),
                ("worker/client/a.cc", '"eps/v1/data.grpc.pb.h"'),
                ("eps_server/core_tools/a.cc", "<grpcpp/a.h>")]:
            self.assertEqual(self.includes(path, include), [], (path, include))
        # Two rules, two violations: generated services are gRPC, and storage sees no messages.
        self.assertEqual(len(self.includes("storage/a.cc", '"eps/v1/data.grpc.pb.h"')), 2)

    def test_deterministic_rooms_ask_for_no_time(self):
        for header in ("thread", "chrono", "fstream", "mutex"):
            self.assertEqual(len(self.includes("eps_server/core/a.cc", f"<{header}>")), 1, header)
            self.assertEqual(self.includes("eps_server/shell/a.cc", f"<{header}>"), [])
            self.assertEqual(self.includes("eps_server/core/a_test.cc", f"<{header}>"), [])
        self.assertEqual(list(include_violations(
            "base/job/a.cc", "// #include <thread>\n/*\n#include <chrono>\n*/\n", set())), [])

    def test_deterministic_rooms_name_no_clock_thread_or_file(self):
        for use in ("std::chrono::steady_clock::now();", "std::thread t;", "std::ofstream f;",
                    "clock_gettime(x);", "MutexLock l(&m);", "fopen(p);", "std::random_device r;"):
            for path in ("base/job/a.cc", "eps_server/core/a.h"):
                found = list(clock_use_violations(path, f"int timer;\nvoid f() {{ {use} }}\n"))
                self.assertEqual(len(found), 1, found)
                self.assertIn(f"{path}:2", found[0])
            self.assertEqual(list(clock_use_violations("storage/a.cc", use)), [])
            self.assertEqual(list(clock_use_violations("base/job/a.cc", "// " + use)), [])

    def deps(self, folder, deps):
        build = f"cc_library(name = 'x', srcs = ['x.cc'], deps = {deps})"
        return list(dep_violations(list(targets_of(folder + "/BUILD", build))))

    def test_deps_follow_the_same_arrows(self):
        for folder, dep in [("worker/relay", "//storage:dram"), ("base", "//base/job"),
                            ("worker/client", "@libtorch//:torch"), ("storage", "@sys//:grpc"),
                            ("eps_server/core", "//proto:eps_v1"), ("newroom", "//base:ids")]:
            self.assertEqual(len(self.deps(folder, [dep])), 1, (folder, dep))
        for folder, dep in [("worker/relay", "//base/job"), ("worker/exec", "@libtorch//:torch"),
                            ("eps_server/rpc", "@sys//:grpc"), ("base/job", ":rng"),
                            ("eps_server/core", "//proto:eps_v1_messages")]:
            self.assertEqual(self.deps(folder, [dep]), [], (folder, dep))
        build = "cc_library(name = 'x', deps = [':a'] + select({'//c:d': ['//storage:s']}))"
        self.assertEqual(len(list(dep_violations(list(targets_of("worker/BUILD", build))))), 1)

    def test_torch_is_not_linked_by_a_detour(self):
        def targets(last):
            return [*targets_of("cli/BUILD", "cc_binary(name='eps', deps=['//worker/exec:e'])"),
                    *targets_of("worker/exec/BUILD",
                                f"cc_library(name='e', deps=[':f'])\n"
                                f"cc_library(name='f', deps=['{last}', ':e'])")]
        found = list(linked_torch_violations(targets("@libtorch//:torch")))
        self.assertEqual(len(found), 1)
        self.assertIn("//cli:eps -> //worker/exec:e -> //worker/exec:f -> @libtorch", found[0])
        self.assertEqual(list(linked_torch_violations(targets("@sys//:absl"))), [])

    def test_rocksdb_is_behind_one_target(self):
        sources = {"storage/catalog.cc": "#include <rocksdb/db.h>\n", "storage/b.cc": ""}
        catalog = "cc_library(name='catalog', srcs=['catalog.cc'], deps=['@sys//:rocksdb'])\n"
        other = "cc_library(name='b', srcs=['b.cc'], deps=['@sys//:rocksdb'])\n"
        def found(more_sources, build):
            return list(rocksdb_violations(dict(sources, **more_sources),
                                           list(targets_of("storage/BUILD", build))))
        self.assertEqual(found({}, catalog), [])
        self.assertEqual(len(found({}, catalog + other)), 1)
        beside = "cc_test(name='t', srcs=['t.cc'], deps=['@sys//:rocksdb'])\n"
        self.assertEqual(found({}, catalog + beside), [])
        self.assertEqual(len(found({}, beside)), 2)  # without the catalogue's target
        recording = list(targets_of("storage/testing/BUILD", other))
        self.assertEqual(list(rocksdb_violations(
            sources, list(targets_of("storage/BUILD", catalog)) + recording)), [])
        elsewhere = "cc_test(name='t', srcs=['t.cc'], deps=['@sys//:rocksdb'])\n"
        self.assertEqual(len(list(rocksdb_violations(sources, [
            *targets_of("storage/BUILD", catalog), *targets_of("cli/BUILD", elsewhere)]))), 1)
        self.assertEqual(len(found({"eps_server/a.cc": "#include <rocksdb/db.h>\n"}, catalog)), 1)
        self.assertEqual(found({"bench/a.cc": "#include <rocksdb/db.h>\n"}, catalog), [])


class Tree(unittest.TestCase):
    """Applies the rules to the tree."""

    @classmethod
    def setUpClass(cls):
        cls.sources = {p: source_tree.read(p) for p in source_tree.files()
                       if source_tree.is_cpp(p) and not source_tree.is_third_party(p)}
        cls.folders = {p.split("/", 1)[0] for p in source_tree.files() if "/" in p}
        cls.targets = [t for p in source_tree.build_files()
                       for t in targets_of(p, source_tree.read(p))]

    def assert_none(self, violations):
        violations = list(violations)
        if violations:
            self.fail("\n" + "\n".join(violations))

    def test_the_tree_was_found(self):
        self.assertIn("base/ids.h", self.sources)
        self.assertIn("//base:ids", {t.label for t in self.targets})

    def test_every_row_is_a_room_with_sources(self):
        folders = {folder_of(p) for p in self.sources} | {"proto", "tests"}
        for room in ROOMS:
            sources = room.removesuffix("/testing")  # tests may be beside the code that they test
            self.assertTrue(any(is_under(f, [sources]) for f in folders), f"{room}: no sources")
            for seen in ROOMS[room]:
                self.assertIn(seen, ROOMS, f"row {room} of {ROOMS_FILE}")

    def test_the_arrows_have_no_cycle(self):
        # The rooms below each room, nearest first.
        def below(room, trail):
            self.assertNotIn(room, trail, f"{ROOMS_FILE}: a cycle {' -> '.join(trail)}")
            for seen in ROOMS[room]:
                if seen != room:
                    below(seen, trail + [room])
        for room in ROOMS:
            if not room.endswith("/testing"):
                below(room, [])

    def test_includes_follow_the_arrows(self):
        self.assert_none(v for path, text in self.sources.items()
                         for v in include_violations(path, text, self.folders))

    def test_deterministic_rooms_use_no_clock(self):
        self.assert_none(v for path, text in self.sources.items()
                         for v in clock_use_violations(path, text))

    def test_deps_follow_the_arrows(self):
        self.assert_none(dep_violations(self.targets))

    def test_torch_free_rooms_link_no_torch(self):
        self.assert_none(linked_torch_violations(self.targets))

    def test_rocksdb_is_behind_one_target(self):
        self.assert_none(rocksdb_violations(self.sources, self.targets))


if __name__ == "__main__":
    source_tree.main()
