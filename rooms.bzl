"""The arrows between the rooms, read by Bazel's visibility and by tests/architecture_test.py.

A room is a folder together with the folders below it that have no row of their own. A row names the
rooms that a room may see besides itself. The folder `testing/` of a room belongs to that room: it
holds code for tests and is seen by tests that may see the room. Test code may also see the rooms
above its own, and those in the row `ROOM/testing`, if there is one.
"""

_BASE = ["base", "base/job", "base/files"]
_STORAGE = ["storage", "storage/disk", "storage/records", "storage/cuts", "storage/log",
            "storage/csd", "storage/backends"]
_NUMBERS = ["compression", "optimizer"]
_WORKER = ["worker", "worker/client", "worker/relay", "worker/data", "worker/exec", "worker/models"]
_SERVER = ["eps_server", "eps_server/core", "eps_server/jobs", "eps_server/shell",
           "eps_server/rpc"]
_CLI = ["cli", "cli/commands", "cli/driver", "cli/launch", "cli/measure"]
_PLANNER = ["planner", "planner/papers", "planner/simulator"]
_EVERYTHING = _BASE + _STORAGE + _NUMBERS + _WORKER + _SERVER + _CLI + _PLANNER + [
    "base/config",
    "checkpoint",
    "proto",
    "verify",
    "wire",
]

ROOMS = {
    "base": [],
    "base/testing": ["base/job", "base/files"],
    "base/job": ["base"],
    "base/files": ["base"],
    "base/config": _BASE,
    "proto": [],
    "wire": ["base", "base/job", "base/files", "proto"],
    "compression": ["base", "base/job"],
    "optimizer": ["base", "base/job", "compression"],
    "storage": ["base", "base/job", "storage/disk", "storage/cuts"] + _NUMBERS,
    "storage/testing": _STORAGE,
    "storage/disk": ["base"],
    "storage/records": ["base"],
    "storage/cuts": ["base", "base/job", "storage/disk", "storage/records"] + _NUMBERS,
    "storage/csd": ["base", "base/job", "storage/disk", "storage/records", "storage/cuts"] +
                   _NUMBERS,
    "storage/log": ["base", "base/job", "storage/disk", "storage/cuts"],
    "storage/backends": ["base", "base/job"] + _NUMBERS + _STORAGE,
    "checkpoint": _BASE + ["base/config", "proto", "wire"] + _NUMBERS + _STORAGE,
    "eps_server/core": ["base", "base/job", "proto", "storage", "storage/cuts", "storage/log"] +
                       _NUMBERS,
    "eps_server/core/testing": _STORAGE,
    "eps_server/shell": ["base", "base/job", "proto", "eps_server/core"] + _NUMBERS + _STORAGE,
    "eps_server/shell/testing": ["eps_server"],
    "eps_server/jobs": ["base", "base/job", "proto", "wire", "storage/records", "eps_server/shell"],
    "eps_server/jobs/testing": _STORAGE,
    "eps_server/rpc": ["base", "base/job", "proto", "wire", "compression", "eps_server/core",
                       "eps_server/jobs", "eps_server/shell"],
    "eps_server/rpc/testing": ["eps_server"],
    "eps_server": ["base", "base/job", "proto", "wire"] + _NUMBERS + _STORAGE + _SERVER,
    "worker/client": ["base", "base/job", "proto", "wire", "compression"],
    "worker/relay": ["base", "base/job", "proto", "compression", "worker/client"],
    "worker/relay/testing": ["worker/data"],
    "worker/data": ["base", "base/job", "worker/relay"],
    "worker/models": _BASE + ["base/config", "worker/relay", "worker/exec"],
    "worker/exec": ["base", "base/job", "compression", "storage/disk", "worker/client",
                    "worker/relay"],
    "worker/exec/testing": ["worker/data", "worker/models"],
    "worker": _BASE + ["base/config", "proto", "wire", "compression"] + _WORKER,
    "planner/papers": ["base", "base/job", "compression", "planner"],
    "planner/simulator": ["base", "base/job", "compression", "planner"],
    "planner": _BASE + ["base/config"] + _NUMBERS,
    "planner/testing": ["planner/simulator"],
    "verify": _BASE + ["base/config", "storage"] + _NUMBERS + _WORKER,
    "verify/testing": _STORAGE,
    "cli/launch": _BASE + ["base/config", "checkpoint", "proto", "wire", "storage/cuts",
                           "eps_server", "worker/data", "planner"] + _NUMBERS,
    "cli/driver": _BASE + ["base/config", "checkpoint", "proto", "wire", "storage/cuts"] + _NUMBERS,
    "cli/measure": _BASE + ["base/config", "proto", "wire", "storage/disk", "eps_server", "planner",
                            "worker/client", "cli/launch"] + _NUMBERS,
    "cli/commands": _BASE + ["base/config", "checkpoint", "proto", "wire", "cli/launch",
                             "cli/driver", "cli/measure"] + _NUMBERS + _STORAGE +
                    _PLANNER,
    # Beside what it includes, eps starts the other programs.
    "cli": _BASE + ["base/config", "verify", "worker", "storage/csd"] + _CLI,
    "bench": _EVERYTHING,
    "tests": _EVERYTHING + ["bench"],
}

def _group(room):
    return "sees_" + room.replace("/", "_")

def _sees(viewer, room):
    return (viewer == room or viewer.startswith(room + "/") or
            room in ROOMS.get(viewer, []) + ROOMS.get(viewer + "/testing", []))

def seen_by(room):
    """Returns the visibility of the packages of `room`: those of the rooms that may see it."""
    return ["//:" + _group(room)]

def declare_rooms():
    """Declares the package groups that seen_by() names. The top-level BUILD file calls it."""
    for room in ROOMS:
        if room.endswith("/testing"):
            continue
        viewers = [viewer for viewer in ROOMS if _sees(viewer, room)]
        below = [other for other in ROOMS if not _sees(other, room) and
                                             not other.endswith("/testing") and
                                             [v for v in viewers if other.startswith(v + "/")]]
        native.package_group(
            name = _group(room),
            packages = ["//" + viewer + "/..." for viewer in viewers] +
                       ["-//" + other + "/..." for other in below],
        )
