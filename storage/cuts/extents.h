#ifndef EPS_STORAGE_CUTS_EXTENTS_H_
#define EPS_STORAGE_CUTS_EXTENTS_H_

// A shard's state on disk: two slot files of equal layout, in which every owned chunk has a fixed
// place (docs/formats/extent.md). Which of the two holds a chunk is not known here.

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
#include "base/job/chunk_map.h"
#include "storage/disk/disk.h"

namespace eps {

// Where things lie in a slot file: a function of the owned chunks, the number of arrays and the
// bytes for residuals. Immutable; refers to the chunk map, which must outlive it.
class ExtentLayout {
 public:
  struct Area {
    const Chunk* chunk = nullptr;
    uint64_t offset = 0;
    uint64_t stride_bytes = 0;  // from array to array
    uint64_t data_bytes = 0;    // all arrays, in whole blocks
    uint64_t footer_bytes = 0;
    uint32_t pieces = 0;  // with a CRC each; they begin anew at every array

    uint64_t bytes() const { return data_bytes + footer_bytes; }
  };

  // `owned` ascending, each once; `residual_bytes` as the residuals alone are counted.
  ExtentLayout(const ChunkMap& chunks, absl::Span<const ChunkId> owned, size_t arrays,
               uint64_t residual_bytes, uint32_t parts);

  size_t arrays() const { return arrays_; }
  absl::Span<const Area> areas() const { return areas_; }
  const Area& area(uint32_t index) const { return areas_[index]; }
  uint64_t largest_area_bytes() const { return largest_area_bytes_; }
  uint64_t residual_offset() const { return residual_offset_; }
  uint64_t residual_bytes() const { return file_bytes_ - residual_offset_; }
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  size_t arrays_;
  std::vector<Area> areas_;
  uint64_t largest_area_bytes_ = 0;
  uint64_t residual_offset_ = 0;
  uint64_t file_bytes_ = 0;
};

// What the header says of whose state this is.
struct ExtentIdentity {
  JobId job;
  Sha256Digest digest{};  // of the job spec
  uint32_t shard = 0;
  uint32_t shards = 0;
  uint64_t nonce = 0;  // as in the catalogue: a copied folder has another one
};

struct ExtentFooter {
  Version version;
  Term term;
  uint32_t crc32c = 0;  // stands for the whole content of the chunk
};

// CatalogueCut::extents_crc32c: over the CRC32Cs of the chunks' footers, in ascending order of
// chunk ids. (Over whole footers, which end with their own, it would always be the same.)
uint32_t CrcOfFooters(absl::Span<const uint32_t> crcs);

// Thread-safe. Buffers are the caller's, kDiskBlock-aligned, as large as the chunk's area: arrays
// from their begin on, then the footer. Reads and writes complete as AsyncFile's do.
class Extents {
 public:
  enum class Part {
    kFooter,
    kWeights,  // and the footer
    kAll,
  };

  // Makes both files, durably. ResourceExhausted with the bytes that are missing.
  static absl::Status Create(Disk* disk, const std::string& folder, const ExtentLayout& layout,
                             const ExtentIdentity& identity);
  // Checks both headers: NotFound; DataLoss if one is damaged; FailedPrecondition with both values
  // if it is of another job, shard, number of shards, folder or format.
  static absl::Status CheckHeaders(Disk* disk, const std::string& folder,
                                   const ExtentLayout& layout, const ExtentIdentity& identity);
  // REQUIRES CheckHeaders. Does not wait for any transfer.
  static absl::StatusOr<std::unique_ptr<Extents>> Open(Disk* disk, const std::string& folder,
                                                       const ExtentLayout& layout,
                                                       const ExtentIdentity& identity);

  const ExtentLayout& layout() const { return layout_; }
  AsyncFile* file(uint32_t slot) const { return files_[slot].get(); }

  // Reads the part of chunk `index` to the place where it belongs in `buffer`.
  void Read(uint32_t slot, uint32_t index, Part part, uint8_t* buffer, AsyncFile::Done done) const;
  // Checks what Read left. DataLoss names file, offset and chunk, what was expected and found.
  absl::StatusOr<ExtentFooter> Check(uint32_t slot, uint32_t index, Part part,
                                     const uint8_t* buffer) const;
  // Makes the buffer with its arrays what is to be written to that slot.
  ExtentFooter Seal(uint32_t slot, uint32_t index, Version version, Term term,
                    uint8_t* buffer) const;
  void Write(uint32_t slot, uint32_t index, const uint8_t* buffer, AsyncFile::Done done) const;

  // DataLoss that names the place of a chunk's footer.
  absl::Status Damaged(uint32_t slot, uint32_t index, absl::string_view what) const;

 private:
  Extents(const ExtentLayout& layout, const ExtentIdentity& identity)
      : layout_(layout), identity_(identity) {}

  absl::Status CheckFooter(uint32_t slot, uint32_t index, const uint8_t* footer) const;

  const ExtentLayout layout_;
  const ExtentIdentity identity_;
  std::array<std::unique_ptr<AsyncFile>, 2> files_;
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_EXTENTS_H_
