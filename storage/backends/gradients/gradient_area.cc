#include "storage/backends/gradients/gradient_area.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "storage/disk/block_bytes.h"

namespace eps::durable {
namespace {

constexpr char kFile[] = "gradients.eps";

// Creates the file unless it is there with that size.
absl::Status EnsureFile(Disk* disk, const std::string& path, uint64_t bytes) {
  const absl::StatusOr<std::unique_ptr<AsyncFile>> found = disk->Open(path);
  if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
  if (found.ok()) {
    if ((*found)->size() == bytes) return absl::OkStatus();
    EPS_RETURN_IF_ERROR(disk->Remove(path));
  }
  return disk->CreateFile(path, bytes);
}

}  // namespace

GradientPlace::~GradientPlace() {
  MutexLock lock(&places_->mu);
  places_->taken[index_] = false;
}

StoredGradient::StoredGradient(std::unique_ptr<GradientPlace> place, const Codec* codec,
                               absl::Span<const uint8_t> memory, size_t size)
    : place_(std::move(place)), codec_(codec), size_(size), crc32c_(CrcOf(memory.data(), size)) {}

absl::StatusOr<std::shared_ptr<const EncodedChunk>> StoredGradient::Open(
    const Chunk& chunk, absl::Span<const uint8_t> stored) const {
  EPS_CHECK(stored.size() >= size_);
  const uint32_t found = CrcOf(stored.data(), size_);
  if (found != crc32c_) {
    return absl::DataLossError(absl::StrFormat(
        "%s: the gradient of chunk %d at offset %d: CRC32C %08x expected, %08x found",
        place_->path(), chunk.id.value(), place_->offset(), crc32c_, found));
  }
  return codec_->Open(chunk, Axis::kRow, Bytes::Borrow(stored.subspan(0, size_)),
                      Content::kWeights);
}

GradientArea::GradientArea(Files files, const ExtentLayout& layout)
    : files_(std::move(files)), places_(std::make_shared<GradientPlaces>(layout)) {
  for (const std::unique_ptr<AsyncFile>& file : files_) places_->paths.push_back(file->path());
}

std::string GradientArea::PathIn(const std::string& folder) {
  return absl::StrCat(folder, "/", kFile);
}

absl::StatusOr<std::unique_ptr<GradientArea>> GradientArea::Open(Disk* blocking, Disk* disk,
                                                                 const Extents::Folders& folders,
                                                                 const ExtentLayout& layout) {
  Files files;
  for (uint32_t drive = 0; drive < layout.drives(); ++drive) {
    const std::string path = PathIn(folders[drive]);
    EPS_RETURN_IF_ERROR(EnsureFile(blocking, path, layout.gradient_file_bytes(drive)));
    EPS_ASSIGN_OR_RETURN(files.emplace_back(), disk->Open(path));
  }
  return std::unique_ptr<GradientArea>(new GradientArea(std::move(files), layout));
}

std::unique_ptr<GradientPlace> GradientArea::Take(uint32_t index) {
  MutexLock lock(&places_->mu);
  if (places_->taken[index]) return nullptr;
  places_->taken[index] = true;
  return std::make_unique<GradientPlace>(places_, index);
}

void GradientArea::Write(const StoredGradient& gradient, const uint8_t* from,
                         AsyncFile::Done done) {
  const GradientPlace& place = gradient.place();
  files_[place.drive()]->Write(place.offset(),
                               absl::MakeConstSpan(from, RoundUpTo(gradient.size(), kDiskBlock)),
                               std::move(done));
}

void GradientArea::Read(const StoredGradient& gradient, uint8_t* into, AsyncFile::Done done) {
  const GradientPlace& place = gradient.place();
  files_[place.drive()]->Read(place.offset(),
                              absl::MakeSpan(into, RoundUpTo(gradient.size(), kDiskBlock)),
                              std::move(done));
}

}  // namespace eps::durable
