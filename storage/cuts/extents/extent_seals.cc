#include "storage/cuts/extents/extent_seals.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/status_macros.h"
#include "optimizer/chunk_compute.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/disk.h"

namespace eps {
namespace {

namespace format = extent_format;

static_assert(format::kBlock == kDiskBlock);

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad8)); }

}  // namespace

ExtentLayout::ExtentLayout(const ChunkMap& chunks, absl::Span<const ChunkId> owned, size_t arrays,
                           uint64_t residual_bytes, uint32_t parts, const DrivePlacement& placement)
    : arrays_(arrays), placement_(placement), files_(std::max(1u, placement.drives)) {
  EPS_CHECK(placement.drive.empty() || placement.drive.size() == owned.size());
  for (DriveFiles& file : files_) file.bytes = format::kBlock;
  uint64_t residuals = 0;
  for (const ChunkId id : owned) {
    Area area;
    area.chunk = &chunks.chunk(id);
    area.drive = placement.of(static_cast<uint32_t>(areas_.size()));
    DriveFiles& file = files_[area.drive];
    area.offset = file.bytes;
    area.arrays = area.chunk->frozen ? 1 : arrays;
    area.stride_bytes = ChunkArrays::Stride(area.chunk->elements) * sizeof(float);
    area.data_bytes = RoundUpTo(area.stride_bytes * area.arrays, format::kBlock);
    area.ForEachPiece(area.arrays, [&](uint32_t, uint64_t, uint64_t) { ++area.pieces; });
    area.footer_bytes = RoundUpTo(
        format::footer::kTableAt + sizeof(uint32_t) * area.pieces + format::footer::kCrcBytesAtEnd,
        format::kBlock);
    file.bytes += area.bytes();
    residuals += area.chunk->uses.size() * parts;
    largest_area_bytes_ = std::max(largest_area_bytes_, area.bytes());
    if (!area.chunk->frozen) {
      area.gradient_bytes = RoundUpTo(area.chunk->elements * sizeof(float), format::kBlock);
    }
    area.gradient_offset = file.gradient_bytes;
    file.gradient_bytes += area.gradient_bytes;
    largest_gradient_bytes_ = std::max(largest_gradient_bytes_, area.gradient_bytes);
    areas_.push_back(area);
  }
  residual_offset_ = files_[kResidualDrive].bytes;
  const uint64_t heads = residual_bytes == 0 ? 0 : residuals * format::residual::kHeadBytes;
  files_[kResidualDrive].bytes += RoundUpTo(residual_bytes + heads, format::kBlock);
}

uint64_t ExtentLayout::slot_bytes() const {
  uint64_t bytes = 0;
  for (const DriveFiles& file : files_) bytes += file.bytes;
  return bytes;
}

ExtentSeals::ExtentSeals(const ExtentLayout& layout, uint64_t nonce, const Folders& folders)
    : layout_(layout), nonce_(nonce) {
  EPS_CHECK(folders.size() == layout.drives());
  for (const uint32_t slot : {0u, 1u}) {
    for (const std::string& folder : folders) paths_[slot].push_back(PathIn(folder, slot));
  }
}

std::string ExtentSeals::PathIn(const std::string& folder, uint32_t slot) {
  return absl::StrCat(folder, "/", format::kFileNames[slot]);
}

absl::Status ExtentSeals::Damaged(uint32_t slot, uint32_t index, absl::string_view what) const {
  const ExtentLayout::Area& area = layout_.area(index);
  return absl::DataLossError(absl::StrCat(PathOf(slot, index), ": footer of chunk ",
                                          area.chunk->id.value(), " at offset ",
                                          area.offset + area.data_bytes, ": ", what));
}

