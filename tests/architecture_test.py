"""Holds the arrows between the rooms: who may include whom, and where a library may be seen.

It reads the includes of every source and the deps of every BUILD file. The rules are data at the
top; planted violations below prove that each of them can fail.
"""

import ast
import collections
import re
import unittest

import source_tree

BASE = {"proto", "spec", "common"}
# Each room with the rooms that it may see besides itself. A room that is not here is unknown, and
# that is a violation too: a new room has to say where it stands.
ROOMS = {
    "common": set(),
    "proto": set(),
    "spec": {"common", "proto"},
    "wire": BASE,
    "compression": BASE,
    "optimizer": BASE,
    "storage": BASE | {"compression", "optimizer"},
    "eps_server": BASE | {"wire", "compression", "optimizer", "storage"},
    "worker": BASE | {"wire", "compression"},
    "planner": BASE | {"compression", "optimizer"},
    "verify": BASE | {"wire", "compression", "optimizer", "storage", "worker"},
    "cli": BASE | {"wire", "compression", "optimizer", "storage", "eps_server", "worker",
                   "planner", "verify"},
    "bench": BASE | {"wire", "compression", "optimizer", "storage", "eps_server", "worker",
                     "planner", "verify", "cli"},
    "tests": BASE | {"wire", "compression", "optimizer", "storage", "eps_server", "worker",
                     "planner", "verify", "cli"},
}

Library = collections.namedtuple("Library", "name includes labels allowed reason")
TORCH_ROOMS = ("worker/exec", "worker/tiles", "worker/models", "verify", "bench", "tests")
GRPC_FREE = ("eps_server/core", "storage", "compression", "optimizer", "spec", "common")
LIBRARIES = [
    Library("LibTorch", re.compile(r"(?:torch|ATen|c10)/"), re.compile(r"@libtorch//"),
            lambda folder: is_under(folder, TORCH_ROOMS),
            f"only {', '.join(TORCH_ROOMS)} may see it"),
    Library("gRPC", re.compile(r"(?:grpcpp|grpc)/|.*\.grpc\.pb\.h$"),
            re.compile(r"@sys//:grpc$|//proto:eps_v1$"),
            lambda folder: not is_under(folder, GRPC_FREE),
            f"{', '.join(GRPC_FREE)} stay free of it"),
]
# Rooms whose binaries may not even link LibTorch, by whatever way it comes.
TORCH_FREE = ("eps_server", "cli", "storage", "optimizer", "compression", "spec", "common", "wire",
              "worker/client", "worker/relay", "worker/data")
# Deterministic code: it is told the time and never asks for it.
CLOCKLESS = ("eps_server/core", "spec")
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
    return path.split("/", 1)[0] if "/" in path else ""


def is_test(path):
    return bool(re.search(r"_test\.\w+$", path))


def includes_of(text):
    """(line number, path, whether in quotes) of each include."""
    code = source_tree.cpp_code(text, keep_strings=True)
    return [(number, match.group(2), match.group(1) == '"')
            for number, match in source_tree.matches(INCLUDE, code)]


def seen_room(include, known_rooms):
    """The room that an include path lies in; None: a library's. Generated messages are proto."""
    if include.startswith("eps/v1/"):
        return "proto"
    room = room_of(include)
    return room if room in known_rooms else None


def arrow_violation(from_path, to_room):
    room = room_of(from_path)
    if room not in ROOMS:
        return f"room {room}/ is unknown; give it a line in tests/architecture_test.py"
    if to_room is None or to_room == room or to_room in ROOMS[room]:
        return None
    allowed = ", ".join(sorted(ROOMS[room])) or "nothing"
    return f"{room} may not see {to_room} (it may see {allowed})"


