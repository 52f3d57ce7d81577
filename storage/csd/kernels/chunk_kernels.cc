#include "storage/csd/kernels/chunk_kernels.h"

#include <algorithm>
#include <cstdint>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "optimizer/reduced_gradient.h"
#include "optimizer/update_request.h"
#include "storage/csd/kernels/kernel_checks.h"
#include "storage/cuts/extents/extent_seals.h"
#include "storage/disk/block_bytes.h"

namespace eps::csd {
namespace {

// Returns the gradient, which lies in `bytes`, after its check.
absl::StatusOr<std::shared_ptr<const EncodedChunk>> OpenGradient(const UpdateKernel& kernel,
                                                                 const Chunk& chunk,
                                                                 absl::Span<const uint8_t> bytes) {
  EPS_RETURN_IF_ERROR(
      CheckGradient(chunk.id, kernel.gradient_crc32c, CrcOf(bytes.data(), bytes.size())));
  EPS_ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(kernel.gradient_codec));
  return codec->Open(chunk, Axis::kRow, Bytes::Borrow(bytes), Content::kWeights);
}

// Returns a slice of the memory, which is for something of a chunk.
absl::StatusOr<absl::Span<uint8_t>> Slice(absl::Span<uint8_t> memory, uint64_t at, uint64_t bytes,
                                          ChunkId chunk) {
  EPS_RETURN_IF_ERROR(CheckFits(chunk, at, bytes, memory.size()));
  return memory.subspan(static_cast<size_t>(at), static_cast<size_t>(bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelRunner>> ChunkKernels::New(JobSpec spec,
                                                                MemoryAccount* account) {
  std::unique_ptr<ChunkKernels> kernels(new ChunkKernels(std::move(spec)));
  EPS_ASSIGN_OR_RETURN(ChunkCompute compute, ChunkCompute::New(kernels->spec_, account));
  kernels->compute_ = std::make_unique<const ChunkCompute>(std::move(compute));
  return kernels;
}

struct ChunkKernels::Found : KernelChunk {
  uint8_t* memory = nullptr;  // of its area

  ChunkArrays arrays() const {
    return {reinterpret_cast<float*>(memory), area().stride_bytes / sizeof(float), nullptr};
  }
  // Checks a part of the chunk, which must be the one that was written last.
  absl::StatusOr<ExtentFooter> Check(uint32_t slot, ExtentSeals::Part part, Version expected,
                                     uint32_t crc32c) const {
    EPS_ASSIGN_OR_RETURN(const ExtentFooter footer, seals.Check(slot, 0, part, memory));
    return CheckWritten(slot, footer, expected, crc32c);
  }
};

absl::StatusOr<ChunkKernels::Found> ChunkKernels::Find(const ChunkInMemory& chunk,
                                                       absl::Span<uint8_t> memory) const {
  EPS_ASSIGN_OR_RETURN(KernelChunk found,
                       FindChunk(spec_, chunks_, compute_->arrays(), chunk, memory.size()));
  return Found{std::move(found), memory.data() + chunk.at};
}

absl::StatusOr<std::string> ChunkKernels::Run(absl::string_view kernel,
                                              absl::Span<uint8_t> memory) const {
  EPS_ASSIGN_OR_RETURN(const Kernel decoded, DecodeKernel(kernel));
  return std::visit(
      [&](const auto& k) -> absl::StatusOr<std::string> {
        EPS_ASSIGN_OR_RETURN(const auto result, Run(k, memory));
        return Encode(result);
      },
      decoded);
}

UpdaterWork ChunkKernels::WorkOf(absl::string_view kernel) const {
  const absl::StatusOr<Kernel> decoded = DecodeKernel(kernel);
  if (!decoded.ok()) return {};
  const auto* const measure = std::get_if<MeasureKernel>(&*decoded);
  const UpdateKernel* const update =
      measure != nullptr ? &measure->update : std::get_if<UpdateKernel>(&*decoded);
  if (update == nullptr || update->from.chunk.value() >= chunks_.chunks().size()) return {};
  const uint64_t elements = chunks_.chunk(update->from.chunk).elements;
  return {elements * compute_->arrays() * sizeof(float) + update->gradient_bytes,
          /*decompresses=*/update->gradient_bytes < elements};
}

// An update or a measurement whose inputs have passed their checks.
struct ChunkKernels::Opened {
  Found found;
  UpdateRequest request;
};

absl::StatusOr<ChunkKernels::Opened> ChunkKernels::Open(const UpdateKernel& kernel,
                                                        absl::Span<uint8_t> memory) const {
  EPS_ASSIGN_OR_RETURN(Found found, Find(kernel.from, memory));
  EPS_ASSIGN_OR_RETURN(const absl::Span<uint8_t> encoded,
                       Slice(memory, kernel.gradient_at, kernel.gradient_bytes, kernel.from.chunk));
  EPS_ASSIGN_OR_RETURN(const ExtentFooter footer,
                       found.Check(kernel.from.slot, ExtentSeals::Part::kAll, kernel.from_version,
                                   kernel.from_crc32c));
  EPS_ASSIGN_OR_RETURN(std::shared_ptr<const EncodedChunk> gradient,
                       OpenGradient(kernel, *found.chunk, encoded));
  UpdateRequest request = RequestOf(kernel, spec_);
  request.reduced = std::make_shared<GradientInMemory>(std::move(gradient));
  EPS_RETURN_IF_ERROR(ChunkCompute::CheckUpdate(*found.chunk, footer.version, request));
  return Opened{std::move(found), std::move(request)};
}

absl::StatusOr<UpdateKernelResult> ChunkKernels::Run(const UpdateKernel& kernel,
                                                     absl::Span<uint8_t> memory) const {
  EPS_ASSIGN_OR_RETURN(const Opened opened, Open(kernel, memory));
  const Found& found = opened.found;
  EPS_ASSIGN_OR_RETURN(const UpdateResult result,
                       compute_->Update(*found.chunk, opened.request, found.arrays()));
  return UpdateKernelResult{
      result.sum_squares,
      found.seals.Seal(kernel.to_slot, 0, kernel.to, kernel.term, found.memory).crc32c};
}

absl::StatusOr<MeasureResult> ChunkKernels::Run(const MeasureKernel& kernel,
                                                absl::Span<uint8_t> memory) const {
  if (!compute_->adapts()) {
    return absl::InvalidArgumentError("kernel that measures: the optimizer does not adapt");
  }
  EPS_ASSIGN_OR_RETURN(const Opened opened, Open(kernel.update, memory));
  return compute_->Measure(*opened.found.chunk, opened.request, opened.found.arrays());
}

absl::StatusOr<ExtentFooter> ChunkKernels::Run(const CheckKernel& kernel,
                                               absl::Span<uint8_t> memory) const {
  EPS_ASSIGN_OR_RETURN(const Found found, Find(kernel.chunk, memory));
  return found.seals.Check(kernel.chunk.slot, 0, ExtentSeals::Part::kAll, found.memory);
}

absl::StatusOr<EncodeKernelResult> ChunkKernels::Run(const EncodeKernel& kernel,
                                                     absl::Span<uint8_t> memory) const {
  EPS_ASSIGN_OR_RETURN(const Found found, Find(kernel.from, memory));
  EPS_ASSIGN_OR_RETURN(const absl::Span<uint8_t> out,
                       Slice(memory, kernel.to_at, kernel.to_bytes, kernel.from.chunk));
  if (kernel.check) {
    EPS_RETURN_IF_ERROR(found
                            .Check(kernel.from.slot, ExtentSeals::Part::kWeights, kernel.version,
                                   kernel.from_crc32c)
                            .status());
  }
  EPS_ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(kernel.codec));
  const Bytes encoded =
      compute_->Read(*found.chunk, kernel.version, *codec, kernel.axis, found.arrays());
  if (encoded.size() > out.size()) {
    return absl::InvalidArgumentError(absl::StrCat("weights of chunk ", kernel.from.chunk.value(),
                                                   " in ", kernel.codec, ": ", encoded.size(),
                                                   " bytes do not fit into ", out.size()));
  }
  std::copy(encoded.data(), encoded.data() + encoded.size(), out.begin());
  return EncodeKernelResult{encoded.size(), CrcOf(out.data(), encoded.size())};
}

}  // namespace eps::csd
