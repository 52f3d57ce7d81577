#ifndef EPS_STORAGE_CUTS_CUT_READER_H_
#define EPS_STORAGE_CUTS_CUT_READER_H_

// Reads one shard's cut without changing anything, for tools that inspect durable state while no
// server uses it. RestoreRequest returns the same bytes, but records a new term.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/job/layout/chunk_map.h"
#include "optimizer/chunk_compute.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/extents/extents.h"
#include "storage/disk/disk.h"
#include "storage/disk/state_arena.h"

namespace eps {

// The location and the owner of a shard's cut. The pointers must outlive the reader.
struct CutPlace {
  Disk* disk = nullptr;
  Extents::Folders folders;  // of the job's extents, as DurableOptions::slot_folders
  const JobSpec* spec = nullptr;
  const ChunkMap* chunks = nullptr;
  std::vector<ChunkId> owned;   // in any order
  uint64_t residual_bytes = 0;  // as DurableOptions::residual_bytes
};

// Holds one chunk in memory at a time and checks every byte that it returns; DataLoss names file,
// offset and chunk. Thread-compatible; calls block.
class CutReader {
 public:
  // Checks the headers and the footers of all chunks against `cut`. NotFound, DataLoss, or
  // FailedPrecondition with both values if the files are not those of `job`.
  static absl::StatusOr<std::unique_ptr<CutReader>> Open(const CutPlace& place,
                                                         const CatalogueJob& job,
                                                         const CatalogueCut& cut);

  const CatalogueCut& cut() const { return cut_; }
  // Returns the bytes of ReadStateRequest at the cut's version. NotFound for a chunk of
  // another shard.
  absl::StatusOr<Bytes> ReadChunk(ChunkId chunk);
  // Returns all residuals, in the order in which they are stored.
  absl::StatusOr<std::vector<CutResidual>> ReadResiduals();

 private:
  CutReader(ChunkCompute compute, const ExtentLayout& layout, CatalogueCut cut)
      : compute_(std::move(compute)), layout_(layout), cut_(std::move(cut)) {}

  absl::Status CheckFooters();
  uint8_t* buffer() { return reinterpret_cast<uint8_t*>(buffer_->floats()); }
  uint32_t SlotOf(uint32_t index) const { return cut_.slot[index] ? 1 : 0; }

  const ChunkCompute compute_;
  const ExtentLayout layout_;
  const CatalogueCut cut_;
  std::unique_ptr<Extents> extents_;
  std::unique_ptr<StateArena> buffer_;             // the size of the largest area plus a block
  absl::flat_hash_map<uint32_t, uint32_t> index_;  // by chunk id
  std::vector<uint32_t> footers_;                  // CRC32C, by index
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_CUT_READER_H_
