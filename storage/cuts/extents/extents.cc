#include "storage/cuts/extents/extents.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "optimizer/chunk_compute.h"
#include "storage/cuts/extents/extent_format.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/state_arena.h"

namespace eps {
namespace {

namespace format = extent_format;

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad8)); }

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
      const std::string path = PathIn(folders[drive], slot);
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
      const std::string path = PathIn(folders[drive], slot);
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
  std::unique_ptr<Extents> extents(new Extents(layout, identity, folders));
  for (const uint32_t slot : {0u, 1u}) {
    for (const std::string& folder : folders) {
      EPS_ASSIGN_OR_RETURN(extents->files_[slot].emplace_back(), disk->Open(PathIn(folder, slot)));
    }
  }
  return extents;
}

void Extents::Read(uint32_t slot, uint32_t index, Part part, uint8_t* buffer,
                   AsyncFile::Done done) const {
  const ExtentLayout::Area& area = layout().area(index);
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

void Extents::Write(uint32_t slot, uint32_t index, uint64_t begin, absl::Span<const uint8_t> bytes,
                    AsyncFile::Done done) const {
  file_of(slot, index)->Write(layout().area(index).offset + begin, bytes, std::move(done));
}

}  // namespace eps
