#include "base/machine/machine_limits.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace eps {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
// Version 1 writes "no limit" as a number near 2^63.
constexpr uint64_t kNoLimitV1 = uint64_t{1} << 62;
constexpr double kNoQuota = std::numeric_limits<double>::infinity();

std::vector<std::string> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Returns the words of a file's first line; empty if there is no such file.
std::vector<std::string> WordsIn(const std::string& path) {
  const std::vector<std::string> lines = LinesOf(path);
  if (lines.empty()) return {};
  return absl::StrSplit(lines[0], ' ', absl::SkipWhitespace());
}

// Returns the number in a file; kUnlimited if there is no such file or it holds a word ("max").
uint64_t NumberIn(const std::string& path) {
  const std::vector<std::string> words = WordsIn(path);
  uint64_t number = 0;
  return !words.empty() && absl::SimpleAtoi(words[0], &number) ? number : kUnlimited;
}

// Returns the number after `key` in a file with lines of a key and a number; 0 if it is missing.
uint64_t FieldIn(const std::string& path, absl::string_view key) {
  for (const std::string& line : LinesOf(path)) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    uint64_t number = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &number)) return number;
  }
  return 0;
}

// ---- The control groups of this process

enum class Version { kOne, kTwo };

// A mounted hierarchy of control groups.
struct Mount {
  Version version = Version::kTwo;
  std::string root;   // the group that is mounted
  std::string point;  // where it is mounted
};

// Returns the hierarchies whose version is 2, or whose controllers include `controller`. A line of
// mountinfo (man 5 proc) is
// "36 35 98:0 ROOT POINT options optional... - TYPE source super-options".
std::vector<Mount> MountsOf(const std::string& root, absl::string_view controller) {
  std::vector<Mount> mounts;
  for (const std::string& line : LinesOf(root + "/proc/self/mountinfo")) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || words.end() - dash < 4) continue;
    const std::vector<std::string> options = absl::StrSplit(*(dash + 3), ',');
    const bool controls = std::find(options.begin(), options.end(), controller) != options.end();
    if (*(dash + 1) == "cgroup2") mounts.push_back({Version::kTwo, words[3], words[4]});
    if (*(dash + 1) == "cgroup" && controls) {
      mounts.push_back({Version::kOne, words[3], words[4]});
    }
  }
  return mounts;
}

// Returns the group of this process in a hierarchy, as /proc/self/cgroup names it: "0::/a/b"
// (version 2) or "4:cpu,cpuacct:/a/b". Empty if the process has none.
std::string GroupOf(const std::string& root, Version version, absl::string_view controller) {
  for (const std::string& line : LinesOf(root + "/proc/self/cgroup")) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() < 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const bool controls =
        std::find(controllers.begin(), controllers.end(), controller) != controllers.end();
    if (version == Version::kTwo ? fields[0] == "0" && fields[1].empty() : controls) {
      return fields[2];
    }
  }
  return "";
}

// Calls `visit` with the folder of each group that limits this process through `controller`: its
// own and those around it, up to the one that is mounted. A container often sees only its own group
// as the root, so a group that is not below the mount counts as the mount itself.
void VisitGroups(const std::string& root, absl::string_view controller,
                 const std::function<void(Version, const std::string&)>& visit) {
  for (const Mount& mount : MountsOf(root, controller)) {
    const std::string group = GroupOf(root, mount.version, controller);
    absl::string_view below = group;
    const bool inside = (mount.root == "/" || absl::ConsumePrefix(&below, mount.root)) &&
                        !absl::StrContains(below, "..") && (below.empty() || below.front() == '/');
    std::string path = inside ? std::string(absl::StripSuffix(below, "/")) : "";
    for (;;) {
      visit(mount.version, absl::StrCat(root, mount.point, path));
      if (path.empty()) break;
      path.resize(path.rfind('/'));
    }
  }
}

// ---- Processors

