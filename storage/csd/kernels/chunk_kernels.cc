#include "storage/csd/kernels/chunk_kernels.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "optimizer/reduced_gradient.h"
#include "optimizer/update_request.h"
#include "storage/cuts/extents/extent_seals.h"
#include "storage/disk/block_bytes.h"

namespace eps::csd {
namespace {

// Errors name the device's memory; the host names its files.
constexpr char kHere[] = "device memory";

// Returns the gradient, which lies in `bytes`, after its check.
absl::StatusOr<std::shared_ptr<const EncodedChunk>> OpenGradient(const UpdateKernel& kernel,
                                                                 const Chunk& chunk,
                                                                 absl::Span<const uint8_t> bytes) {
  const uint32_t found = CrcOf(bytes.data(), bytes.size());
  if (found != kernel.gradient_crc32c) {
    return absl::DataLossError(absl::StrCat("the gradient of chunk ", chunk.id.value(),
                                            " in device memory: CRC32C ", kernel.gradient_crc32c,
                                            " expected, ", found, " found"));
  }
  EPS_ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(kernel.gradient_codec));
  return codec->Open(chunk, Axis::kRow, Bytes::Borrow(bytes), Content::kWeights);
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelRunner>> ChunkKernels::New(JobSpec spec,
                                                                MemoryAccount* account) {
  std::unique_ptr<ChunkKernels> kernels(new ChunkKernels(std::move(spec)));
  EPS_ASSIGN_OR_RETURN(ChunkCompute compute, ChunkCompute::New(kernels->spec_, account));
  kernels->compute_ = std::make_unique<const ChunkCompute>(std::move(compute));
  return kernels;
}

absl::StatusOr<std::string> ChunkKernels::Run(absl::string_view kernel,
                                              absl::Span<uint8_t> memory) const {
  EPS_ASSIGN_OR_RETURN(const UpdateKernel update, DecodeUpdateKernel(kernel));
  EPS_ASSIGN_OR_RETURN(const UpdateKernelResult result, Update(update, memory));
  return Encode(result);
}

absl::StatusOr<UpdateKernelResult> ChunkKernels::Update(const UpdateKernel& kernel,
                                                        absl::Span<uint8_t> memory) const {
  if (kernel.chunk.value() >= chunks_.chunks().size()) {
    return absl::InvalidArgumentError(absl::StrCat("update of chunk ", kernel.chunk.value(),
                                                   ": the job has ", chunks_.chunks().size()));
  }
  const Chunk& chunk = chunks_.chunk(kernel.chunk);
  const ExtentSeals seals(ExtentLayout(chunks_, {kernel.chunk}, compute_->arrays(),
                                       /*residual_bytes=*/0, spec_.training.parts),
                          kernel.nonce, {kHere});
  const ExtentLayout::Area& area = seals.layout().area(0);
  if (kernel.gradient_bytes > memory.size() ||
      area.bytes() > memory.size() - kernel.gradient_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("update of chunk ", kernel.chunk.value(), ": ",
                                                   area.bytes(), " + ", kernel.gradient_bytes,
                                                   " bytes do not fit into ", memory.size()));
  }
  EPS_ASSIGN_OR_RETURN(const ExtentFooter footer,
                       seals.Check(kernel.from_slot, 0, ExtentSeals::Part::kAll, memory.data()));
  if (footer.crc32c != kernel.from_crc32c) {
    return seals.Damaged(
        kernel.from_slot, 0,
        absl::StrCat("version ", kernel.from.value(), " as written last expected, version ",
                     footer.version.value(), " found"));
  }
  EPS_ASSIGN_OR_RETURN(std::shared_ptr<const EncodedChunk> gradient,
                       OpenGradient(kernel, chunk,
                                    memory.subspan(static_cast<size_t>(area.bytes()),
                                                   static_cast<size_t>(kernel.gradient_bytes))));
  UpdateRequest request;
  request.chunk = kernel.chunk;
  request.from = kernel.from;
  request.to = kernel.to;
  request.reduced = std::make_shared<GradientInMemory>(std::move(gradient));
  request.parts = spec_.training.parts;
  request.step = kernel.step;
  request.norm_scale = kernel.norm_scale;
  EPS_RETURN_IF_ERROR(ChunkCompute::CheckUpdate(chunk, footer.version, request));
  EPS_ASSIGN_OR_RETURN(const UpdateResult result,
                       compute_->Update(chunk, request,
                                        ChunkArrays{reinterpret_cast<float*>(memory.data()),
                                                    area.stride_bytes / sizeof(float), nullptr}));
  return UpdateKernelResult{
      result.sum_squares,
      seals.Seal(kernel.to_slot, 0, kernel.to, kernel.term, memory.data()).crc32c};
}

}  // namespace eps::csd
