#ifndef EPS_STORAGE_CUTS_EXTENTS_EXTENT_SEALS_H_
#define EPS_STORAGE_CUTS_EXTENTS_EXTENT_SEALS_H_

// The footers of chunks in the slots of a shard's state (docs/formats/extent.md): a chunk in a
// buffer is sealed before it is written, and checked after it has been read, on the host or in a
// storage device.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/job/layout/chunk_map.h"
#include "storage/cuts/drives/drive_placement.h"
#include "storage/cuts/extents/extent_format.h"

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
    // Calls visit(piece, begin, size) for each piece of the first so many arrays.
    template <class Visitor>
    void ForEachPiece(size_t of_arrays, Visitor visit) const {
      uint32_t piece = 0;
      for (size_t i = 0; i < of_arrays; ++i) {
        const uint64_t begin = i * stride_bytes;
        const uint64_t end = i + 1 == arrays ? data_bytes : begin + stride_bytes;
        for (uint64_t at = begin; at < end; at += extent_format::kCrcBytes) {
          visit(piece++, at, std::min(end - at, extent_format::kCrcBytes));
        }
      }
    }
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

// The footer of a chunk in a slot.
struct ExtentFooter {
  Version version;
  Term term;
  uint32_t crc32c = 0;  // identifies the whole content of the chunk
};

// Checks and seals chunks in buffers. Thread-safe. The caller owns the buffers: kDiskBlock-aligned,
// as large as the chunk's area, with the arrays first and then the footer.
class ExtentSeals {
 public:
  // The part of a chunk that a buffer holds.
  enum class Part {
    kFooter,
    kWeights,  // the weights and the footer
    kAll,
  };
  // A folder on each drive, in the order of DrivePlacement.
  using Folders = std::vector<std::string>;

  // `nonce` is CatalogueJob::extents_nonce. The folders are those of the slots' files, for errors.
  ExtentSeals(const ExtentLayout& layout, uint64_t nonce, const Folders& folders);

  const ExtentLayout& layout() const { return layout_; }
  uint64_t nonce() const { return nonce_; }
  // The path of a slot's file on a drive.
  const std::string& path(uint32_t slot, uint32_t drive) const { return paths_[slot][drive]; }
  // The path of a slot's file in the folder of its drive.
  static std::string PathIn(const std::string& folder, uint32_t slot);

  // Checks a part that was read. DataLoss names file, offset, chunk, and the expected and the
  // found value.
  absl::StatusOr<ExtentFooter> Check(uint32_t slot, uint32_t index, Part part,
                                     const uint8_t* buffer) const;
  // Prepares a buffer of arrays for writing: zeroes the padding and adds the footer.
  ExtentFooter Seal(uint32_t slot, uint32_t index, Version version, Term term,
                    uint8_t* buffer) const;
  // Returns how many bytes of `state`, all arrays without gaps, can be written from where they are:
  // its whole blocks. 0 if they are not aligned, or if the area has gaps between the arrays.
  uint64_t BytesInPlace(uint32_t index, const Bytes& state) const;
  // Prepares the rest of the area, in its place in `buffer`: copies what follows BytesInPlace of
  // the state, and adds the padding and the footer of the whole. REQUIRES BytesInPlace > 0.
  ExtentFooter SealRest(uint32_t slot, uint32_t index, Version version, Term term,
                        const Bytes& state, uint8_t* buffer) const;

  // Returns DataLoss with the file and offset of a chunk's footer.
  absl::Status Damaged(uint32_t slot, uint32_t index, absl::string_view what) const;

 private:
  absl::Status CheckFooter(uint32_t slot, uint32_t index, const uint8_t* footer) const;
  // `arrays` may lack the padding after the last array.
  ExtentFooter FillFooter(uint32_t slot, uint32_t index, Version version, Term term,
                          absl::Span<const uint8_t> arrays, uint8_t* footer) const;
  const std::string& PathOf(uint32_t slot, uint32_t index) const {
    return path(slot, layout_.area(index).drive);
  }

  const ExtentLayout layout_;
  const uint64_t nonce_;
  std::array<std::vector<std::string>, 2> paths_;  // by slot and drive
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_EXTENTS_EXTENT_SEALS_H_
