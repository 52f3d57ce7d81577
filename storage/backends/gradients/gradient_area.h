#ifndef EPS_STORAGE_BACKENDS_GRADIENTS_GRADIENT_AREA_H_
#define EPS_STORAGE_BACKENDS_GRADIENTS_GRADIENT_AREA_H_

// The file gradients.eps of a job, one on each drive, in which the reduced gradients of mode sealed
// wait for their update. No process reads what an earlier one has written: a recovery starts from a
// cut and reduces again. So nothing here is synced.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "compression/codec.h"
#include "optimizer/reduced_gradient.h"
#include "storage/cuts/extents/extents.h"
#include "storage/disk/disk.h"

namespace eps::durable {

// The places of an area, which their handles share.
struct GradientPlaces {
  // The place of one chunk's gradient.
  struct Spot {
    uint32_t drive = 0;
    uint64_t offset = 0;  // in the drive's file
  };
  explicit GradientPlaces(const ExtentLayout& layout) : taken(layout.areas().size()) {
    for (const ExtentLayout::Area& area : layout.areas()) {
      spots.push_back({area.drive, area.gradient_offset});
    }
  }

  std::vector<std::string> paths;  // by drive; for messages
  std::vector<Spot> spots;         // by index
  Mutex mu;
  std::vector<bool> taken EPS_GUARDED_BY(mu);  // by index
};

// The place of a chunk, which nobody else has until this is destroyed, on any thread.
class GradientPlace {
 public:
  GradientPlace(std::shared_ptr<GradientPlaces> places, uint32_t index)
      : places_(std::move(places)), index_(index) {}
  ~GradientPlace();
  GradientPlace(const GradientPlace&) = delete;
  GradientPlace& operator=(const GradientPlace&) = delete;

  uint32_t drive() const { return places_->spots[index_].drive; }
  const std::string& path() const { return places_->paths[drive()]; }
  uint64_t offset() const { return places_->spots[index_].offset; }

 private:
  const std::shared_ptr<GradientPlaces> places_;
  const uint32_t index_;
};

// A gradient in its place.
class StoredGradient final : public ReducedGradient {
 public:
  // The gradient is the first `size` bytes of `memory`, which GradientArea::Write then stores.
  StoredGradient(std::unique_ptr<GradientPlace> place, const Codec* codec,
                 absl::Span<const uint8_t> memory, size_t size);

  const GradientPlace& place() const { return *place_; }
  const Codec* codec() const { return codec_; }
  uint32_t crc32c() const { return crc32c_; }
  size_t size() const { return size_; }

  bool in_memory() const override { return false; }
  absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(
      const Chunk& chunk, absl::Span<const uint8_t> stored) const override;

 private:
  const std::unique_ptr<GradientPlace> place_;
  const Codec* const codec_;
  const size_t size_;
  const uint32_t crc32c_;
};

// The files and their places (ExtentLayout). Thread-safe. Handles of places may outlive the area;
// nobody reads them then.
class GradientArea {
 public:
  // The path of the file in the folder of a drive.
  static std::string PathIn(const std::string& folder);
  // Opens the file in the folder of each drive, or creates it with `blocking`, durably; one of
  // another size is replaced. `disk` must outlive the area. ResourceExhausted with the missing
  // bytes.
  static absl::StatusOr<std::unique_ptr<GradientArea>> Open(Disk* blocking, Disk* disk,
                                                            const Extents::Folders& folders,
                                                            const ExtentLayout& layout);

  // Takes the place of the chunk with this index. Null if an earlier gradient still has it.
  std::unique_ptr<GradientPlace> Take(uint32_t index);

  // Transfer whole blocks between a gradient's place and memory of a staging buffer, and complete
  // as in AsyncFile. `into` has room for ExtentLayout::largest_gradient_bytes.
  void Write(const StoredGradient& gradient, const uint8_t* from, AsyncFile::Done done);
  void Read(const StoredGradient& gradient, uint8_t* into, AsyncFile::Done done);

 private:
  using Files = std::vector<std::unique_ptr<AsyncFile>>;

  GradientArea(Files files, const ExtentLayout& layout);

  const Files files_;  // by drive
  const std::shared_ptr<GradientPlaces> places_;
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_GRADIENTS_GRADIENT_AREA_H_
