#include "storage/csd/kernels/update_kernel.h"

#include <utility>

#include "base/status_macros.h"
#include "storage/records/sealed_record.h"

namespace eps::csd {
namespace {

constexpr absl::string_view kKernelKey = "update kernel";
constexpr absl::string_view kResultKey = "result of an update kernel";

}  // namespace

std::string Encode(const UpdateKernel& kernel) {
  RecordWriter writer;
  writer.U32(kernel.chunk.value());
  writer.U64(kernel.nonce);
  writer.U32(kernel.from_slot);
  writer.U32(kernel.from_crc32c);
  writer.U64(kernel.from.value());
  writer.U32(kernel.to_slot);
  writer.U64(kernel.to.value());
  writer.U64(kernel.term.value());
  writer.F64(kernel.step.lr);
  writer.F64(kernel.step.bias_correction1);
  writer.F64(kernel.step.bias_correction2);
  writer.F64(kernel.step.grad_scale);
  writer.U64(kernel.step.update);
  writer.F64(kernel.norm_scale);
  writer.U32(static_cast<uint32_t>(kernel.gradient_codec.size()));
  writer.Text(kernel.gradient_codec);
  writer.U64(kernel.gradient_bytes);
  writer.U32(kernel.gradient_crc32c);
  return SealRecord(kKernelKey, std::move(writer).Take());
}

absl::StatusOr<UpdateKernel> DecodeUpdateKernel(absl::string_view record) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kKernelKey, record));
  RecordReader reader(fields);
  UpdateKernel kernel;
  kernel.chunk = ChunkId(reader.U32());
  kernel.nonce = reader.U64();
  kernel.from_slot = reader.U32();
  kernel.from_crc32c = reader.U32();
  kernel.from = Version(reader.U64());
  kernel.to_slot = reader.U32();
  kernel.to = Version(reader.U64());
  kernel.term = Term(reader.U64());
  kernel.step.lr = reader.F64();
  kernel.step.bias_correction1 = reader.F64();
  kernel.step.bias_correction2 = reader.F64();
  kernel.step.grad_scale = static_cast<float>(reader.F64());
  kernel.step.update = reader.U64();
  kernel.norm_scale = static_cast<float>(reader.F64());
  kernel.gradient_codec = std::string(reader.Text(reader.U32()));
  kernel.gradient_bytes = reader.U64();
  kernel.gradient_crc32c = reader.U32();
  if (!reader.complete() || kernel.from_slot > 1 || kernel.to_slot > 1) {
    return DamagedRecord(kKernelKey, "its fields have no meaning");
  }
  return kernel;
}

std::string Encode(const UpdateKernelResult& result) {
  RecordWriter writer;
  writer.F64(result.sum_squares);
  writer.U32(result.crc32c);
  return SealRecord(kResultKey, std::move(writer).Take());
}

absl::StatusOr<UpdateKernelResult> DecodeUpdateKernelResult(absl::string_view record) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kResultKey, record));
  RecordReader reader(fields);
  UpdateKernelResult result;
  result.sum_squares = reader.F64();
  result.crc32c = reader.U32();
  if (!reader.complete()) return DamagedRecord(kResultKey, "a field is missing");
  return result;
}

}  // namespace eps::csd
