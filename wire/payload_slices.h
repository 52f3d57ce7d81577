#ifndef EPS_WIRE_PAYLOAD_SLICES_H_
#define EPS_WIRE_PAYLOAD_SLICES_H_

// Payloads that are longer than a message travel in slices. Both sides of every stream cut and
// assemble them here.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/memory_account.h"
#include "grpcpp/support/slice.h"

namespace eps {

// The place of one slice in its payload.
struct PayloadSlice {
  size_t offset = 0;
  size_t size = 0;
  bool last = false;
};

// Returns the slices of a payload of `total` bytes, in the order in which they are sent, each of at
// most kMaxSliceBytes. An empty payload has one empty slice, which is the last.
std::vector<PayloadSlice> SlicesOf(size_t total);

// Assembles slices that arrive in order into one buffer of a known size. Thread-compatible.
class PayloadAssembler {
 public:
  PayloadAssembler() = default;
  // Allocates `size` bytes now and charges them to `account` as `kind`.
  PayloadAssembler(size_t size, MemoryKind kind, MemoryAccount* account);
  // Returns an assembler that checks and counts slices but keeps no bytes.
  static PayloadAssembler Dropping(size_t size);

  // Copies one slice, given as pieces, to `offset`, which must be the end of the previous slice.
  // Returns InvalidArgument, and copies nothing, for a gap, a repetition or an overflow.
  absl::Status Append(uint64_t offset, const std::vector<grpc::Slice>& pieces);
  absl::Status Append(uint64_t offset, absl::Span<const uint8_t> slice);
  size_t received() const { return received_; }
  size_t size() const { return size_; }
  // Returns the bytes received so far and leaves the assembler empty.
  Bytes Take();

 private:
  absl::Status CheckPlace(uint64_t offset, size_t bytes) const;
  void Copy(absl::Span<const uint8_t> slice);

  Buffer buffer_;  // empty if no bytes are kept
  size_t size_ = 0;
  size_t received_ = 0;
};

}  // namespace eps

#endif  // EPS_WIRE_PAYLOAD_SLICES_H_
