"""System C++ libraries, found with pkg-config: one cc_library per entry of _LIBS."""

# Target name -> pkg-config modules, linked shared, or as archives with --define=link=static.
_LIBS = {
    "absl": [
        "absl_statusor",
        "absl_status",
        "absl_strings",
        "absl_str_format",
        "absl_flat_hash_map",
        "absl_flat_hash_set",
        "absl_span",
        "absl_time",
    ],
    "archive": ["libarchive"],
    "benchmark": ["benchmark"],
    "crypto": ["libcrypto"],
    "grpc": ["grpc++", "protobuf"],
    "gtest": ["gtest", "gmock"],
    "gtest_main": ["gtest_main", "gmock", "gtest"],
    "highway": ["libhwy"],
    "isal": ["libisal"],
    "microhttpd": ["libmicrohttpd"],
    "prometheus": ["prometheus-cpp-core"],
    "protobuf": ["protobuf"],
    "re2": ["re2"],
    "rocksdb": ["rocksdb"],
    "seccomp": ["libseccomp"],
    "spdlog": ["spdlog"],
    "uring": ["liburing"],
    "yaml": ["yaml-cpp"],
}

# Header-only packages: a target documents the dependency and checks that the header exists.
_HEADER_ONLY = {
    "cli11": "/usr/include/CLI/CLI.hpp",
    "json": "/usr/include/nlohmann/json.hpp",
    "opencl_headers": "/usr/include/CL/cl.h",
}

# Libraries missing from their pkg-config files.
_EXTRA_LIBS = {
    "grpc": ["-lgrpc++_reflection"],
}

_EXTRA_STATIC_LIBS = {
    "rocksdb": ["-lsnappy", "-lzstd", "-llz4", "-lbz2", "-lz"],
}

# Libraries without an archive in Debian, or (libmicrohttpd) with one that needs such a library: a
# static build needs their shared libraries next to it.
_NO_ARCHIVE = [
    "-larchive",
    "-lfmt",
    "-lhwy",
    "-lisal",
    "-lmicrohttpd",
    "-lprometheus-cpp-core",
    "-lspdlog",
]

_ALWAYS_SHARED = ["-ldl", "-lrt", "-lpthread", "-lm", "-latomic", "-lsystemd"]

def _dedup_keep_last(flags):
    # Archives and --as-needed both need the last occurrence of each library.
    seen = {}
    out = []
    for f in reversed(flags):
        if f not in seen:
            seen[f] = True
            out.append(f)
    return [f for f in reversed(out)]

def _pkg_config(rctx, args):
    r = rctx.execute(["pkg-config"] + args)
    if r.return_code != 0:
        fail("pkg-config %s failed: %s (run third_party/install/install_deps.sh)" %
             (" ".join(args), r.stderr))
    return [f for f in r.stdout.strip().split(" ") if f and not f.startswith("-Wl,")]

_LIBRARY = """cc_library(
    name = %r,
    linkopts = select({":static": %r, "//conditions:default": %r}),
    defines = %r,
)"""

def _library(rctx, name, modules):
    """Returns the rule of one library, with flags to compile and to link it shared or static."""
    extra = _EXTRA_LIBS.get(name, [])
    libs = _dedup_keep_last(_pkg_config(rctx, ["--libs"] + modules))
    static_libs = libs
    if [flag for flag in libs if flag not in _NO_ARCHIVE]:
        static_libs = _dedup_keep_last(_pkg_config(rctx, ["--libs", "--static"] + modules))
    cflags = _pkg_config(rctx, ["--cflags-only-other"] + modules)
    archives = [
        flag
        for flag in extra + static_libs + _EXTRA_STATIC_LIBS.get(name, [])
        if flag not in _ALWAYS_SHARED + _NO_ARCHIVE and flag.startswith("-l")
    ]
    shared = ["-Wl,--as-needed"] + extra + libs
    static = ["-Wl,-Bstatic", "-Wl,--start-group"] + archives
    static += ["-Wl,--end-group", "-Wl,-Bdynamic", "-ldl", "-lrt", "-lpthread", "-lm"]
    static += [flag for flag in static_libs if flag in _NO_ARCHIVE]
    defines = [flag[2:] for flag in cflags if flag.startswith("-D")]
    return _LIBRARY % (name, static, shared, defines)

def _impl(rctx):
    build = [
        'package(default_visibility = ["//visibility:public"])',
        'config_setting(name = "static", values = {"define": "link=static"})',
    ]
    for name, modules in _LIBS.items():
        build.append(_library(rctx, name, modules))
    for name, header in _HEADER_ONLY.items():
        if not rctx.path(header).exists:
            fail("%s is missing (run third_party/install/install_deps.sh)" % header)
        build.append("cc_library(name = %r)" % name)
    for tool in ["protoc", "grpc_cpp_plugin"]:
        path = rctx.which(tool)
        if not path:
            fail("%s is missing (run third_party/install/install_deps.sh)" % tool)
        rctx.symlink(path, "bin/" + tool)
    build.append('exports_files(["bin/protoc", "bin/grpc_cpp_plugin"])')
    rctx.file("BUILD.bazel", "\n".join(build) + "\n")

system_libs = repository_rule(
    implementation = _impl,
    local = True,
    configure = True,
    environ = ["PATH", "PKG_CONFIG_PATH"],
)
