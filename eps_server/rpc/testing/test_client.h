#ifndef EPS_SERVER_RPC_TESTING_TEST_CLIENT_H_
#define EPS_SERVER_RPC_TESTING_TEST_CLIENT_H_

// Servers on loopback and a plain client of the generated stubs. Only for tests.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "eps/v1/control.grpc.pb.h"
#include "eps/v1/data.grpc.pb.h"
#include "eps/v1/shard.grpc.pb.h"
#include "eps_server/server.h"
#include "grpcpp/client_context.h"
#include "base/job/job_spec.h"

namespace eps {

// No call of a test takes longer.
inline constexpr std::chrono::seconds kCallTimeout{30};

std::unique_ptr<Server> StartTestServer(uint64_t memory_limit_bytes = uint64_t{1} << 30);

// One layer of a chunk of more than one slice, one part, two micro-batches: for payloads.
JobSpec BigChunkSpec();

// A ClientContext with a deadline.
std::unique_ptr<grpc::ClientContext> NewContext(std::chrono::milliseconds timeout = kCallTimeout);

// Calls on one server. Thread-compatible.
class TestClient {
 public:
  using PushStream = grpc::ClientReaderWriter<v1::PushFrame, v1::PushReply>;
  using FetchStream = grpc::ClientReaderWriter<v1::FetchRequest, v1::FetchSlice>;

  explicit TestClient(const std::string& address);

  absl::Status CreateJob(const JobSpec& spec, const std::vector<std::string>& servers,
                         v1::CreateJobReply* reply = nullptr);
  absl::Status Initialize(const JobSpec& spec);
  // BeginStep for all parts.
  absl::Status BeginStep(const JobSpec& spec, uint64_t step, v1::BeginStepReply* reply = nullptr,
                         const std::vector<v1::PartLoss>& losses = {});
  absl::Status Status(v1::StatusReply* reply);
  // Asks for the status until `wanted` holds or the time is over; whether it held.
  bool WaitForStatus(const std::function<bool(const v1::StatusReply&)>& wanted);
  uint64_t LiveBytes(const std::string& kind);
  uint64_t Counter(const std::string& name);

  v1::Control::Stub& control() { return *control_; }
  v1::Data::Stub& data() { return *data_; }
  v1::Shard::Stub& shard() { return *shard_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Control::Stub> control_;
  std::unique_ptr<v1::Data::Stub> data_;
  std::unique_ptr<v1::Shard::Stub> shard_;
};

// The header of one contribution of part 0 whose encoded bytes are `payload`.
v1::PushFrame HeaderFrame(const JobSpec& spec, uint64_t tag, uint64_t step, StageId use,
                          PartId part, ChunkId chunk, const std::string& payload, uint64_t nonce);
// The payload, in slices of at most `slice` bytes.
std::vector<v1::PushFrame> PayloadFrames(uint64_t tag, const std::string& payload, size_t slice);
// `elements` floats of one value, encoded as fp32.
std::string Fp32Payload(uint64_t elements, float value);

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_TEST_CLIENT_H_
