#include "storage/csd/kernels/kernel_records.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "storage/records/sealed_record.h"

namespace eps::csd {
namespace {

constexpr absl::string_view kKernelKey = "kernel";
constexpr absl::string_view kUpdateResultKey = "result of an update";
constexpr absl::string_view kCheckResultKey = "result of a check";
constexpr absl::string_view kEncodeResultKey = "result of an encoding";
constexpr absl::string_view kMeasureResultKey = "result of a measurement";

void WriteName(const std::string& name, RecordWriter* writer) {
  writer->U32(static_cast<uint32_t>(name.size()));
  writer->Text(name);
}

std::string ReadName(RecordReader* reader) { return std::string(reader->Text(reader->U32())); }

// Each kind of kernel has a function that writes it, and one that reads it and returns whether its
// fields have a meaning.
void Write(const ChunkInMemory& chunk, RecordWriter* writer) {
  writer->U64(chunk.at);
  writer->U32(chunk.chunk.value());
  writer->U64(chunk.nonce);
  writer->U32(chunk.slot);
}

bool Read(RecordReader* reader, ChunkInMemory* chunk) {
  chunk->at = reader->U64();
  chunk->chunk = ChunkId(reader->U32());
  chunk->nonce = reader->U64();
  chunk->slot = reader->U32();
  return chunk->slot <= 1;
}

void Write(const UpdateKernel& kernel, RecordWriter* writer) {
  Write(kernel.from, writer);
  writer->U32(kernel.from_crc32c);
  writer->U64(kernel.from_version.value());
  writer->U32(kernel.to_slot);
  writer->U64(kernel.to.value());
  writer->U64(kernel.term.value());
  writer->F64(kernel.step.lr);
  writer->F64(kernel.step.bias_correction1);
  writer->F64(kernel.step.bias_correction2);
  writer->F64(kernel.step.grad_scale);
  writer->U64(kernel.step.update);
  writer->F64(kernel.norm_scale);
  WriteName(kernel.gradient_codec, writer);
  writer->U64(kernel.gradient_at);
  writer->U64(kernel.gradient_bytes);
  writer->U32(kernel.gradient_crc32c);
  writer->U32(static_cast<uint32_t>(kernel.trust_ratios.size()));
  for (const double ratio : kernel.trust_ratios) writer->F64(ratio);
}

bool Read(RecordReader* reader, UpdateKernel* kernel) {
  const bool from = Read(reader, &kernel->from);
  kernel->from_crc32c = reader->U32();
  kernel->from_version = Version(reader->U64());
  kernel->to_slot = reader->U32();
  kernel->to = Version(reader->U64());
  kernel->term = Term(reader->U64());
  kernel->step.lr = reader->F64();
  kernel->step.bias_correction1 = reader->F64();
  kernel->step.bias_correction2 = reader->F64();
  kernel->step.grad_scale = static_cast<float>(reader->F64());
  kernel->step.update = reader->U64();
  kernel->norm_scale = static_cast<float>(reader->F64());
  kernel->gradient_codec = ReadName(reader);
  kernel->gradient_at = reader->U64();
  kernel->gradient_bytes = reader->U64();
  kernel->gradient_crc32c = reader->U32();
  const uint32_t ratios = reader->U32();
  for (uint32_t i = 0; i < std::min<uint32_t>(ratios, kMaxMeasuredSegments); ++i) {
    kernel->trust_ratios.push_back(reader->F64());
  }
  return from && kernel->to_slot <= 1 && ratios <= kMaxMeasuredSegments;
}

void Write(const MeasureKernel& kernel, RecordWriter* writer) { Write(kernel.update, writer); }

bool Read(RecordReader* reader, MeasureKernel* kernel) { return Read(reader, &kernel->update); }

void Write(const CheckKernel& kernel, RecordWriter* writer) { Write(kernel.chunk, writer); }

bool Read(RecordReader* reader, CheckKernel* kernel) { return Read(reader, &kernel->chunk); }

void Write(const EncodeKernel& kernel, RecordWriter* writer) {
  Write(kernel.from, writer);
  writer->U32(kernel.check ? 1 : 0);
  writer->U32(kernel.from_crc32c);
  writer->U64(kernel.version.value());
  WriteName(kernel.codec, writer);
  writer->U32(static_cast<uint32_t>(kernel.axis));
  writer->U64(kernel.to_at);
  writer->U64(kernel.to_bytes);
}

bool Read(RecordReader* reader, EncodeKernel* kernel) {
  const bool from = Read(reader, &kernel->from);
  const uint32_t check = reader->U32();
  kernel->check = check == 1;
  kernel->from_crc32c = reader->U32();
  kernel->version = Version(reader->U64());
  kernel->codec = ReadName(reader);
  const uint32_t axis = reader->U32();
  kernel->axis = static_cast<Axis>(axis);
  kernel->to_at = reader->U64();
  kernel->to_bytes = reader->U64();
  return from && check <= 1 && axis <= static_cast<uint32_t>(Axis::kColumn);
}

template <class K>
absl::StatusOr<Kernel> ReadAs(RecordReader* reader) {
  K kernel;
  const bool meaningful = Read(reader, &kernel);
  if (meaningful && reader->complete()) return Kernel(std::move(kernel));
  return DamagedRecord(kKernelKey, "its fields have no meaning");
}

}  // namespace

std::string Encode(const Kernel& kernel) {
  RecordWriter writer;
  writer.U32(static_cast<uint32_t>(kernel.index()));
  std::visit([&](const auto& k) { Write(k, &writer); }, kernel);
  return SealRecord(kKernelKey, std::move(writer).Take());
}

absl::StatusOr<Kernel> DecodeKernel(absl::string_view record) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kKernelKey, record));
  RecordReader reader(fields);
  switch (reader.U32()) {
    case 0:
      return ReadAs<UpdateKernel>(&reader);
    case 1:
      return ReadAs<CheckKernel>(&reader);
    case 2:
      return ReadAs<EncodeKernel>(&reader);
    case 3:
      return ReadAs<MeasureKernel>(&reader);
    default:
      return DamagedRecord(kKernelKey, "its kind is unknown");
  }
}

