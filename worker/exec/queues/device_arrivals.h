#ifndef EPS_WORKER_EXEC_QUEUES_DEVICE_ARRIVALS_H_
#define EPS_WORKER_EXEC_QUEUES_DEVICE_ARRIVALS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/ids.h"
#include "base/job/job_spec.h"
#include "worker/client/stages/stage_sink.h"
#include "worker/exec/queues/device_slots.h"
#include "worker/exec/queues/job_chunks.h"
#include "worker/exec/torch_host_stage.h"

namespace eps {

// Where the chunks of a visit's weights lie among its encoded bytes, and where their floats go in a
// slot. Immutable, thread-safe.
class ArrivalLayout {
 public:
  // `type` is that of the decoded elements.
  ArrivalLayout(const JobChunks& chunks, StageId stage, bool backward, at::ScalarType type);

  // Returns the bytes of all copies of the visit.
  uint64_t encoded_bytes() const { return encoded_bytes_; }
  // Returns where a copy lies. REQUIRES a chunk and a view of this visit.
  uint64_t OffsetOf(ChunkId chunk, uint32_t view) const {
    return offsets_.at({chunk.value(), view});
  }
  const StageLayout& decoded() const { return decoded_; }
  const StageSpec& stage() const { return stage_; }

 private:
  const StageSpec& stage_;
  const StageLayout decoded_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> offsets_;  // by chunk and view
  uint64_t encoded_bytes_ = 0;
};

// Lets the chunks of a job's stages arrive encoded on a device, which decodes them: to BF16 if it
// has codecs and the job computes in BF16, else to FP32. Thread-safe.
class DeviceArrivals {
 public:
  // Returns null if the device cannot decode this job: it has codecs and the device has none
  // (`has_codecs`), or quantization.backward_weights is decode_once, which rounds on the host.
  // `chunks` must outlive the object.
  static std::unique_ptr<DeviceArrivals> New(const JobChunks& chunks, bool has_codecs);

  const SlotSizes& sizes() const { return sizes_; }
  // Returns a sink that fills `slot`, which must outlive its last call.
  std::shared_ptr<StageSink> NewSink(StageId stage, bool backward, DeviceSlots::Slot* slot) const;

 private:
  DeviceArrivals() = default;

  std::map<std::pair<StageId, bool>, ArrivalLayout> layouts_;  // by stage and backward
  SlotSizes sizes_;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_QUEUES_DEVICE_ARRIVALS_H_
