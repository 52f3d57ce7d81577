#ifndef EPS_WIRE_SHM_SHARED_SEGMENT_H_
#define EPS_WIRE_SHM_SHARED_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/descriptor.h"

namespace eps {

// Who may write to a segment.
enum class SegmentWriters { kCreator, kEveryHolder };

// Memory that processes of one machine share: a file in memory without a name, mapped by each
// holder of its descriptor. Its size is sealed, so that no holder can make the others' accesses
// fail; with SegmentWriters::kCreator the kernel lets no other mapping write. The kernel frees it
// with its last holder, however that ends. Thread-safe but for the content.
class SharedSegment {
 public:
  // Creates a segment of zeros, of `bytes` rounded up to pages. ResourceExhausted with the size if
  // the kernel refuses it; FailedPrecondition if the kernel is too old for the seals.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Create(uint64_t bytes,
                                                               SegmentWriters writers);
  // Maps a segment that another process created, for reading, or for writing too with
  // SegmentWriters::kEveryHolder. InvalidArgument if it has less than `bytes` bytes, or lacks a
  // seal that this process relies on.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Open(Descriptor file, uint64_t bytes,
                                                             SegmentWriters writers);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // Writable by the creator, and by the others as SegmentWriters says.
  uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  int fd() const { return file_.get(); }

  // Returns the place of memory in this process; nullopt unless all of it lies in the segment.
  absl::optional<uint64_t> OffsetOf(absl::Span<const uint8_t> memory) const;
  // Returns the memory at a place that another process named. InvalidArgument with both sizes if
  // the place is not in the segment.
  absl::StatusOr<absl::Span<const uint8_t>> At(uint64_t offset, uint64_t bytes) const;

 private:
  SharedSegment(Descriptor file, uint8_t* data, uint64_t size)
      : file_(std::move(file)), data_(data), size_(size) {}
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Map(Descriptor file, uint64_t bytes,
                                                            bool writes);

  const Descriptor file_;
  uint8_t* const data_;
  const uint64_t size_;
};

}  // namespace eps

#endif  // EPS_WIRE_SHM_SHARED_SEGMENT_H_
