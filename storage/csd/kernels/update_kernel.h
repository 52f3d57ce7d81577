#ifndef EPS_STORAGE_CSD_KERNELS_UPDATE_KERNEL_H_
#define EPS_STORAGE_CSD_KERNELS_UPDATE_KERNEL_H_

// The update of one chunk in the memory of a device, as its host asks for it.
//
// Both are records (storage/records/sealed_record.h). Fields of the kernel: u32 chunk, u64 nonce,
// u32 slot, u32 CRC32C and u64 version that it has, u32 slot, u64 version and u64 term that it
// gets, f64 learning rate, f64 and f64 bias corrections, f64 gradient scale, u64 update, f64 norm
// scale; u32 length and name of the gradient's codec, u64 bytes and u32 CRC32C of the gradient.
// Fields of the result: f64 sum of squares, u32 CRC32C of the footer. All are little-endian.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "optimizer/update_rule.h"

namespace eps::csd {

// Memory of the kernel: the chunk's area, as it lies in a slot (storage/cuts/extents/
// extent_seals.h), and after it the gradient. Plain value.
struct UpdateKernel {
  ChunkId chunk;
  uint64_t nonce = 0;  // of the extents
  // The content that is updated, and its slot.
  uint32_t from_slot = 0;
  uint32_t from_crc32c = 0;
  Version from;
  // The slot, version and term of what the kernel leaves in the memory.
  uint32_t to_slot = 0;
  Version to;
  Term term;
  StepScalars step;
  float norm_scale = 1;
  std::string gradient_codec;
  uint64_t gradient_bytes = 0;
  uint32_t gradient_crc32c = 0;
};

// The result of an UpdateKernel. Plain value.
struct UpdateKernelResult {
  double sum_squares = 0;  // as in UpdateResult
  uint32_t crc32c = 0;     // of the new footer
};

std::string Encode(const UpdateKernel& kernel);
std::string Encode(const UpdateKernelResult& result);
// DataLoss for anything but what Encode returns.
absl::StatusOr<UpdateKernel> DecodeUpdateKernel(absl::string_view record);
absl::StatusOr<UpdateKernelResult> DecodeUpdateKernelResult(absl::string_view record);

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_KERNELS_UPDATE_KERNEL_H_
