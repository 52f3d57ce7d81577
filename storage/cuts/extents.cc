#include "storage/cuts/extents.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "optimizer/chunk_compute.h"
#include "storage/cuts/extent_format.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/state_arena.h"

namespace eps {
namespace {

namespace format = extent_format;

static_assert(format::kBlock == kDiskBlock);

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad8)); }

std::string PathOf(const std::string& folder, uint32_t slot) {
  return absl::StrCat(folder, "/", format::kFileNames[slot]);
}

// Calls visit(piece, begin, size) for each piece of arrays [0, arrays) of an area.
template <class Visitor>
void ForEachPiece(const ExtentLayout::Area& area, size_t arrays, Visitor visit) {
  uint32_t piece = 0;
  for (size_t i = 0; i < arrays; ++i) {
    const uint64_t begin = i * area.stride_bytes;
    const uint64_t end = i + 1 == area.arrays ? area.data_bytes : begin + area.stride_bytes;
    for (uint64_t at = begin; at < end; at += format::kCrcBytes) {
      visit(piece++, at, std::min(end - at, format::kCrcBytes));
    }
  }
}

void FillHeader(const ExtentLayout& layout, const ExtentIdentity& identity, uint32_t slot,
                uint32_t drive, uint8_t* block) {
  const bool on_drives = layout.placement().drives > 0;
  std::memset(block, 0, format::kBlock);
  StoreAt(block + format::header::kMagicAt, format::kHeaderMagic);
  StoreAt(block + format::header::kVersionAt,
          on_drives ? format::kDrivesVersion : format::kVersion);
  StoreAt(block + format::header::kSlotAt, slot);
  StoreAt(block + format::header::kJobAt, identity.job.value());
  StoreAt(block + format::header::kShardAt, identity.shard);
  StoreAt(block + format::header::kShardsAt, identity.shards);
  StoreAt(block + format::header::kNonceAt, identity.nonce);
  StoreAt(block + format::header::kChunksAt, static_cast<uint32_t>(layout.areas().size()));
  StoreAt(block + format::header::kArraysAt, static_cast<uint32_t>(layout.arrays()));
  StoreAt(block + format::header::kFileBytesAt, layout.file_bytes(drive));
  StoreAt(block + format::header::kResidualBytesAt,
          drive == ExtentLayout::kResidualDrive ? layout.residual_bytes() : 0);
  if (on_drives) {
    StoreAt(block + format::header::kDriveAt, drive);
    StoreAt(block + format::header::kDrivesAt, layout.drives());
  }
  std::memcpy(block + format::header::kDigestAt, identity.digest.data(), identity.digest.size());
  StoreAt(block + format::header::kCrcAt, CrcOf(block, format::header::kCrcAt));
}

// Returns FailedPrecondition unless a field of the header has the expected value.
template <class T>
absl::Status CheckField(const std::string& path, absl::string_view name, const uint8_t* found,
                        const uint8_t* expected, size_t at) {
  const T value = LoadFrom<T>(found + at);
  const T wanted = LoadFrom<T>(expected + at);
  if (value == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": ", name, " ", wanted, " expected, ", value,
                   " found: these files are not this shard's (storage.path)"));
}

absl::Status CheckHeader(const std::string& path, const uint8_t* found, const uint8_t* expected) {
  namespace header = format::header;
  const uint32_t crc = CrcOf(found, header::kCrcAt);
  if (LoadFrom<uint64_t>(found + header::kMagicAt) != format::kHeaderMagic) {
    return absl::DataLossError(
        absl::StrCat(path, ": header at offset 0: magic ", Hex(format::kHeaderMagic), " expected, ",
                     Hex(LoadFrom<uint64_t>(found + header::kMagicAt)), " found"));
  }
  if (crc != LoadFrom<uint32_t>(found + header::kCrcAt)) {
    return absl::DataLossError(absl::StrCat(path, ": header at offset 0: CRC32C ",
                                            Hex(LoadFrom<uint32_t>(found + header::kCrcAt)),
                                            " expected, ", Hex(crc), " found"));
  }
  EPS_RETURN_IF_ERROR(
      CheckField<uint32_t>(path, "format version", found, expected, header::kVersionAt));
  EPS_RETURN_IF_ERROR(CheckField<uint32_t>(path, "slot", found, expected, header::kSlotAt));
  EPS_RETURN_IF_ERROR(CheckField<uint64_t>(path, "job", found, expected, header::kJobAt));
  EPS_RETURN_IF_ERROR(CheckField<uint32_t>(path, "shard", found, expected, header::kShardAt));
  EPS_RETURN_IF_ERROR(CheckField<uint32_t>(path, "shards", found, expected, header::kShardsAt));
  EPS_RETURN_IF_ERROR(CheckField<uint64_t>(path, "nonce", found, expected, header::kNonceAt));
  EPS_RETURN_IF_ERROR(
      CheckField<uint32_t>(path, "number of drives", found, expected, header::kDrivesAt));
  EPS_RETURN_IF_ERROR(CheckField<uint32_t>(path, "drive", found, expected, header::kDriveAt));
  EPS_RETURN_IF_ERROR(CheckField<uint32_t>(path, "chunks", found, expected, header::kChunksAt));
  EPS_RETURN_IF_ERROR(CheckField<uint32_t>(path, "arrays", found, expected, header::kArraysAt));
  EPS_RETURN_IF_ERROR(
      CheckField<uint64_t>(path, "file bytes", found, expected, header::kFileBytesAt));
  EPS_RETURN_IF_ERROR(
      CheckField<uint64_t>(path, "residual bytes", found, expected, header::kResidualBytesAt));
  if (std::memcmp(found + header::kDigestAt, expected + header::kDigestAt, 32) == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": job spec's digest ",
      absl::BytesToHexString(
          absl::string_view(reinterpret_cast<const char*>(expected + header::kDigestAt), 32)),
      " expected, ",
      absl::BytesToHexString(
          absl::string_view(reinterpret_cast<const char*>(found + header::kDigestAt), 32)),
      " found"));
}

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
    ForEachPiece(area, area.arrays, [&](uint32_t, uint64_t, uint64_t) { ++area.pieces; });
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

