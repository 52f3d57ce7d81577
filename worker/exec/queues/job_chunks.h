#ifndef EPS_WORKER_EXEC_QUEUES_JOB_CHUNKS_H_
#define EPS_WORKER_EXEC_QUEUES_JOB_CHUNKS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "compression/codec.h"
#include "compression/codec_table.h"
#include "worker/exec/queues/device_queues.h"

namespace eps {

// The chunks of a job and their codecs, as a device handles them. Immutable, thread-safe.
class JobChunks {
 public:
  // Returns null if the job has a codec that this process does not know; joining the job says why.
  // `spec` must outlive the object.
  static std::unique_ptr<JobChunks> Build(const JobSpec& spec);

  const JobSpec& spec() const { return spec_; }
  const ChunkMap& map() const { return map_; }
  const CodecTable& codecs() const { return *codecs_; }

 private:
  explicit JobChunks(const JobSpec& spec) : spec_(spec), map_(ChunkMap::Build(spec)) {}

  const JobSpec& spec_;
  const ChunkMap map_;
  std::unique_ptr<CodecTable> codecs_;
};

// Returns whether our kernels have the codec: those with a fixed size.
bool HasKernels(const Codec& codec);

// Returns the bytes that a chunk takes among those of a stage: kernels read and write whole words.
uint64_t AlignedSize(const Codec& codec, const Chunk& chunk, Axis axis);

// Calls visit(segment, code, offset) for each segment of a chunk, whose encoded bytes begin at
// `offset` among those of the chunk. REQUIRES HasKernels(codec).
void ForEachCode(const Codec& codec, const Chunk& chunk, Axis axis,
                 const std::function<void(const Segment&, const SegmentCode&, uint64_t)>& visit);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_QUEUES_JOB_CHUNKS_H_
