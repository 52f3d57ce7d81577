#include "worker/exec/queues/job_chunks.h"

#include <utility>

#include "absl/strings/match.h"

namespace eps {
namespace {

constexpr uint64_t kChunkAlignment = 256;
constexpr char kTruncates[] = ":truncate";  // ends the names of such variants

}  // namespace

std::unique_ptr<JobChunks> JobChunks::Build(const JobSpec& spec) {
  std::unique_ptr<JobChunks> chunks(new JobChunks(spec));
  absl::StatusOr<CodecTable> codecs = CodecTable::Build(spec, chunks->map_);
  if (!codecs.ok()) return nullptr;
  chunks->codecs_ = std::make_unique<CodecTable>(*std::move(codecs));
  return chunks;
}

bool HasKernels(const Codec& codec) { return codec.traits().fixed_size; }

uint64_t AlignedSize(const Codec& codec, const Chunk& chunk, Axis axis) {
  const uint64_t bytes = codec.MaxEncodedSize(chunk, axis);
  return (bytes + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
}

void ForEachCode(const Codec& codec, const Chunk& chunk, Axis axis,
                 const std::function<void(const Segment&, const SegmentCode&, uint64_t)>& visit) {
  uint64_t offset = 0;
  for (const Segment& segment : chunk.segments) {
    SegmentCode code;
    code.codec = static_cast<uint32_t>(codec.traits().id);
    code.rows = segment.rows;
    code.cols = segment.cols;
    code.column = axis == Axis::kColumn;
    code.truncate = absl::EndsWith(codec.name(), kTruncates);
    visit(segment, code, offset);
    Chunk alone;
    alone.segments = {segment};
    alone.segments[0].offset = 0;
    alone.elements = segment.elements();
    offset += codec.MaxEncodedSize(alone, axis);
  }
}

}  // namespace eps