uint32_t CrcOfFooters(absl::Span<const uint32_t> crcs) {
  uint32_t crc = 0;
  for (const uint32_t footer : crcs) {
    crc = Crc32c(absl::string_view(reinterpret_cast<const char*>(&footer), sizeof(footer)), crc);
  }
  return crc;
}

absl::Status Extents::Create(Disk* disk, const Folders& folders, const ExtentLayout& layout,
                             const ExtentIdentity& identity) {
  EPS_CHECK(folders.size() == layout.drives());
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<StateArena> block, StateArena::New(format::kBlock));
  auto* const header = reinterpret_cast<uint8_t*>(block->floats());
  for (uint32_t drive = 0; drive < layout.drives(); ++drive) {
    for (const uint32_t slot : {0u, 1u}) {
      const std::string path = PathOf(folders[drive], slot);
      EPS_RETURN_IF_ERROR(disk->CreateFile(path, layout.file_bytes(drive)));
      EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AsyncFile> file, disk->Open(path));
      FillHeader(layout, identity, slot, drive, header);
      EPS_RETURN_IF_ERROR(
          WriteBlocking(file.get(), 0, absl::MakeConstSpan(header, format::kBlock)));
      EPS_RETURN_IF_ERROR(SyncBlocking(file.get()));
    }
  }
  return absl::OkStatus();
}

