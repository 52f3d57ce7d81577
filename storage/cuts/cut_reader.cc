#include "storage/cuts/cut_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "storage/cuts/extents/residual_stream.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/state_arena.h"

namespace eps {

absl::StatusOr<std::unique_ptr<CutReader>> CutReader::Open(const CutPlace& place,
                                                           const CatalogueJob& job,
                                                           const CatalogueCut& cut) {
  EPS_ASSIGN_OR_RETURN(ChunkCompute compute,
                       ChunkCompute::New(*place.spec, /*account=*/nullptr, Updates::kElsewhere));
  std::vector<ChunkId> owned = place.owned;
  std::sort(owned.begin(), owned.end());
  const std::string folder = absl::StrJoin(place.folders, ", ");
  if (place.folders.size() != std::max(1u, job.placement.drives) ||
      (job.placement.drives > 0 && job.placement.drive.size() != owned.size())) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": job of ", job.placement.drives, " drives and ", job.placement.drive.size(),
        " chunks; expected ", place.folders.size(), " drives and ", owned.size(), " chunks"));
  }
  const ExtentLayout layout(*place.chunks, owned, compute.arrays(), place.residual_bytes,
                            place.spec->training.parts, job.placement);
  if (cut.slot.size() != owned.size() || cut.residuals_slot > 1 ||
      cut.residuals_bytes > layout.residual_bytes()) {
    return absl::DataLossError(absl::StrCat(
        folder, ": the cut of step ", cut.border.id.step.value(), " has ", cut.slot.size(),
        " chunks and ", cut.residuals_bytes, " bytes of residuals; expected ", owned.size(),
        " chunks and at most ", layout.residual_bytes(), " bytes"));
  }
  ExtentIdentity identity;
  identity.job = job.id;
  identity.digest = place.spec->Digest();
  identity.shard = job.shard;
  identity.shards = job.shards;
  identity.nonce = job.extents_nonce;
  EPS_RETURN_IF_ERROR(Extents::CheckHeaders(place.disk, place.folders, layout, identity));
  std::unique_ptr<CutReader> reader(new CutReader(std::move(compute), layout, cut));
  EPS_ASSIGN_OR_RETURN(reader->extents_,
                       Extents::Open(place.disk, place.folders, layout, identity));
  EPS_ASSIGN_OR_RETURN(reader->buffer_, StateArena::New(std::max<uint64_t>(
                                            layout.largest_area_bytes(), kDiskBlock)));
  for (uint32_t i = 0; i < owned.size(); ++i) reader->index_[owned[i].value()] = i;
  EPS_RETURN_IF_ERROR(reader->CheckFooters());
  return reader;
}

absl::Status CutReader::CheckFooters() {
  for (uint32_t i = 0; i < layout_.areas().size(); ++i) {
    const ExtentLayout::Area& area = layout_.area(i);
    EPS_RETURN_IF_ERROR(
        ReadBlocking(extents_->file_of(SlotOf(i), i), area.offset + area.data_bytes,
                     absl::MakeSpan(buffer() + area.data_bytes, area.footer_bytes)));
    EPS_ASSIGN_OR_RETURN(const ExtentFooter footer,
                         extents_->Check(SlotOf(i), i, Extents::Part::kFooter, buffer()));
    const Version expected = ContentVersion(*area.chunk, cut_.border.version);
    if (footer.version != expected) {
      return extents_->Damaged(SlotOf(i), i,
                               absl::StrCat("version ", expected.value(), " expected, version ",
                                            footer.version.value(), " found"));
    }
    footers_.push_back(footer.crc32c);
  }
  const uint32_t crc = CrcOfFooters(footers_);
  if (crc == cut_.extents_crc32c) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(extents_->residual_file(0)->path(), ", ", extents_->residual_file(1)->path(),
                   ": footers of the cut of step ", cut_.border.id.step.value(), ": CRC32C ",
                   absl::Hex(cut_.extents_crc32c, absl::kZeroPad8), " expected, ",
                   absl::Hex(crc, absl::kZeroPad8), " found"));
}

absl::StatusOr<Bytes> CutReader::ReadChunk(ChunkId chunk) {
  const auto it = index_.find(chunk.value());
  if (it == index_.end()) {
    return absl::NotFoundError(absl::StrCat(extents_->residual_file(0)->path(), ": chunk ",
                                            chunk.value(), " is not here"));
  }
  const uint32_t index = it->second;
  const uint32_t slot = SlotOf(index);
  const ExtentLayout::Area& area = layout_.area(index);
  EPS_RETURN_IF_ERROR(ReadBlocking(extents_->file_of(slot, index), area.offset,
                                   absl::MakeSpan(buffer(), area.bytes())));
  EPS_ASSIGN_OR_RETURN(const ExtentFooter footer,
                       extents_->Check(slot, index, Extents::Part::kAll, buffer()));
  if (footer.crc32c != footers_[index]) {
    return extents_->Damaged(slot, index, "it has changed since it was opened");
  }
  const ChunkArrays arrays = {reinterpret_cast<float*>(buffer()),
                              area.stride_bytes / sizeof(float)};
  return compute_.ReadState(*area.chunk, arrays);
}

absl::StatusOr<std::vector<CutResidual>> CutReader::ReadResiduals() {
  AsyncFile* const file = extents_->residual_file(cut_.residuals_slot);
  ResidualReader reader(cut_.residuals_bytes, /*account=*/nullptr);
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(file->path(), ": residuals at offset ",
                                            layout_.residual_offset(), ": ", what));
  };
  const uint64_t buffer_bytes = std::max<uint64_t>(layout_.largest_area_bytes(), kDiskBlock);
  for (uint64_t at = 0; reader.left() > 0; at += buffer_bytes) {
    const uint64_t bytes = std::min(reader.left(), buffer_bytes);
    const uint64_t size = RoundUpTo(bytes, kDiskBlock);
    EPS_RETURN_IF_ERROR(
        ReadBlocking(file, layout_.residual_offset() + at, absl::MakeSpan(buffer(), size)));
    const absl::Status taken = reader.Take(absl::MakeConstSpan(buffer(), bytes));
    if (!taken.ok()) return damaged(taken.message());
  }
  if (reader.crc32c() != cut_.residuals_crc32c) {
    return damaged(absl::StrCat("CRC32C ", absl::Hex(cut_.residuals_crc32c, absl::kZeroPad8),
                                " expected, ", absl::Hex(reader.crc32c(), absl::kZeroPad8),
                                " found"));
  }
  absl::StatusOr<std::vector<CutResidual>> residuals = std::move(reader).Finish();
  if (!residuals.ok()) return damaged(residuals.status().message());
  return residuals;
}

}  // namespace eps