absl::Status ExtentSeals::CheckFooter(uint32_t slot, uint32_t index, const uint8_t* footer) const {
  const ExtentLayout::Area& area = layout_.area(index);
  const size_t crc_at = area.footer_bytes - format::footer::kCrcBytesAtEnd;
  const uint32_t expected = LoadFrom<uint32_t>(footer + crc_at);
  const uint32_t found = CrcOf(footer, crc_at);
  if (found != expected) {
    return Damaged(slot, index,
                   absl::StrCat("CRC32C ", Hex(expected), " expected, ", Hex(found), " found"));
  }
  struct Field {
    const char* name;
    uint64_t expected, found;
  };
  const Field fields[] = {
      {"magic", format::kFooterMagic, LoadFrom<uint64_t>(footer + format::footer::kMagicAt)},
      {"chunk", area.chunk->id.value(), LoadFrom<uint32_t>(footer + format::footer::kChunkAt)},
      {"slot", slot, LoadFrom<uint32_t>(footer + format::footer::kSlotAt)},
      {"nonce", nonce_, LoadFrom<uint64_t>(footer + format::footer::kNonceAt)},
      {"pieces", area.pieces, LoadFrom<uint32_t>(footer + format::footer::kPiecesAt)},
  };
  for (const Field& field : fields) {
    if (field.expected == field.found) continue;
    return Damaged(
        slot, index,
        absl::StrCat(field.name, " ", field.expected, " expected, ", field.found, " found"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExtentFooter> ExtentSeals::Check(uint32_t slot, uint32_t index, Part part,
                                                const uint8_t* buffer) const {
  const ExtentLayout::Area& area = layout_.area(index);
  const uint8_t* const footer = buffer + area.data_bytes;
  EPS_RETURN_IF_ERROR(CheckFooter(slot, index, footer));
  absl::Status damaged;
  const size_t arrays = part == Part::kAll ? area.arrays : part == Part::kWeights ? 1 : 0;
  area.ForEachPiece(arrays, [&](uint32_t piece, uint64_t begin, uint64_t size) {
    if (!damaged.ok()) return;
    // The weights end at a block even if they are the only array.
    const auto expected =
        LoadFrom<uint32_t>(footer + format::footer::kTableAt + sizeof(uint32_t) * piece);
    const uint32_t found = CrcOf(buffer + begin, size);
    if (found == expected) return;
    damaged = absl::DataLossError(absl::StrCat(
        PathOf(slot, index), ": chunk ", area.chunk->id.value(), ": ", size, " bytes at offset ",
        area.offset + begin, ": CRC32C ", Hex(expected), " expected, ", Hex(found), " found"));
  });
  if (!damaged.ok()) return damaged;
  ExtentFooter result;
  result.version = Version(LoadFrom<uint64_t>(footer + format::footer::kVersionAt));
  result.term = Term(LoadFrom<uint64_t>(footer + format::footer::kTermAt));
  result.crc32c = LoadFrom<uint32_t>(footer + area.footer_bytes - format::footer::kCrcBytesAtEnd);
  return result;
}

uint64_t ExtentSeals::BytesInPlace(uint32_t index, const Bytes& state) const {
  const bool aligned = reinterpret_cast<uintptr_t>(state.data()) % format::kBlock == 0;
  const ExtentLayout::Area& area = layout_.area(index);
  const bool gapless = area.stride_bytes * area.arrays == state.size();
  return aligned && gapless ? state.size() / format::kBlock * format::kBlock : 0;
}

ExtentFooter ExtentSeals::Seal(uint32_t slot, uint32_t index, Version version, Term term,
                               uint8_t* buffer) const {
  const ExtentLayout::Area& area = layout_.area(index);
  // Zero the padding after each array: the buffer may hold anything.
  const uint64_t used = area.chunk->elements * sizeof(float);
  for (size_t i = 0; i < area.arrays; ++i) {
    const uint64_t begin = i * area.stride_bytes;
    const uint64_t end = i + 1 == area.arrays ? area.data_bytes : begin + area.stride_bytes;
    std::memset(buffer + begin + used, 0, end - begin - used);
  }
  return FillFooter(slot, index, version, term, absl::MakeConstSpan(buffer, area.data_bytes),
                    buffer + area.data_bytes);
}

ExtentFooter ExtentSeals::SealRest(uint32_t slot, uint32_t index, Version version, Term term,
                                   const Bytes& state, uint8_t* buffer) const {
  const ExtentLayout::Area& area = layout_.area(index);
  const uint64_t in_place = BytesInPlace(index, state);
  std::memcpy(buffer + in_place, state.data() + in_place, state.size() - in_place);
  std::memset(buffer + state.size(), 0, area.data_bytes - state.size());
  return FillFooter(slot, index, version, term, absl::MakeConstSpan(state.data(), state.size()),
                    buffer + area.data_bytes);
}

ExtentFooter ExtentSeals::FillFooter(uint32_t slot, uint32_t index, Version version, Term term,
                                     absl::Span<const uint8_t> arrays, uint8_t* footer) const {
  static constexpr uint8_t kZeros[format::kBlock] = {};
  const ExtentLayout::Area& area = layout_.area(index);
  std::memset(footer, 0, area.footer_bytes);
  StoreAt(footer + format::footer::kMagicAt, format::kFooterMagic);
  StoreAt(footer + format::footer::kChunkAt, area.chunk->id.value());
  StoreAt(footer + format::footer::kSlotAt, slot);
  StoreAt(footer + format::footer::kVersionAt, version.value());
  StoreAt(footer + format::footer::kTermAt, term.value());
  StoreAt(footer + format::footer::kNonceAt, nonce_);
  StoreAt(footer + format::footer::kPiecesAt, area.pieces);
  area.ForEachPiece(area.arrays, [&](uint32_t piece, uint64_t begin, uint64_t size) {
    // The padding may begin a piece of its own.
    const uint64_t from = std::min<uint64_t>(begin, arrays.size());
    const uint64_t present = std::min(size, arrays.size() - from);
    const absl::string_view padding(reinterpret_cast<const char*>(kZeros), size - present);
    StoreAt(footer + format::footer::kTableAt + sizeof(uint32_t) * piece,
            Crc32c(padding, CrcOf(arrays.data() + from, present)));
  });
  const size_t crc_at = area.footer_bytes - format::footer::kCrcBytesAtEnd;
  const uint32_t crc = CrcOf(footer, crc_at);
  StoreAt(footer + crc_at, crc);
  return ExtentFooter{version, term, crc};
}

}  // namespace eps
