#ifndef EPS_STORAGE_CUTS_EXTENTS_EXTENTS_H_
#define EPS_STORAGE_CUTS_EXTENTS_EXTENTS_H_

// A shard's state on disk: two slots of equal layout, in which every owned chunk has a fixed place
// (docs/formats/extent.md). A slot is one file or, with several drives, one on each of them.
// SlotTable records which slot holds a chunk.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/checksum.h"
#include "base/ids.h"
#include "storage/cuts/extents/extent_seals.h"
#include "storage/disk/disk.h"

namespace eps {

// The owner of the state, as recorded in the header of a slot file.
struct ExtentIdentity {
  JobId job;
  Sha256Digest digest{};  // of the job spec
  uint32_t shard = 0;
  uint32_t shards = 0;
  uint64_t nonce = 0;  // CatalogueJob::extents_nonce; a copied folder has another one
};

// Returns CatalogueCut::extents_crc32c: the CRC32C of the CRC32Cs of the chunks' footers, in
// ascending order of chunk ids. (Each footer ends with its own CRC, so that a CRC32C over whole
// footers would be the same for any content.)
uint32_t CrcOfFooters(absl::Span<const uint32_t> crcs);

// Reads and writes chunks in the two slots, besides checking and sealing them. Thread-safe. Reads
// and writes complete as in AsyncFile.
class Extents : public ExtentSeals {
 public:
  // Creates all files, durably. ResourceExhausted with the bytes that are missing.
  static absl::Status Create(Disk* disk, const Folders& folders, const ExtentLayout& layout,
                             const ExtentIdentity& identity);
  // Checks all headers. NotFound; DataLoss if one is damaged; FailedPrecondition with both values
  // if it belongs to another job, shard, number of shards, folder, drive or format.
  static absl::Status CheckHeaders(Disk* disk, const Folders& folders, const ExtentLayout& layout,
                                   const ExtentIdentity& identity);
  // REQUIRES CheckHeaders. Starts no transfer.
  static absl::StatusOr<std::unique_ptr<Extents>> Open(Disk* disk, const Folders& folders,
                                                       const ExtentLayout& layout,
                                                       const ExtentIdentity& identity);

  AsyncFile* file(uint32_t slot, uint32_t drive) const { return files_[slot][drive].get(); }
  // The file that holds a chunk's area.
  AsyncFile* file_of(uint32_t slot, uint32_t index) const {
    return file(slot, layout().area(index).drive);
  }
  AsyncFile* residual_file(uint32_t slot) const { return file(slot, ExtentLayout::kResidualDrive); }

  // Reads a part of chunk `index` into its place in `buffer`.
  void Read(uint32_t slot, uint32_t index, Part part, uint8_t* buffer, AsyncFile::Done done) const;
  // Writes bytes of the chunk's area, the first of which is `begin` bytes after its start. Both are
  // multiples of kDiskBlock.
  void Write(uint32_t slot, uint32_t index, uint64_t begin, absl::Span<const uint8_t> bytes,
             AsyncFile::Done done) const;

 private:
  Extents(const ExtentLayout& layout, const ExtentIdentity& identity, const Folders& folders)
      : ExtentSeals(layout, identity.nonce, folders) {}

  std::array<std::vector<std::unique_ptr<AsyncFile>>, 2> files_;  // by slot and drive
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_EXTENTS_EXTENTS_H_