def include_violations(path, text, folders):
    """`folders`: top-level folders of the tree, so that an unlisted room is seen as one."""
    for number, include, _ in includes_of(text):
        violation = arrow_violation(path, seen_room(include, set(ROOMS) | folders))
        if violation:
            yield f"{path}:{number}: includes {include}: {violation}"
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
    """The texts in an expression, of every branch of a select() but not its conditions."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    parts = node.values if isinstance(node, ast.Dict) else ast.iter_child_nodes(node)
    return [text for part in parts for text in strings_in(part)]


def targets_of(path, text):
    """The rules of a BUILD file."""
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
                violation = arrow_violation(target.folder + "/", room_of(dep[2:].replace(":", "/")))
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
    """RocksDB is behind one target, the catalogue's; tests beside it may see it, too, and the
    benchmarks, which measure against it.

    `sources`: path -> text.
    """
    targets = [t for t in targets if t.folder != "bench"]
    files = {path for path, text in sources.items() if not path.startswith("bench/") and
             any(include.startswith("rocksdb/") for _, include, _ in includes_of(text))}
    users = [t for t in targets
             if "@sys//:rocksdb" in t.deps or files & {f"{t.folder}/{f}" for f in t.files}]
    owners = [t for t in users if t.kind != "cc_test"]
    strangers = [t for t in users if t.kind == "cc_test" and t.folder not in
                 {owner.folder for owner in owners}]
    if len(owners) > 1 or strangers:
        labels = ", ".join(sorted(t.label for t in owners + strangers))
        yield (f"RocksDB is seen by {labels}; one target (the catalogue's) may see it, and tests "
               "beside it")
    owned = {f"{t.folder}/{f}" for t in users for f in t.files}
    for path in sorted(files - owned):
        yield f"{path}: includes RocksDB's headers and belongs to no target that depends on it"


class PlantedViolations(unittest.TestCase):
    """Each rule finds what it is for, and lets its neighbour pass."""

    def includes(self, path, include):
        return list(include_violations(path, f"// x\n#include {include}\n", {"newroom", "docs"}))

    def test_arrows_between_rooms(self):
        cases = [
            ("common/a.h", '"base/job/rng.h"'), ("spec/a.h", '"compression/codec.h"'),
            ("compression/a.cc", '"optimizer/a.h"'), ("optimizer/a.cc", '"storage/a.h"'),
            ("storage/a.cc", '"eps_server/core/a.h"'), ("worker/relay/a.h", '"eps_server/a.h"'),
            ("worker/a.cc", '"storage/state_backend.h"'), ("worker/a.cc", '"optimizer/a.h"'),
            ("eps_server/shell/a.cc", '"worker/relay/relay.h"'),
            ("verify/a.cc", '"eps_server/core/shard_core.h"'), ("cli/a.cc", '"tests/a.h"'),
            ("common/a.h", '"eps/v1/data.pb.h"'), ("common/a.h", '"newroom/a.h"'),
            ("newroom/a.h", '"base/ids.h"'),
        ]
        for path, include in cases:
            self.assertEqual(len(self.includes(path, include)), 1, (path, include))
        for path, include in [
                ("spec/a.h", '"base/ids.h"'), ("storage/a.cc", '"optimizer/update_rule.h"'),
                ("worker/client/a.cc", '"eps/v1/data.pb.h"'), ("worker/a.cc", '"wire/channel.h"'),
                ("tests/a.cc", '"eps_server/core/a.h"'), ("common/a.cc", '"yaml-cpp/yaml.h"'),
                ("common/a.cc", "<vector>"), ("common/a.cc", '"absl/status/status.h"')]:
            self.assertEqual(self.includes(path, include), [], (path, include))

    def test_libraries_stay_in_their_rooms(self):
        for path, include in [
                ("worker/relay/a.cc", '"torch/torch.h"'), ("worker/client/a.cc", "<ATen/ATen.h>"),
                ("cli/a.cc", '"c10/core/Device.h"'), ("eps_server/main.cc", "<torch/all.h>"),
                ("eps_server/core/a.h", "<grpcpp/grpcpp.h>"), ("storage/a.cc", '"grpc/grpc.h"'),
                ("spec/a.cc", '"grpcpp/server.h"')]:
            self.assertEqual(len(self.includes(path, include)), 1, (path, include))
        for path, include in [
                ("worker/exec/a.cc", '"ATen/ops/addmm.h"'), ("worker/models/gpt2/a.cc", "<c10/a>"),
                ("eps_server/rpc/a.cc", '"grpcpp/server.h"'),
                ("worker/client/a.cc", '"eps/v1/data.grpc.pb.h"'),
                ("eps_server/core_tools/a.cc", "<grpcpp/a.h>")]:
            self.assertEqual(self.includes(path, include), [], (path, include))
        # Two rules, two violations: generated services are gRPC, and storage may see proto only.
        self.assertEqual(len(self.includes("storage/a.cc", '"eps/v1/data.grpc.pb.h"')), 1)

    def test_deterministic_rooms_ask_for_no_time(self):
        for header in ("thread", "chrono", "fstream", "mutex"):
            self.assertEqual(len(self.includes("eps_server/core/a.cc", f"<{header}>")), 1, header)
            self.assertEqual(self.includes("eps_server/shell/a.cc", f"<{header}>"), [])
            self.assertEqual(self.includes("eps_server/core/a_test.cc", f"<{header}>"), [])
        self.assertEqual(list(include_violations(
            "spec/a.cc", "// #include <thread>\n/*\n#include <chrono>\n*/\n", set())), [])

    def test_deterministic_rooms_name_no_clock_thread_or_file(self):
        for use in ("std::chrono::steady_clock::now();", "std::thread t;", "std::ofstream f;",
                    "clock_gettime(x);", "MutexLock l(&m);", "fopen(p);", "std::random_device r;"):
            for path in ("spec/a.cc", "eps_server/core/a.h"):
                found = list(clock_use_violations(path, f"int timer;\nvoid f() {{ {use} }}\n"))
                self.assertEqual(len(found), 1, found)
                self.assertIn(f"{path}:2", found[0])
            self.assertEqual(list(clock_use_violations("storage/a.cc", use)), [])
            self.assertEqual(list(clock_use_violations("spec/a.cc", "// " + use)), [])

    def deps(self, folder, deps):
        build = f"cc_library(name = 'x', srcs = ['x.cc'], deps = {deps})"
        return list(dep_violations(list(targets_of(folder + "/BUILD", build))))

    def test_deps_follow_the_same_arrows(self):
        for folder, dep in [("worker/relay", "//storage:dram"), ("common", "//spec"),
                            ("worker/client", "@libtorch//:torch"), ("storage", "@sys//:grpc"),
                            ("eps_server/core", "//proto:eps_v1"), ("newroom", "//common:ids")]:
            self.assertEqual(len(self.deps(folder, [dep])), 1, (folder, dep))
        for folder, dep in [("worker/relay", "//spec"), ("worker/exec", "@libtorch//:torch"),
                            ("eps_server/rpc", "@sys//:grpc"), ("spec", ":rng"),
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
        self.assertEqual(len(found({}, beside)), 2)  # the catalogue has no target then
        self.assertEqual(len(found({"eps_server/a.cc": "#include <rocksdb/db.h>\n"}, catalog)), 1)
        self.assertEqual(found({"bench/a.cc": "#include <rocksdb/db.h>\n"}, catalog), [])


class Tree(unittest.TestCase):
    """The rules over the tree."""

    @classmethod
    def setUpClass(cls):
        cls.sources = {p: source_tree.read(p) for p in source_tree.files()
                       if source_tree.is_cpp(p) and not source_tree.is_third_party(p)}
        cls.folders = {room_of(p) for p in source_tree.files() if "/" in p}
        cls.targets = [t for p in source_tree.build_files()
                       for t in targets_of(p, source_tree.read(p))]

    def assert_none(self, violations):
        violations = list(violations)
        if violations:
            self.fail("\n" + "\n".join(violations))

    def test_the_tree_was_found(self):
        self.assertIn("base/ids.h", self.sources)
        self.assertIn("//common:ids", {t.label for t in self.targets})

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
