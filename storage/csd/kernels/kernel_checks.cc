#include "storage/csd/kernels/kernel_checks.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps::csd {
namespace {

// Errors name the device's memory; the host names its files.
constexpr char kHere[] = "device memory";

}  // namespace

absl::StatusOr<ExtentFooter> KernelChunk::CheckWritten(uint32_t slot, const ExtentFooter& footer,
                                                       Version expected, uint32_t crc32c) const {
  if (footer.crc32c == crc32c) return footer;
  return seals.Damaged(
      slot, 0,
      absl::StrCat("version ", expected.value(), " as written last expected, version ",
                   footer.version.value(), " found"));
}

absl::Status CheckFits(ChunkId chunk, uint64_t at, uint64_t bytes, uint64_t memory_bytes) {
  if (at <= memory_bytes && bytes <= memory_bytes - at) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("kernel for chunk ", chunk.value(), ": ", bytes,
                                                 " bytes at ", at, " of ", memory_bytes));
}

absl::StatusOr<KernelChunk> FindChunk(const JobSpec& spec, const ChunkMap& chunks, size_t arrays,
                                      const ChunkInMemory& chunk, uint64_t memory_bytes) {
  const uint32_t id = chunk.chunk.value();
  if (id >= chunks.chunks().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("kernel for chunk ", id, ": the job has ", chunks.chunks().size()));
  }
  const ExtentLayout layout(chunks, {chunk.chunk}, arrays, /*residual_bytes=*/0,
                            spec.training.parts);
  KernelChunk found = {&chunks.chunk(chunk.chunk), ExtentSeals(layout, chunk.nonce, {kHere})};
  EPS_RETURN_IF_ERROR(CheckFits(chunk.chunk, chunk.at, found.area().bytes(), memory_bytes));
  return found;
}

absl::Status CheckGradient(ChunkId chunk, uint32_t expected, uint32_t found) {
  if (found == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the gradient of chunk ", chunk.value(),
                                          " in device memory: CRC32C ", expected, " expected, ",
                                          found, " found"));
}

UpdateRequest RequestOf(const UpdateKernel& kernel, const JobSpec& spec) {
  UpdateRequest request;
  request.chunk = kernel.from.chunk;
  request.from = kernel.from_version;
  request.to = kernel.to;
  request.parts = spec.training.parts;
  request.step = kernel.step;
  request.trust_ratios = kernel.trust_ratios;
  request.norm_scale = kernel.norm_scale;
  return request;
}

}  // namespace eps::csd