std::string Encode(const UpdateKernelResult& result) {
  RecordWriter writer;
  writer.F64(result.sum_squares);
  writer.U32(result.crc32c);
  return SealRecord(kUpdateResultKey, std::move(writer).Take());
}

absl::StatusOr<UpdateKernelResult> DecodeUpdateKernelResult(absl::string_view record) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kUpdateResultKey, record));
  RecordReader reader(fields);
  UpdateKernelResult result;
  result.sum_squares = reader.F64();
  result.crc32c = reader.U32();
  if (!reader.complete()) return DamagedRecord(kUpdateResultKey, "a field is missing");
  return result;
}

std::string Encode(const ExtentFooter& result) {
  RecordWriter writer;
  writer.U64(result.version.value());
  writer.U64(result.term.value());
  writer.U32(result.crc32c);
  return SealRecord(kCheckResultKey, std::move(writer).Take());
}

absl::StatusOr<ExtentFooter> DecodeCheckKernelResult(absl::string_view record) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kCheckResultKey, record));
  RecordReader reader(fields);
  ExtentFooter result;
  result.version = Version(reader.U64());
  result.term = Term(reader.U64());
  result.crc32c = reader.U32();
  if (!reader.complete()) return DamagedRecord(kCheckResultKey, "a field is missing");
  return result;
}

std::string Encode(const EncodeKernelResult& result) {
  RecordWriter writer;
  writer.U64(result.bytes);
  writer.U32(result.crc32c);
  return SealRecord(kEncodeResultKey, std::move(writer).Take());
}

absl::StatusOr<EncodeKernelResult> DecodeEncodeKernelResult(absl::string_view record) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kEncodeResultKey, record));
  RecordReader reader(fields);
  EncodeKernelResult result;
  result.bytes = reader.U64();
  result.crc32c = reader.U32();
  if (!reader.complete()) return DamagedRecord(kEncodeResultKey, "a field is missing");
  return result;
}

std::string Encode(const MeasureResult& result) {
  RecordWriter writer;
  writer.U32(static_cast<uint32_t>(result.segments.size()));
  for (const SegmentSquares& segment : result.segments) {
    writer.F64(segment.weights);
    writer.F64(segment.steps);
  }
  return SealRecord(kMeasureResultKey, std::move(writer).Take());
}

absl::StatusOr<MeasureResult> DecodeMeasureKernelResult(absl::string_view record) {
  EPS_ASSIGN_OR_RETURN(const absl::string_view fields, UnsealRecord(kMeasureResultKey, record));
  RecordReader reader(fields);
  MeasureResult result;
  const uint32_t segments = reader.U32();
  for (uint32_t i = 0; i < std::min<uint32_t>(segments, kMaxMeasuredSegments); ++i) {
    const double weights = reader.F64();
    result.segments.push_back({weights, reader.F64()});
  }
  if (reader.complete() && segments <= kMaxMeasuredSegments) return result;
  return DamagedRecord(kMeasureResultKey, "a field is missing");
}

}  // namespace eps::csd
