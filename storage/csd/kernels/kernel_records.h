#ifndef EPS_STORAGE_CSD_KERNELS_KERNEL_RECORDS_H_
#define EPS_STORAGE_CSD_KERNELS_KERNEL_RECORDS_H_

// The computations of a device over the chunk in its memory, as its host asks for them.
//
// A kernel and its result are records (storage/records/sealed_record.h). A kernel begins with u32
// kind: 0 update, 1 check, 2 encode, 3 measure. Then come the fields of its struct below in their
// order: chunk, slot and CRC32C as u32, version, term, nonce, update, bytes and offsets as u64, a
// float or double as f64, a flag and an axis as u32, a name as u32 length and text, and a list as
// u32 length and elements. All are little-endian.

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "base/job/layout.h"
#include "optimizer/update_request.h"
#include "optimizer/update_rule.h"
#include "storage/cuts/extents/extent_seals.h"

namespace eps::csd {

// A chunk in the memory, as it lies in a slot (storage/cuts/extents/extent_seals.h). Offsets are
// those from the begin of the memory that the kernel is run over.
struct ChunkInMemory {
  uint64_t at = 0;
  ChunkId chunk;
  uint64_t nonce = 0;  // of the extents
  uint32_t slot = 0;   // that it was read from
};

// Updates the chunk with a gradient elsewhere in the memory, and seals it for another slot. Plain
// value.
struct UpdateKernel {
  ChunkInMemory from;
  uint32_t from_crc32c = 0;  // of the footer
  Version from_version;
  // The slot, version and term of what the kernel leaves in the memory.
  uint32_t to_slot = 0;
  Version to;
  Term term;
  StepScalars step;
  float norm_scale = 1;
  std::string gradient_codec;
  uint64_t gradient_at = 0;
  uint64_t gradient_bytes = 0;
  uint32_t gradient_crc32c = 0;
  std::vector<double> trust_ratios;  // as in UpdateRequest
};

// The most segments of a chunk whose norms fit into a result (kMaxKernelBytes).
inline constexpr size_t kMaxMeasuredSegments = 200;

// The result of an UpdateKernel. Plain value.
struct UpdateKernelResult {
  double sum_squares = 0;  // as in UpdateResult
  uint32_t crc32c = 0;     // of the new footer
};

// Measures the chunk for that update, of whose result nothing is used. Changes no memory. Plain
// value.
struct MeasureKernel {
  UpdateKernel update;
};

// Checks the whole chunk. The result is its footer. Plain value.
struct CheckKernel {
  ChunkInMemory chunk;
};

// Encodes the weights of the chunk, of which it needs no other array. Plain value.
struct EncodeKernel {
  ChunkInMemory from;
  // Whether the weights are checked, and the CRC32C of their footer. False after an update.
  bool check = false;
  uint32_t from_crc32c = 0;
  Version version;
  std::string codec;
  Axis axis = Axis::kRow;
  // Where the result goes, and the most bytes of it.
  uint64_t to_at = 0;
  uint64_t to_bytes = 0;
};

// The result of an EncodeKernel. Plain value.
struct EncodeKernelResult {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;  // of these bytes
};

using Kernel = std::variant<UpdateKernel, CheckKernel, EncodeKernel, MeasureKernel>;

std::string Encode(const Kernel& kernel);
std::string Encode(const UpdateKernelResult& result);
std::string Encode(const ExtentFooter& result);
std::string Encode(const EncodeKernelResult& result);
std::string Encode(const MeasureResult& result);
// DataLoss for anything but what Encode returns.
absl::StatusOr<Kernel> DecodeKernel(absl::string_view record);
absl::StatusOr<UpdateKernelResult> DecodeUpdateKernelResult(absl::string_view record);
absl::StatusOr<ExtentFooter> DecodeCheckKernelResult(absl::string_view record);
absl::StatusOr<EncodeKernelResult> DecodeEncodeKernelResult(absl::string_view record);
absl::StatusOr<MeasureResult> DecodeMeasureKernelResult(absl::string_view record);

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_KERNELS_KERNEL_RECORDS_H_
