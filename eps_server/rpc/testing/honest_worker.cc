#include "eps_server/rpc/testing/honest_worker.h"

#include <map>
#include <utility>

#include "base/check.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

constexpr size_t kSliceBytes = size_t{1} << 20;

}  // namespace

HonestWorker::HonestWorker(const std::vector<std::string>& servers, const JobSpec& spec,
                           std::vector<std::string> named)
    : spec_(spec),
      chunks_(ChunkMap::Build(spec_)),
      placement_(chunks_.Place(static_cast<uint32_t>(servers.size()))) {
  for (const std::string& address : servers) {
    clients_.push_back(std::make_unique<TestClient>(address));
  }
  absl::Status status = clients_[0]->CreateJob(spec_, named.empty() ? servers : named);
  for (const auto& client : clients_) {
    if (status.ok()) status = client->Initialize(spec_);
  }
  EPS_CHECK_MSG(status.ok(), status.ToString());
}

absl::Status HonestWorker::BeginAll(uint64_t step) {
  absl::Status status;
  for (const auto& client : clients_) {
    if (status.ok()) status = client->BeginStep(spec_, step);
  }
  return status;
}

absl::Status HonestWorker::Step(std::chrono::milliseconds patience) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  absl::Status status = BeginAll(steps_done_ + 1);
  for (size_t shard = 0; shard < clients_.size() && status.ok(); ++shard)
    status = PushAll(shard, patience);
  if (!status.ok()) return status;
  do {
    status = BeginAll(steps_done_ + 2);
  } while (absl::IsDeadlineExceeded(status) && std::chrono::steady_clock::now() < give_up);
  if (status.ok()) ++steps_done_;
  return status;
}

absl::Status HonestWorker::PushAll(size_t shard, std::chrono::milliseconds patience) {
  auto context = NewContext(patience);
  auto stream = clients_[shard]->data().Push(context.get());
  std::map<uint64_t, std::string> payloads;
  uint64_t tag = 0;
  for (uint32_t stage = 0; stage < spec_.stages.size(); ++stage) {
    for (const ChunkId chunk : chunks_.ChunksOfStage(StageId(stage))) {
      if (placement_[chunk.value()].value() != shard) continue;
      for (uint32_t part = 0; part < spec_.training.parts; ++part) {
        payloads[++tag] = Fp32Payload(chunks_.chunk(chunk).elements, 0.5f);
        stream->Write(HeaderFrame(spec_, tag, steps_done_ + 1, StageId(stage), PartId(part), chunk,
                                  payloads[tag], 1));
      }
    }
  }
  size_t acks = 0;
  v1::PushReply reply;
  while (acks < payloads.size() && stream->Read(&reply)) {
    if (!reply.has_credit()) {
      if (reply.ack().outcome() != v1::Ack::ACCEPTED) context->TryCancel();
      ++acks;
      continue;
    }
    for (const v1::PushFrame& frame :
         PayloadFrames(reply.tag(), payloads[reply.tag()], kSliceBytes)) {
      stream->Write(frame);
    }
  }
  stream->WritesDone();
  return FromGrpc(stream->Finish(), "Push");
}

}  // namespace eps