absl::Status Extents::CheckHeaders(Disk* disk, const Folders& folders, const ExtentLayout& layout,
                                   const ExtentIdentity& identity) {
  EPS_CHECK(folders.size() == layout.drives());
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<StateArena> blocks,
                       StateArena::New(2 * format::kBlock));
  auto* const found = reinterpret_cast<uint8_t*>(blocks->floats());
  uint8_t* const expected = found + format::kBlock;
  for (uint32_t drive = 0; drive < layout.drives(); ++drive) {
    for (const uint32_t slot : {0u, 1u}) {
      const std::string path = PathOf(folders[drive], slot);
      EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AsyncFile> file, disk->Open(path));
      if (file->size() >= format::kBlock) {
        EPS_RETURN_IF_ERROR(ReadBlocking(file.get(), 0, absl::MakeSpan(found, format::kBlock)));
        FillHeader(layout, identity, slot, drive, expected);
        EPS_RETURN_IF_ERROR(CheckHeader(path, found, expected));
      }
      if (file->size() != layout.file_bytes(drive)) {
        return absl::DataLossError(absl::StrCat(path, ": ", layout.file_bytes(drive),
                                                " bytes expected, ", file->size(), " found"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Extents>> Extents::Open(Disk* disk, const Folders& folders,
                                                       const ExtentLayout& layout,
                                                       const ExtentIdentity& identity) {
  EPS_CHECK(folders.size() == layout.drives());
  std::unique_ptr<Extents> extents(new Extents(layout, identity));
  for (const uint32_t slot : {0u, 1u}) {
    for (const std::string& folder : folders) {
      EPS_ASSIGN_OR_RETURN(extents->files_[slot].emplace_back(), disk->Open(PathOf(folder, slot)));
    }
  }
  return extents;
}

void Extents::Read(uint32_t slot, uint32_t index, Part part, uint8_t* buffer,
                   AsyncFile::Done done) const {
  const ExtentLayout::Area& area = layout_.area(index);
  AsyncFile* const file = file_of(slot, index);
  if (part == Part::kAll) {
    file->Read(area.offset, absl::MakeSpan(buffer, area.bytes()), std::move(done));
    return;
  }
  if (part == Part::kFooter) {
    file->Read(area.offset + area.data_bytes,
               absl::MakeSpan(buffer + area.data_bytes, area.footer_bytes), std::move(done));
    return;
  }
  const AsyncFile::Done one = AfterAll(2, std::move(done));
  const uint64_t weights_bytes = RoundUpTo(area.stride_bytes, format::kBlock);
  file->Read(area.offset, absl::MakeSpan(buffer, weights_bytes), one);
  file->Read(area.offset + area.data_bytes,
             absl::MakeSpan(buffer + area.data_bytes, area.footer_bytes), one);
}

absl::Status Extents::Damaged(uint32_t slot, uint32_t index, absl::string_view what) const {
  const ExtentLayout::Area& area = layout_.area(index);
  return absl::DataLossError(absl::StrCat(file_of(slot, index)->path(), ": footer of chunk ",
                                          area.chunk->id.value(), " at offset ",
                                          area.offset + area.data_bytes, ": ", what));
}

absl::Status Extents::CheckFooter(uint32_t slot, uint32_t index, const uint8_t* footer) const {
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
      {"nonce", identity_.nonce, LoadFrom<uint64_t>(footer + format::footer::kNonceAt)},
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

absl::StatusOr<ExtentFooter> Extents::Check(uint32_t slot, uint32_t index, Part part,
                                            const uint8_t* buffer) const {
  const ExtentLayout::Area& area = layout_.area(index);
  const uint8_t* const footer = buffer + area.data_bytes;
  EPS_RETURN_IF_ERROR(CheckFooter(slot, index, footer));
  absl::Status damaged;
  const size_t arrays = part == Part::kAll ? area.arrays : part == Part::kWeights ? 1 : 0;
  ForEachPiece(area, arrays, [&](uint32_t piece, uint64_t begin, uint64_t size) {
    if (!damaged.ok()) return;
    // The weights end at a block even if they are the only array.
    const auto expected =
        LoadFrom<uint32_t>(footer + format::footer::kTableAt + sizeof(uint32_t) * piece);
    const uint32_t found = CrcOf(buffer + begin, size);
    if (found == expected) return;
    damaged = absl::DataLossError(
        absl::StrCat(file_of(slot, index)->path(), ": chunk ", area.chunk->id.value(), ": ", size,
                     " bytes at offset ", area.offset + begin, ": CRC32C ", Hex(expected),
                     " expected, ", Hex(found), " found"));
  });
  if (!damaged.ok()) return damaged;
  ExtentFooter result;
  result.version = Version(LoadFrom<uint64_t>(footer + format::footer::kVersionAt));
  result.term = Term(LoadFrom<uint64_t>(footer + format::footer::kTermAt));
  result.crc32c = LoadFrom<uint32_t>(footer + area.footer_bytes - format::footer::kCrcBytesAtEnd);
  return result;
}

uint64_t Extents::BytesInPlace(uint32_t index, const Bytes& state) const {
  const bool aligned = reinterpret_cast<uintptr_t>(state.data()) % format::kBlock == 0;
  const ExtentLayout::Area& area = layout_.area(index);
  const bool gapless = area.stride_bytes * area.arrays == state.size();
  return aligned && gapless ? state.size() / format::kBlock * format::kBlock : 0;
}

ExtentFooter Extents::Seal(uint32_t slot, uint32_t index, Version version, Term term,
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

ExtentFooter Extents::SealRest(uint32_t slot, uint32_t index, Version version, Term term,
                               const Bytes& state, uint8_t* buffer) const {
  const ExtentLayout::Area& area = layout_.area(index);
  const uint64_t in_place = BytesInPlace(index, state);
  std::memcpy(buffer + in_place, state.data() + in_place, state.size() - in_place);
  std::memset(buffer + state.size(), 0, area.data_bytes - state.size());
  return FillFooter(slot, index, version, term, absl::MakeConstSpan(state.data(), state.size()),
                    buffer + area.data_bytes);
}

ExtentFooter Extents::FillFooter(uint32_t slot, uint32_t index, Version version, Term term,
                                 absl::Span<const uint8_t> arrays, uint8_t* footer) const {
  static constexpr uint8_t kZeros[format::kBlock] = {};
  const ExtentLayout::Area& area = layout_.area(index);
  std::memset(footer, 0, area.footer_bytes);
  StoreAt(footer + format::footer::kMagicAt, format::kFooterMagic);
  StoreAt(footer + format::footer::kChunkAt, area.chunk->id.value());
  StoreAt(footer + format::footer::kSlotAt, slot);
  StoreAt(footer + format::footer::kVersionAt, version.value());
  StoreAt(footer + format::footer::kTermAt, term.value());
  StoreAt(footer + format::footer::kNonceAt, identity_.nonce);
  StoreAt(footer + format::footer::kPiecesAt, area.pieces);
  ForEachPiece(area, area.arrays, [&](uint32_t piece, uint64_t begin, uint64_t size) {
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

void Extents::Write(uint32_t slot, uint32_t index, uint64_t begin, absl::Span<const uint8_t> bytes,
                    AsyncFile::Done done) const {
  file_of(slot, index)->Write(layout_.area(index).offset + begin, bytes, std::move(done));
}

}  // namespace eps
