#ifndef EPS_SERVER_RPC_TESTING_TEST_CLIENT_H_
#define EPS_SERVER_RPC_TESTING_TEST_CLIENT_H_

// Servers on loopback, and a plain client that uses the generated stubs. For tests only.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "eps/v1/control.grpc.pb.h"
#include "eps/v1/data.grpc.pb.h"
#include "eps/v1/shard.grpc.pb.h"
#include "eps_server/server.h"
#include "grpcpp/client_context.h"

namespace eps {

// The deadline of each call.
inline constexpr std::chrono::seconds kCallTimeout{30};

// Starts a server on a free port of loopback, or ends the test process.
std::unique_ptr<Server> StartTestServer(uint64_t memory_limit_bytes = uint64_t{1} << 30);
// The same, with times that are shorter than a configuration may set.
std::unique_ptr<Server> StartImpatientServer(std::chrono::milliseconds push_timeout,
                                             std::chrono::milliseconds unread_timeout);

// Returns a spec with one part whose chunks are larger than a slice, to test payloads.
JobSpec BigChunkSpec();

// Returns a context with a deadline.
std::unique_ptr<grpc::ClientContext> NewContext(std::chrono::milliseconds timeout = kCallTimeout);

// Sends calls to one server. Thread-compatible.
class TestClient {
 public:
  using PushStream = grpc::ClientReaderWriter<v1::PushFrame, v1::PushReply>;
  using FetchStream = grpc::ClientReaderWriter<v1::FetchRequest, v1::FetchSlice>;

  explicit TestClient(const std::string& address);

  absl::Status CreateJob(const JobSpec& spec, const std::vector<std::string>& servers,
                         v1::CreateJobReply* reply = nullptr);
  // Joins as the process that BeginStep names, and gets all parts that are free.
  absl::Status Join(const JobSpec& spec, v1::JoinReply* reply = nullptr);
  // Imports the spec's initial values.
  absl::Status Initialize(const JobSpec& spec);
  // Calls BeginStep for all parts.
  absl::Status BeginStep(const JobSpec& spec, uint64_t step, v1::BeginStepReply* reply = nullptr,
                         const std::vector<v1::PartLoss>& losses = {});
  absl::Status Status(v1::StatusReply* reply);
  // Polls the status until `wanted` returns true. Returns false if that takes more than
  // kCallTimeout.
  bool WaitForStatus(const std::function<bool(const v1::StatusReply&)>& wanted);
  // Returns the server's charged memory of a kind.
  uint64_t LiveBytes(const std::string& kind);
  // Returns a counter of the status, 0 if it is missing.
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

// Returns the header of a contribution of one part whose encoded bytes are `payload`.
v1::PushFrame HeaderFrame(const JobSpec& spec, uint64_t tag, uint64_t step, StageId use,
                          PartId part, ChunkId chunk, const std::string& payload, uint64_t nonce);
// Returns the payload in slices of at most `slice` bytes.
std::vector<v1::PushFrame> PayloadFrames(uint64_t tag, const std::string& payload, size_t slice);
// Returns `elements` equal floats, encoded as fp32.
std::string Fp32Payload(uint64_t elements, float value);

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_TEST_CLIENT_H_
