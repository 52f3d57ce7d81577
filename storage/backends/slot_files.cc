#include "storage/backends/slot_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps::durable {

SlotFiles::~SlotFiles() {
  if (charged_bytes_ > 0) account_->Release(MemoryKind::kScratch, charged_bytes_);
}

absl::Status SlotFiles::Reserve(uint64_t staging_bytes, uint64_t gradient_bytes) {
  const uint64_t buffer_bytes =
      std::max(layout_.largest_area_bytes(), kDiskBlock + uint64_t{0}) + gradient_bytes;
  if (staging_bytes < buffer_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("storage.staging: ", staging_bytes, " bytes, but one chunk with its state",
                     gradient_bytes > 0 ? " and its gradient" : "", " has ", buffer_bytes,
                     "; give at least that, or four times as much for speed, or "
                     "lower training.chunk_elements"));
  }
  const uint64_t buffers =
      std::min<uint64_t>(staging_bytes / buffer_bytes, std::max<size_t>(layout_.areas().size(), 1));
  const absl::Status charged = account_->TryCharge(MemoryKind::kScratch, buffers * buffer_bytes);
  if (!charged.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        buffers, " staging buffers of ", buffer_bytes, " bytes do not fit: ", charged.message(),
        "; raise servers.memory_limit or lower storage.staging"));
  }
  charged_bytes_ = buffers * buffer_bytes;
  EPS_ASSIGN_OR_RETURN(
      staging_, StagingPool::New(buffer_bytes, buffers, in_flight_->executor(Lane::kBackground)));
  return absl::OkStatus();
}

void SlotFiles::Check(uint32_t slot, uint32_t index, Extents::Part part,
                      std::function<void(const uint8_t* buffer)> use,
                      std::function<void(absl::StatusOr<ExtentFooter>)> done) {
  const auto check = [=, use = std::move(use), done = std::move(done)](uint8_t* buffer,
                                                                       const absl::Status& status) {
    absl::StatusOr<ExtentFooter> footer =
        status.ok() ? extents_->Check(slot, index, part, buffer) : status;
    if (footer.ok() && use != nullptr) use(buffer);
    staging_->Release(buffer);
    done(std::move(footer));
  };
  staging_->Acquire(Lane::kBackground, [=](uint8_t* buffer) {
    extents_->Read(slot, index, part, buffer,
                   in_flight_->Posted(Lane::kBackground,
                                      [=](const absl::Status& status) { check(buffer, status); }));
  });
}

void SlotFiles::Write(uint32_t slot, uint32_t index, uint64_t begin,
                      absl::Span<const uint8_t> bytes, std::function<void(absl::Status)> done) {
  extents_->Write(slot, index, begin, bytes,
                  in_flight_->Posted(Lane::kUpdate, [this, slot, index,
                                                     done = std::move(done)](absl::Status status) {
                    if (status.ok()) {
                      MarkDirty(slot, layout_.area(index).drive);
                    } else {
                      in_flight_->Fail(status);
                    }
                    done(std::move(status));
                  }));
}

void SlotFiles::MarkDirty(uint32_t slot, uint32_t drive) {
  MutexLock lock(&mu_);
  dirty_[slot][drive] = true;
}

void SlotFiles::Sync(uint32_t slot, std::function<void(absl::Status)> done) {
  std::vector<uint32_t> dirty;  // drives
  {
    // A write that completes after this belongs to a later cut, or is synced needlessly.
    MutexLock lock(&mu_);
    for (uint32_t drive = 0; drive < layout_.drives(); ++drive) {
      if (!dirty_[slot][drive]) continue;
      dirty_[slot][drive] = false;
      dirty.push_back(drive);
    }
  }
  if (dirty.empty()) return done(absl::OkStatus());
  const AsyncFile::Done one =
      AfterAll(dirty.size(), in_flight_->Posted(Lane::kBackground, std::move(done)));
  for (const uint32_t drive : dirty) extents_->file(slot, drive)->Sync(one);
}

}  // namespace eps::durable
