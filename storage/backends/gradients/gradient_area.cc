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

GradientArea::GradientArea(std::unique_ptr<AsyncFile> file, const ExtentLayout& layout)
    : file_(std::move(file)), places_(std::make_shared<GradientPlaces>()) {
  places_->path = file_->path();
  uint64_t offset = 0;
  for (const ExtentLayout::Area& area : layout.areas()) {
    places_->offsets.push_back(offset);
    offset += area.gradient_bytes;
  }
  MutexLock lock(&places_->mu);
  places_->taken.resize(layout.areas().size());
}

absl::StatusOr<std::unique_ptr<GradientArea>> GradientArea::Open(Disk* blocking, Disk* disk,
                                                                 const std::string& folder,
                                                                 const ExtentLayout& layout) {
  const std::string path = absl::StrCat(folder, "/", kFile);
  const uint64_t bytes = layout.gradient_file_bytes();
  absl::StatusOr<std::unique_ptr<AsyncFile>> found = blocking->Open(path);
  const bool fits = found.ok() && (*found)->size() == bytes;
  if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
  if (found.ok() && !fits) EPS_RETURN_IF_ERROR(blocking->Remove(path));
  if (!fits) EPS_RETURN_IF_ERROR(blocking->CreateFile(path, bytes));
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<AsyncFile> file, disk->Open(path));
  return std::unique_ptr<GradientArea>(new GradientArea(std::move(file), layout));
}

std::unique_ptr<GradientPlace> GradientArea::Take(uint32_t index) {
  MutexLock lock(&places_->mu);
  if (places_->taken[index]) return nullptr;
  places_->taken[index] = true;
  return std::make_unique<GradientPlace>(places_, index);
}

void GradientArea::Write(const StoredGradient& gradient, const uint8_t* from,
                         AsyncFile::Done done) {
  file_->Write(gradient.place().offset(),
               absl::MakeConstSpan(from, RoundUpTo(gradient.size(), kDiskBlock)), std::move(done));
}

void GradientArea::Read(const StoredGradient& gradient, uint8_t* into, AsyncFile::Done done) {
  file_->Read(gradient.place().offset(),
              absl::MakeSpan(into, RoundUpTo(gradient.size(), kDiskBlock)), std::move(done));
}

}  // namespace eps::durable
