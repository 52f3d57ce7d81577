#ifndef EPS_STORAGE_CSD_OPENCL_CHUNK_UPDATER_H_
#define EPS_STORAGE_CSD_OPENCL_CHUNK_UPDATER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "optimizer/chunk_compute.h"
#include "storage/csd/kernels/kernel_checks.h"
#include "storage/csd/kernels/kernel_records.h"
#include "storage/csd/opencl/session.h"

namespace eps::opencl {

// The memory of a device: a part of a buffer. Plain value.
struct MemoryPart {
  cl_mem buffer = nullptr;
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

// Checks, updates, measures and seals the chunks of one job with kernels in OpenCL C (chunk.cl, and
// optimizer/rules/opencl), which give the bits of csd::ChunkKernels. It has no codecs: a gradient
// is FP32, and weights are not encoded. Thread-safe; it runs one kernel at a time.
class ChunkUpdater {
 public:
  // `session` must outlive the updater; nobody else launches kernels in it. Unimplemented, with the
  // optimizers that it knows, for another one.
  static absl::StatusOr<std::unique_ptr<ChunkUpdater>> New(JobSpec spec, Session* session,
                                                           const MemoryPart& memory,
                                                           MemoryAccount* account);

  // Runs an encoded kernel over `bytes` of the memory from `at` on, as KernelRunner does.
  // InvalidArgument for a gradient that is not FP32 or not finite; Unimplemented for encodings.
  absl::StatusOr<std::string> Run(absl::string_view kernel, uint64_t at, uint64_t bytes)
      EPS_EXCLUDES(mu_);

 private:
  struct Verdict;
  struct Expected;
  struct Piece;

  // A range of the buffer in which a kernel runs.
  struct Range {
    uint64_t begin = 0;
    uint64_t bytes = 0;
  };
  // A gradient in the memory.
  struct Gradient {
    uint64_t at = 0;  // in the buffer
    uint64_t bytes = 0;
    uint32_t crc32c = 0;
  };
  // An update or a measurement whose inputs have passed their checks.
  struct Opened {
    csd::KernelChunk chunk;
    UpdateRequest request;
    uint64_t at = 0;  // of the chunk in the buffer
    uint64_t gradient_at = 0;
  };

  ChunkUpdater(JobSpec spec, Session* session, const MemoryPart& memory)
      : spec_(std::move(spec)),
        chunks_(ChunkMap::Build(spec_)),
        session_(session),
        memory_(memory) {}

  absl::Status Prepare(const std::string& rule);
  absl::StatusOr<csd::UpdateKernelResult> Do(const csd::UpdateKernel& kernel, const Range& range)
      EPS_REQUIRES(mu_);
  absl::StatusOr<ExtentFooter> Do(const csd::CheckKernel& kernel, const Range& range)
      EPS_REQUIRES(mu_);
  absl::StatusOr<csd::EncodeKernelResult> Do(const csd::EncodeKernel& kernel, const Range& range)
      EPS_REQUIRES(mu_);
  absl::StatusOr<MeasureResult> Do(const csd::MeasureKernel& kernel, const Range& range)
      EPS_REQUIRES(mu_);

  absl::StatusOr<Opened> Open(const csd::UpdateKernel& kernel, const Range& range)
      EPS_REQUIRES(mu_);
  // Checks a chunk at `at` of the buffer.
  absl::StatusOr<ExtentFooter> Check(const csd::KernelChunk& chunk, uint32_t slot, uint64_t at,
                                     const Gradient* gradient_or_null) EPS_REQUIRES(mu_);
  // Starts the kernels that compute the CRCs of a chunk's pieces, and of the gradient after them.
  absl::Status StartCrcs(const ExtentLayout::Area& area, uint64_t at,
                         const Gradient* gradient_or_null) EPS_REQUIRES(mu_);
  absl::StatusOr<double> SumSquares(const Opened& opened) EPS_REQUIRES(mu_);
  absl::Status StartUpdates(const Opened& opened) EPS_REQUIRES(mu_);
  absl::StatusOr<uint32_t> Seal(const Opened& opened, const csd::UpdateKernel& kernel)
      EPS_REQUIRES(mu_);
  absl::Status WriteSegments(const Chunk& chunk) EPS_REQUIRES(mu_);

  const JobSpec spec_;
  const ChunkMap chunks_;
  std::unique_ptr<const ChunkCompute> compute_;  // set once, by New
  Session* const session_;
  const MemoryPart memory_;
  // Of the kernels, beside the memory.
  cl_mem tables_ = nullptr;    // of CRCs
  cl_mem pieces_ = nullptr;    // under one CRC each
  cl_mem blocks_ = nullptr;    // CRCs of the pieces' blocks
  cl_mem crcs_ = nullptr;      // of the pieces
  cl_mem segments_ = nullptr;  // of the chunk
  cl_mem result_ = nullptr;
  Mutex mu_;  // held while a kernel runs
};

}  // namespace eps::opencl

#endif  // EPS_STORAGE_CSD_OPENCL_CHUNK_UPDATER_H_
