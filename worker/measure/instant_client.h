#ifndef EPS_WORKER_MEASURE_INSTANT_CLIENT_H_
#define EPS_WORKER_MEASURE_INSTANT_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/executor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "compression/codec_table.h"
#include "worker/client/parameter_client.h"

namespace eps {

// Servers that are infinitely fast: all chunks of a fetch arrive at once, encoded, and gradients
// are accepted at once. Weights are small numbers without meaning; chunks of one shape share them,
// so that a model may be larger than the host's memory. Thread-compatible.
class InstantClient final : public ParameterClient {
 public:
  // Encodes the weights of every shape of chunk. `threads` give the chunks of a fetch to its sink.
  // `spec` must outlive the client.
  InstantClient(const JobSpec& spec, int threads);

  absl::StatusOr<JoinedJob> Join(const JoinOptions&) override {
    return absl::UnimplementedError("not used by a relay");
  }
  absl::StatusOr<StepStart> BeginStep(Step step) override;
  absl::Status ReportLosses(absl::Span<const PartLossSum>) override { return absl::OkStatus(); }
  absl::Status ReportEvaluation(absl::Span<const PartLossSum>) override { return absl::OkStatus(); }
  std::unique_ptr<PendingFetch> FetchStage(StageId stage, Version version, bool backward,
                                           std::shared_ptr<StageSink> sink) override;
  absl::Status Push(StageId, PartId, uint64_t, std::shared_ptr<const GradientSource>) override {
    return absl::OkStatus();
  }
  absl::Status Flush() override { return absl::OkStatus(); }
  bool HandOver() override { return false; }
  absl::Status Leave() override { return absl::OkStatus(); }
  ClientStats stats() const override { return {}; }

 private:
  // Describes everything that the encoded bytes of a chunk depend on.
  using Shape = std::vector<uint64_t>;

  // Returns the weights of a chunk in the codec of the job.
  EncodedWeights WeightsOf(const Chunk& chunk, Axis axis, uint32_t view);

  const JobSpec& spec_;
  const ChunkMap chunks_;
  const CodecTable codecs_;
  std::map<Shape, Bytes> encoded_;
  ThreadPool pool_;
};

}  // namespace eps

#endif  // EPS_WORKER_MEASURE_INSTANT_CLIENT_H_
