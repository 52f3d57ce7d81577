#ifndef EPS_WORKER_CLIENT_TESTING_SCRIPTED_SHARD_H_
#define EPS_WORKER_CLIENT_TESTING_SCRIPTED_SHARD_H_

// A server that speaks the protocol over real gRPC and misbehaves as a test demands. It keeps
// no state of a job: weights are a function of (chunk, element, version).

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/mutex.h"
#include "compression/codec.h"
#include "compression/codec_table.h"
#include "eps/v1/control.grpc.pb.h"
#include "eps/v1/data.grpc.pb.h"
#include "grpcpp/server.h"

namespace eps {

// Returns an element of a chunk's weights at a version, as every scripted shard serves it.
float ScriptedWeight(uint32_t chunk, uint64_t element, uint64_t version);

// How often a call of a scripted server looks whether it should end.
inline constexpr std::chrono::milliseconds kScriptPoll{20};

// The answers to Join and the Notices of sessions.
struct LeaseScript {
  std::vector<uint32_t> parts = {0};  // those of the worker, in any order
  uint64_t generation = 7;            // of part 0; each further part has one more
  bool standby = false;               // the worker gets no part
  uint32_t length_ms = 60'000;
  bool job_done = false;                  // Notices say that the job is done
  std::deque<grpc::Status> session_ends;  // each ends a session at its next Beat
  bool answer_leave = true;               // if false, a session goes on after a Beat with `leave`
};

// The answers to pushes.
struct PushScript {
  bool hold_credits = false;
  std::deque<v1::PushReply> header_replies;  // answer the next headers; their tags are added
  int break_after = -1;  // number of payload frames until the stream breaks, once
};

// The behaviour of a server. Change() modifies it under the server's lock. A script is plain data
// and its functions capture nothing, because the server's threads may still read it when the locals
// of a test are gone.
struct Script {
  LeaseScript leases;
  uint64_t term = 1;
  uint64_t next_step = 1;  // the answer to Join and to probes
  size_t slice_bytes = size_t{2} << 20;

  int importing_joins = 0;  // number of first joins that are answered with IMPORTING
  bool importing = false;   // Join waits while true, and Status reports IMPORTING
  // Answer the next BeginSteps, or probes, instead of the shard.
  std::deque<grpc::Status (*)(v1::BeginStepReply*)> begin_steps;
  // BeginStep waits while true, unless the caller cancels.
  bool park_begin_steps = false;
  std::vector<v1::Have> have;
  int loss_scale_log2 = 0;
  bool answer_status = true;  // if false, Status hangs until the caller's deadline
  std::string failure;        // Status reports a failed job

  bool park_fetches = false;
  int answer_parked = 0;        // number of requests to answer although fetches are parked
  bool interleave = false;      // alternate slices of a request's chunks, last chunk first
  int break_fetch_after = -1;   // number of slices until the stream breaks, once
  int break_fetch_streams = 0;  // number of streams that break as soon as they open
  int damage = 0;               // number of chunks to send with a wrong CRC
  void (*edit_slice)(v1::FetchSlice*) = nullptr;

  PushScript pushes;
};

// The requests that a server observed.
struct Seen {
  using Place = std::tuple<uint32_t, uint32_t, uint32_t>;  // use, part, chunk
  std::vector<v1::JoinRequest> joins;
  int sessions = 0;  // streams that were opened
  std::vector<v1::Beat> beats;
  std::vector<std::chrono::steady_clock::time_point> beat_times;
  size_t counted_at_leave = 0;  // contributions that were counted when a Beat with `leave` came
  size_t reports_at_leave = 0;
  std::vector<v1::BeginStepRequest> begins;
  std::vector<v1::BeginStepRequest> reports;  // BeginSteps that only report
  std::vector<v1::BeginStepRequest> probes;
  std::vector<v1::FetchRequest> fetches;
  size_t most_in_flight = 0;  // most unanswered fetch requests of one stream
  std::vector<v1::PushHeader> headers;
  int hellos = 0;
  int statuses = 0;
  int payload_frames = 0;
  size_t largest_frame = 0;
  bool payload_without_credit = false;
  std::map<Place, std::vector<float>> counted;
  std::map<Place, int> times_counted;
  std::map<Place, uint64_t> tokens;
};

// A server with real gRPC services whose behaviour follows a Script. Thread-safe.
class ScriptedShard {
 public:
  // `spec` and `chunks` must outlive the shard. Listens on a free loopback port.
  ScriptedShard(const JobSpec* spec, const ChunkMap* chunks, uint32_t shard);
  ~ScriptedShard();

  const std::string& address() const { return address_; }
  void SetServers(std::vector<std::string> servers);
  void Change(const std::function<void(Script*)>& change);
  Seen seen() const;
  // Waits until `condition(seen)` holds; returns false after 20 s.
  bool WaitUntil(const std::function<bool(const Seen&)>& condition);
  // Ends all calls and stops listening. Start listens on the same port again.
  void Stop();
  void Start();

 private:
  class ControlService;
  class DataService;
  class PushStream;

  std::vector<ChunkId> ChunksOf(const v1::FetchRequest& request) const;

  const JobSpec* const spec_;
  const ChunkMap* const chunks_;
  const CodecTable codecs_;
  const uint32_t shard_;
  std::string address_;
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<std::string> servers_;
  Script script_;
  Seen seen_;
  bool stopping_ = false;
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<DataService> data_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_TESTING_SCRIPTED_SHARD_H_
