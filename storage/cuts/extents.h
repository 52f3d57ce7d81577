#ifndef EPS_STORAGE_CUTS_EXTENTS_H_
#define EPS_STORAGE_CUTS_EXTENTS_H_

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
#include "base/bytes.h"
#include "base/checksum.h"
#include "base/ids.h"
#include "base/job/layout/chunk_map.h"
#include "storage/cuts/drives/drive_placement.h"
#include "storage/disk/disk.h"

namespace eps {

// The offsets in the files of a slot, computed from the owned chunks, the number of arrays, the
// bytes for residuals and the drives. Immutable; the chunk map must outlive it.
class ExtentLayout {
 public:
  // The place of one chunk in a slot.
  struct Area {
    const Chunk* chunk = nullptr;
    size_t arrays = 0;  // 1 if the chunk is frozen
    uint32_t drive = 0;
    uint64_t offset = 0;        // in the file of its drive
    uint64_t stride_bytes = 0;  // from array to array
    uint64_t data_bytes = 0;    // all arrays, in whole blocks
    uint64_t footer_bytes = 0;
    uint32_t pieces = 0;  // each has its own CRC; every array begins a new piece
    // In another file of its drive, for the gradient in FP32, in whole blocks; 0 if the chunk is
    // frozen.
    uint64_t gradient_bytes = 0;
    uint64_t gradient_offset = 0;

    uint64_t bytes() const { return data_bytes + footer_bytes; }
  };

  // `owned` is strictly ascending; `arrays` are those of a chunk that is not frozen;
  // `residual_bytes` counts the residuals alone. By default, everything is on one drive.
  ExtentLayout(const ChunkMap& chunks, absl::Span<const ChunkId> owned, size_t arrays,
               uint64_t residual_bytes, uint32_t parts, const DrivePlacement& placement = {});

  size_t arrays() const { return arrays_; }
  const DrivePlacement& placement() const { return placement_; }
  // Those that hold a slot: 1 if the placement names none.
  uint32_t drives() const { return static_cast<uint32_t>(files_.size()); }
  absl::Span<const Area> areas() const { return areas_; }
  const Area& area(uint32_t index) const { return areas_[index]; }
  uint64_t largest_area_bytes() const { return largest_area_bytes_; }
  // Of the files in which the reduced gradients of mode sealed wait, beside the slots.
  uint64_t largest_gradient_bytes() const { return largest_gradient_bytes_; }
  uint64_t gradient_file_bytes(uint32_t drive) const { return files_[drive].gradient_bytes; }
  // The area of residuals is in the file of this drive.
  static constexpr uint32_t kResidualDrive = 0;
  uint64_t residual_offset() const { return residual_offset_; }
  uint64_t residual_bytes() const { return files_[kResidualDrive].bytes - residual_offset_; }
  // Of a slot's file on a drive.
  uint64_t file_bytes(uint32_t drive) const { return files_[drive].bytes; }
  // Of a slot on all drives.
  uint64_t slot_bytes() const;

 private:
  // The sizes of the files of one drive.
  struct DriveFiles {
    uint64_t bytes = 0;  // of a slot's
    uint64_t gradient_bytes = 0;
  };

  size_t arrays_;
  DrivePlacement placement_;
  std::vector<Area> areas_;
  std::vector<DriveFiles> files_;  // by drive
  uint64_t largest_area_bytes_ = 0;
  uint64_t largest_gradient_bytes_ = 0;
  uint64_t residual_offset_ = 0;
};

// The owner of the state, as recorded in the header of a slot file.
struct ExtentIdentity {
  JobId job;
  Sha256Digest digest{};  // of the job spec
  uint32_t shard = 0;
  uint32_t shards = 0;
  uint64_t nonce = 0;  // CatalogueJob::extents_nonce; a copied folder has another one
};

// The footer of a chunk in a slot.
struct ExtentFooter {
  Version version;
  Term term;
  uint32_t crc32c = 0;  // identifies the whole content of the chunk
};

// Returns CatalogueCut::extents_crc32c: the CRC32C of the CRC32Cs of the chunks' footers, in
// ascending order of chunk ids. (Each footer ends with its own CRC, so that a CRC32C over whole
// footers would be the same for any content.)
uint32_t CrcOfFooters(absl::Span<const uint32_t> crcs);

// Reads, checks, seals and writes chunks in the two slots. Thread-safe. The caller owns the
// buffers: kDiskBlock-aligned, as large as the chunk's area, with the arrays first and then the
// footer. Reads and writes complete as in AsyncFile.
class Extents {
 public:
  enum class Part {
    kFooter,
    kWeights,  // the weights and the footer
    kAll,
  };

  // A folder on each drive, in the order of DrivePlacement.
  using Folders = std::vector<std::string>;

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

  const ExtentLayout& layout() const { return layout_; }
  AsyncFile* file(uint32_t slot, uint32_t drive) const { return files_[slot][drive].get(); }
  // The file that holds a chunk's area.
  AsyncFile* file_of(uint32_t slot, uint32_t index) const {
    return file(slot, layout_.area(index).drive);
  }
  AsyncFile* residual_file(uint32_t slot) const { return file(slot, ExtentLayout::kResidualDrive); }

  // Reads a part of chunk `index` into its place in `buffer`.
  void Read(uint32_t slot, uint32_t index, Part part, uint8_t* buffer, AsyncFile::Done done) const;
  // Checks a part that Read has read. DataLoss names file, offset, chunk, and the expected and the
  // found value.
  absl::StatusOr<ExtentFooter> Check(uint32_t slot, uint32_t index, Part part,
                                     const uint8_t* buffer) const;
  // Prepares a buffer of arrays for Write: zeroes the padding and adds the footer.
  ExtentFooter Seal(uint32_t slot, uint32_t index, Version version, Term term,
                    uint8_t* buffer) const;
  // Writes bytes of the chunk's area, the first of which is `begin` bytes after its start. Both are
  // multiples of kDiskBlock.
  void Write(uint32_t slot, uint32_t index, uint64_t begin, absl::Span<const uint8_t> bytes,
             AsyncFile::Done done) const;

  // Returns how many bytes of `state`, all arrays without gaps, Write can take from where they are:
  // its whole blocks. 0 if they are not aligned, or if the area has gaps between the arrays.
  uint64_t BytesInPlace(uint32_t index, const Bytes& state) const;
  // Prepares the rest of the area, in its place in `buffer`: copies what follows BytesInPlace of
  // the state, and adds the padding and the footer of the whole. REQUIRES BytesInPlace > 0.
  ExtentFooter SealRest(uint32_t slot, uint32_t index, Version version, Term term,
                        const Bytes& state, uint8_t* buffer) const;

  // Returns DataLoss with the file and offset of a chunk's footer.
  absl::Status Damaged(uint32_t slot, uint32_t index, absl::string_view what) const;

 private:
  Extents(const ExtentLayout& layout, const ExtentIdentity& identity)
      : layout_(layout), identity_(identity) {}

  absl::Status CheckFooter(uint32_t slot, uint32_t index, const uint8_t* footer) const;
  // `arrays` may lack the padding after the last array.
  ExtentFooter FillFooter(uint32_t slot, uint32_t index, Version version, Term term,
                          absl::Span<const uint8_t> arrays, uint8_t* footer) const;

  const ExtentLayout layout_;
  const ExtentIdentity identity_;
  std::array<std::vector<std::unique_ptr<AsyncFile>>, 2> files_;  // by slot and drive
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_EXTENTS_H_
