#include "storage/testing/simulated_calls.h"

#include "absl/strings/str_cat.h"

namespace eps {
namespace {

constexpr const char* kCallNames[kDiskCalls] = {
    "creating the folder",
    "listing the folder",
    "creating the file",
    "opening the file",
    "removing the file",
    "renaming the file",
    "locking the file",
    "asking for space at",
    "reading",
    "writing",
    "syncing",
};

bool IsTransfer(DiskCall call) { return call >= DiskCall::kRead; }

}  // namespace

absl::Status FaultStatus(DiskCall call, DiskFault fault, const std::string& where) {
  const bool no_space = fault == DiskFault::kNoSpace;
  const std::string text = absl::StrCat(kCallNames[static_cast<int>(call)], " ", where, ": ",
                                        no_space ? "ENOSPC" : "EIO", " (simulated)");
  if (no_space && !IsTransfer(call)) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

PlannedCalls::Entry PlannedCalls::Enter(DiskCallSite site) {
  Entry entry;
  const auto kind = static_cast<size_t>(site.call);
  ++calls_[kind];
  ++all_calls_;
  std::vector<PlannedFault>& faults = faults_[kind];
  for (auto it = faults.begin(); it != faults.end(); ++it) {
    if (it->at != calls_[kind]) continue;
    entry.fault = it->fault;
    faults.erase(it);
    break;
  }
  entry.cut = cut_at_ == all_calls_;
  if (watch_ != nullptr) {
    site.fails = entry.fault.has_value();
    watch_(site);
  }
  return entry;
}

void PlannedCalls::Fail(DiskCall call, uint64_t n, DiskFault fault) {
  faults_[static_cast<size_t>(call)].push_back({count(call) + n, fault});
}

void PlannedCalls::CutAt(uint64_t n, uint64_t seed) {
  cut_at_ = all_calls_ + n;
  cut_seed_ = seed;
}

}  // namespace eps
