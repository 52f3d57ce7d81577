#include "worker/measure/instant_client.h"

#include <chrono>
#include <string>

#include "base/check.h"
#include "base/mutex.h"
#include "compression/codec.h"

namespace eps {
namespace {

CodecTable TableOf(const JobSpec& spec, const ChunkMap& chunks) {
  absl::StatusOr<CodecTable> table = CodecTable::Build(spec, chunks);
  EPS_CHECK_MSG(table.ok(), table.status());
  return *std::move(table);
}

// Chunks on their way to a sink.
struct Arrival {
  Mutex mu;
  CondVar changed;
  size_t missing EPS_GUARDED_BY(mu) = 0;
  absl::Status status EPS_GUARDED_BY(mu);
};

// Waits for an Arrival, also in its destructor.
class Arriving final : public PendingFetch {
 public:
  explicit Arriving(std::shared_ptr<Arrival> arrival) : arrival_(std::move(arrival)) {}
  ~Arriving() override { static_cast<void>(Wait()); }
  absl::Status Wait() override {
    MutexLock lock(&arrival_->mu);
    while (arrival_->missing > 0) arrival_->changed.WaitFor(&arrival_->mu, std::chrono::seconds(1));
    return arrival_->status;
  }

 private:
  const std::shared_ptr<Arrival> arrival_;
};

}  // namespace

InstantClient::InstantClient(const JobSpec& spec, int threads)
    : spec_(spec),
      chunks_(ChunkMap::Build(spec)),
      codecs_(TableOf(spec_, chunks_)),
      pool_(threads) {}

absl::StatusOr<StepStart> InstantClient::BeginStep(Step step) {
  StepStart start;
  start.done = step.value() > spec_.training.steps;
  start.step = step;
  start.version = Version(step.value() - 1);
  return start;
}

EncodedWeights InstantClient::WeightsOf(const Chunk& chunk, Axis axis, uint32_t view) {
  const Codec& codec = codecs_.weights(chunk.id);
  Shape shape = {static_cast<uint64_t>(codec.traits().id), axis == Axis::kColumn ? 1u : 0u};
  for (const Segment& segment : chunk.segments) {
    shape.push_back(segment.rows);
    shape.push_back(segment.cols);
  }
  Bytes& bytes = encoded_[shape];
  if (bytes.empty()) {
    std::vector<float> values(chunk.elements);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.001f * static_cast<float>(i % 17) - 0.008f;
    }
    EncodeOptions options;
    options.axis = axis;
    bytes = EncodeChunk(codec, chunk, options, values.data());
  }
  return {&chunk, &codec, axis, view, bytes};
}

std::unique_ptr<PendingFetch> InstantClient::FetchStage(StageId stage, Version, bool backward,
                                                        std::shared_ptr<StageSink> sink) {
  std::vector<EncodedWeights> copies;
  for (const ChunkId id : chunks_.ChunksOfStage(stage)) {
    const WeightAxes axes = codecs_.axes(stage, id, backward);
    copies.push_back(WeightsOf(chunks_.chunk(id), axes.first, 0));
    if (axes.has_second) copies.push_back(WeightsOf(chunks_.chunk(id), axes.second, 1));
  }
  auto arrival = std::make_shared<Arrival>();
  {
    MutexLock lock(&arrival->mu);
    arrival->missing = copies.size();
  }
  for (EncodedWeights& copy : copies) {
    pool_.Post([arrival, sink, copy = std::move(copy)] {
      const absl::Status taken = sink->Take(copy);
      MutexLock lock(&arrival->mu);
      arrival->status.Update(taken);
      --arrival->missing;
      arrival->changed.NotifyAll();
    });
  }
  return std::make_unique<Arriving>(std::move(arrival));
}

}  // namespace eps