// Returns the processors of one group's quota of processor time.
double QuotaOf(Version version, const std::string& folder) {
  double quota = 0;
  double period = 0;
  if (version == Version::kTwo) {
    const std::vector<std::string> words = WordsIn(folder + "/cpu.max");  // "max 100000"
    if (words.size() < 2 || !absl::SimpleAtod(words[0], &quota) ||
        !absl::SimpleAtod(words[1], &period)) {
      return kNoQuota;
    }
  } else {
    const std::vector<std::string> quotas = WordsIn(folder + "/cpu.cfs_quota_us");  // -1: no limit
    const std::vector<std::string> periods = WordsIn(folder + "/cpu.cfs_period_us");
    if (quotas.empty() || periods.empty() || !absl::SimpleAtod(quotas[0], &quota) ||
        !absl::SimpleAtod(periods[0], &period)) {
      return kNoQuota;
    }
  }
  return quota > 0 && period > 0 ? quota / period : kNoQuota;
}

// ---- Memory

// The limit of one group, and the bytes that its processes may still take.
struct GroupMemory {
  uint64_t limit = kUnlimited;
  uint64_t left = kUnlimited;
};

GroupMemory MemoryOf(Version version, const std::string& folder) {
  const bool two = version == Version::kTwo;
  GroupMemory memory;
  memory.limit = two ? std::min(NumberIn(folder + "/memory.max"), NumberIn(folder + "/memory.high"))
                     : NumberIn(folder + "/memory.limit_in_bytes");
  if (memory.limit >= kNoLimitV1) return {};
  const uint64_t used = NumberIn(folder + (two ? "/memory.current" : "/memory.usage_in_bytes"));
  memory.left = memory.limit;
  if (used == kUnlimited) return memory;
  // Pages of files that nobody used lately are dropped when memory is needed.
  const uint64_t idle =
      FieldIn(folder + "/memory.stat", two ? "inactive_file" : "total_inactive_file");
  const uint64_t held = used - std::min(used, idle);
  memory.left = memory.limit - std::min(memory.limit, held);
  return memory;
}

// Returns the bytes after `key` in /proc/meminfo, "MemTotal:       16302048 kB".
absl::StatusOr<uint64_t> MachineMemory(const std::string& root, absl::string_view key) {
  const uint64_t kib = FieldIn(root + "/proc/meminfo", absl::StrCat(key, ":"));
  if (kib > 0) return kib << 10;
  return absl::InternalError(
      absl::StrCat("/proc/meminfo has no ", key, "; set servers.memory_limit"));
}

GroupMemory LowestMemory(const std::string& root) {
  GroupMemory lowest;
  VisitGroups(root, "memory", [&](Version version, const std::string& folder) {
    const GroupMemory memory = MemoryOf(version, folder);
    lowest.limit = std::min(lowest.limit, memory.limit);
    lowest.left = std::min(lowest.left, memory.left);
  });
  return lowest;
}

}  // namespace

uint32_t UsableProcessors(const std::string& root, uint32_t runnable) {
  double processors = runnable;
  VisitGroups(root, "cpu", [&](Version version, const std::string& folder) {
    processors = std::min(processors, QuotaOf(version, folder));
  });
  return std::max(1u, static_cast<uint32_t>(processors));
}

uint32_t UsableProcessors() {
  cpu_set_t set;
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  return UsableProcessors(
      "", known ? static_cast<uint32_t>(CPU_COUNT(&set)) : std::thread::hardware_concurrency());
}

absl::StatusOr<uint64_t> AvailableMemory(const std::string& root) {
  const absl::StatusOr<uint64_t> of_machine = MachineMemory(root, "MemAvailable");
  if (!of_machine.ok()) return of_machine;
  return std::min(*of_machine, LowestMemory(root).left);
}

absl::StatusOr<uint64_t> AvailableMemory() { return AvailableMemory(""); }

absl::StatusOr<uint64_t> MemoryCapacity(const std::string& root) {
  const absl::StatusOr<uint64_t> of_machine = MachineMemory(root, "MemTotal");
  if (!of_machine.ok()) return of_machine;
  return std::min(*of_machine, LowestMemory(root).limit);
}

absl::StatusOr<uint64_t> MemoryCapacity() { return MemoryCapacity(""); }

uint32_t ServerThreads(uint32_t processors, uint32_t workers, uint32_t servers) {
  const uint32_t spare = processors - std::min(processors, workers);
  return std::max(1u, spare / std::max(1u, servers));
}

}  // namespace eps
