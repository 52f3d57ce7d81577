#include "base/memory_account.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace eps {
namespace {

void RaiseTo(std::atomic<uint64_t>* peak, uint64_t value) {
  uint64_t seen = peak->load(std::memory_order_relaxed);
  while (seen < value && !peak->compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

const char* MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kState:
      return "state";
    case MemoryKind::kContribution:
      return "contribution";
    case MemoryKind::kFetch:
      return "fetch";
    case MemoryKind::kResidual:
      return "residual";
    case MemoryKind::kImport:
      return "import";
    case MemoryKind::kStage:
      return "stage";
    case MemoryKind::kStash:
      return "stash";
    case MemoryKind::kScratch:
      return "scratch";
    case MemoryKind::kCount:
      break;
  }
  return "unknown";
}

void MemoryAccount::UpdatePeaks(MemoryKind kind, uint64_t kind_live, uint64_t total_live) {
  RaiseTo(&peak_[static_cast<int>(kind)], kind_live);
  RaiseTo(&total_peak_, total_live);
}

void MemoryAccount::Charge(MemoryKind kind, uint64_t bytes) {
  const uint64_t total = total_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const uint64_t live =
      live_[static_cast<int>(kind)].fetch_add(bytes, std::memory_order_relaxed) + bytes;
  UpdatePeaks(kind, live, total);
}

absl::Status MemoryAccount::TryCharge(MemoryKind kind, uint64_t bytes) {
  uint64_t total = total_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_bytes_ || total > limit_bytes_ - bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(MemoryKindName(kind), " memory: ", bytes,
                                                       " bytes wanted, ", total, " in use, limit ",
                                                       limit_bytes_));
    }
  } while (!total_.compare_exchange_weak(total, total + bytes, std::memory_order_relaxed));
  const uint64_t live =
      live_[static_cast<int>(kind)].fetch_add(bytes, std::memory_order_relaxed) + bytes;
  UpdatePeaks(kind, live, total + bytes);
  return absl::OkStatus();
}

void MemoryAccount::Release(MemoryKind kind, uint64_t bytes) {
  const uint64_t before = live_[static_cast<int>(kind)].fetch_sub(bytes, std::memory_order_relaxed);
  EPS_CHECK_MSG(before >= bytes, MemoryKindName(kind)
                                     << ": released " << bytes << " of " << before);
  total_.fetch_sub(bytes, std::memory_order_relaxed);
}

void MemoryAccount::SetSource(MemoryKind kind, MemorySource* source_or_null) {
  sources_[static_cast<int>(kind)].store(source_or_null, std::memory_order_release);
}

MemorySource* MemoryAccount::source_or_null(MemoryKind kind) const {
  return sources_[static_cast<int>(kind)].load(std::memory_order_acquire);
}

uint64_t MemoryAccount::live_bytes(MemoryKind kind) const {
  return live_[static_cast<int>(kind)].load(std::memory_order_relaxed);
}

uint64_t MemoryAccount::peak_bytes(MemoryKind kind) const {
  return peak_[static_cast<int>(kind)].load(std::memory_order_relaxed);
}

}  // namespace eps
