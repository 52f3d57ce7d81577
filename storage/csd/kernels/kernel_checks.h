#ifndef EPS_STORAGE_CSD_KERNELS_KERNEL_CHECKS_H_
#define EPS_STORAGE_CSD_KERNELS_KERNEL_CHECKS_H_

// The meaning of a kernel's fields, and the errors of kernels, which are the same whatever
// computes.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "optimizer/update_request.h"
#include "storage/csd/kernels/kernel_records.h"
#include "storage/cuts/extents/extent_seals.h"

namespace eps::csd {

// A chunk that a kernel is for, as the only one of a layout. Errors name the device's memory; the
// host names its files. Plain value.
struct KernelChunk {
  const Chunk* chunk = nullptr;
  ExtentSeals seals;

  const ExtentLayout::Area& area() const { return seals.layout().area(0); }
  // Returns `footer`, which was found, if it has the expected CRC32C. DataLoss with both versions.
  absl::StatusOr<ExtentFooter> CheckWritten(uint32_t slot, const ExtentFooter& footer,
                                            Version expected, uint32_t crc32c) const;
};

// `chunks` must outlive the result. InvalidArgument if the job has no such chunk or if the memory
// ends before its area.
absl::StatusOr<KernelChunk> FindChunk(const JobSpec& spec, const ChunkMap& chunks, size_t arrays,
                                      const ChunkInMemory& chunk, uint64_t memory_bytes);

// InvalidArgument unless something of the chunk that begins at `at` fits into the memory.
absl::Status CheckFits(ChunkId chunk, uint64_t at, uint64_t bytes, uint64_t memory_bytes);

// DataLoss if they differ.
absl::Status CheckGradient(ChunkId chunk, uint32_t expected, uint32_t found);

// Returns the request of an update, without its gradient.
UpdateRequest RequestOf(const UpdateKernel& kernel, const JobSpec& spec);

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_KERNELS_KERNEL_CHECKS_H_
