#ifndef EPS_STORAGE_BACKENDS_SLOT_FILES_H_
#define EPS_STORAGE_BACKENDS_SLOT_FILES_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "storage/backends/in_flight.h"
#include "storage/cuts/extents/extents.h"
#include "storage/cuts/slot_table.h"
#include "storage/disk/staging_pool.h"

namespace eps::durable {

// The two slots of a job, the staging buffers for all their I/O, and a mark on each file with
// unsynced writes. Thread-safe after Open. Completions run on the executor, without locks held.
class SlotFiles {
 public:
  // `account` and `in_flight` must outlive this object.
  SlotFiles(const ExtentLayout& layout, MemoryAccount* account, InFlight* in_flight)
      : layout_(layout), account_(account), in_flight_(in_flight) {
    for (std::vector<bool>& files : dirty_) files.resize(layout_.drives());
  }
  ~SlotFiles();
  SlotFiles(const SlotFiles&) = delete;
  SlotFiles& operator=(const SlotFiles&) = delete;

  // Allocates at most `staging_bytes` of memory, charged as kScratch. Each buffer has room for the
  // largest area, and after it `gradient_bytes`. ResourceExhausted with the figures and the key to
  // change.
  absl::Status Reserve(uint64_t staging_bytes, uint64_t gradient_bytes);
  // REQUIRES Reserve. Call once, before the files are used.
  void Open(std::unique_ptr<Extents> extents) { extents_ = std::move(extents); }

  const ExtentLayout& layout() const { return layout_; }
  const Chunk& chunk(uint32_t index) const { return *layout_.area(index).chunk; }
  StagingPool* staging() const { return staging_.get(); }
  Extents* extents() const { return extents_.get(); }

  // Reads a part of a chunk into a staging buffer and checks it. If it is intact, passes it to
  // `use` (may be null) before `done`.
  void Check(uint32_t slot, uint32_t index, Extents::Part part,
             std::function<void(const uint8_t* buffer)> use,
             std::function<void(absl::StatusOr<ExtentFooter>)> done);
  // Writes bytes of a chunk's area, as Extents::Write does. Reports an error to InFlight::Fail
  // before `done`.
  void Write(uint32_t slot, uint32_t index, uint64_t begin, absl::Span<const uint8_t> bytes,
             std::function<void(absl::Status)> done);

  // Records that the slot has unsynced writes on a drive. Write calls this itself.
  void MarkDirty(uint32_t slot, uint32_t drive) EPS_EXCLUDES(mu_);
  // Syncs all earlier writes to the slot, on all drives at the same time. Calls `done` on the
  // caller's stack if there is nothing to sync.
  void Sync(uint32_t slot, std::function<void(absl::Status)> done) EPS_EXCLUDES(mu_);

 private:
  const ExtentLayout layout_;
  MemoryAccount* const account_;
  InFlight* const in_flight_;
  uint64_t charged_bytes_ = 0;
  std::unique_ptr<StagingPool> staging_;
  std::unique_ptr<Extents> extents_;
  Mutex mu_;
  // By slot and drive: whether the file has unsynced writes.
  std::array<std::vector<bool>, 2> dirty_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_SLOT_FILES_H_
