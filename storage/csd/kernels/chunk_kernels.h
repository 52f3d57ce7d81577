#ifndef EPS_STORAGE_CSD_KERNELS_CHUNK_KERNELS_H_
#define EPS_STORAGE_CSD_KERNELS_CHUNK_KERNELS_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "optimizer/chunk_compute.h"
#include "storage/csd/kernel_runner.h"
#include "storage/csd/kernels/kernel_records.h"

namespace eps::csd {

// Updates, measures, checks and encodes the chunks of one job with the code of every other backend
// (optimizer/chunk_compute.h), so that a device gives the bits of the host. Immutable, thread-safe.
class ChunkKernels final : public KernelRunner {
 public:
  // `account` (for scratch) must outlive the kernels. Unimplemented for an unknown optimizer.
  static absl::StatusOr<std::unique_ptr<KernelRunner>> New(JobSpec spec, MemoryAccount* account);

  // InvalidArgument if the job has no such chunk or the memory is too small.
  absl::StatusOr<std::string> Run(absl::string_view kernel,
                                  absl::Span<uint8_t> memory) const override;
  // Update and measurement read the arrays and the gradient. Checks, seals and encodings take no
  // time of their own: they see bytes that pass anyway.
  UpdaterWork WorkOf(absl::string_view kernel) const override;

 private:
  explicit ChunkKernels(JobSpec spec) : spec_(std::move(spec)), chunks_(ChunkMap::Build(spec_)) {}

  // The chunk in the memory.
  struct Found;
  struct Opened;
  absl::StatusOr<Found> Find(const ChunkInMemory& chunk, absl::Span<uint8_t> memory) const;

  // Checks chunk and gradient.
  absl::StatusOr<Opened> Open(const UpdateKernel& kernel, absl::Span<uint8_t> memory) const;

  // Updates, and seals.
  absl::StatusOr<UpdateKernelResult> Run(const UpdateKernel& kernel,
                                         absl::Span<uint8_t> memory) const;
  absl::StatusOr<MeasureResult> Run(const MeasureKernel& kernel, absl::Span<uint8_t> memory) const;
  absl::StatusOr<ExtentFooter> Run(const CheckKernel& kernel, absl::Span<uint8_t> memory) const;
  absl::StatusOr<EncodeKernelResult> Run(const EncodeKernel& kernel,
                                         absl::Span<uint8_t> memory) const;

  const JobSpec spec_;
  const ChunkMap chunks_;
  std::unique_ptr<const ChunkCompute> compute_;  // set once, by New
};

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_KERNELS_CHUNK_KERNELS_H_
