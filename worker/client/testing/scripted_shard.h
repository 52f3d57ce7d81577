#ifndef EPS_WORKER_CLIENT_TESTING_SCRIPTED_SHARD_H_
#define EPS_WORKER_CLIENT_TESTING_SCRIPTED_SHARD_H_

// A server that speaks the protocol over real gRPC and misbehaves as a test tells it to. It keeps
// no state of a job: weights are a function of (chunk, element, version).

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "compression/codec.h"
#include "compression/codec_table.h"
#include "eps/v1/control.grpc.pb.h"
#include "eps/v1/data.grpc.pb.h"
#include "grpcpp/server.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"

namespace eps {

float ScriptedWeight(uint32_t chunk, uint64_t element, uint64_t version);

// What a server does; changed under its lock with Change().
struct Script {
  std::vector<uint32_t> parts = {0};
  uint64_t term = 1;
  uint64_t next_step = 1;
  size_t slice_bytes = size_t{2} << 20;

  int importing_joins = 0;  // joins answered with IMPORTING first
  bool importing = false;   // Join waits until it is false; Status tells
  // Answers BeginStep instead of the shard.
  std::function<grpc::Status(const v1::BeginStepRequest&, v1::BeginStepReply*)> begin_step;
  // BeginStep waits until it is false or the caller goes away.
  bool park_begin_steps = false;
  std::vector<v1::Have> have;
  bool answer_status = true;  // false: Status hangs until the caller's deadline
  std::string failure;        // Status reports a failed job

  bool park_fetches = false;
  int answer_parked = 0;        // requests that are answered although fetches are parked
  bool interleave = false;      // slices of a request's chunks by turns, last chunk first
  int break_fetch_after = -1;   // slices until the stream breaks; once
  int break_fetch_streams = 0;  // streams that break as soon as they are open
  int damage = 0;               // chunks that are sent with a wrong CRC
  std::function<void(v1::FetchSlice*)> edit_slice;

  bool hold_credits = false;
  // Answers a header with an ack at once.
  std::function<std::optional<v1::Ack>(const v1::PushHeader&)> ack_header;
  int break_push_after = -1;  // payload frames until the stream breaks; once
  bool reply_unknown_tag = false;
};

// What a server saw.
struct Seen {
  using Place = std::tuple<uint32_t, uint32_t, uint32_t>;  // use, part, chunk
  std::vector<v1::BeginStepRequest> begins;
  std::vector<v1::FetchRequest> fetches;
  size_t most_in_flight = 0;  // fetch requests of one stream that were not answered
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

class ScriptedShard {
 public:
  // `spec` and `chunks` outlive it. Listens on a free port of the loopback.
  ScriptedShard(const JobSpec* spec, const ChunkMap* chunks, uint32_t shard);
  ~ScriptedShard();

  const std::string& address() const { return address_; }
  void SetServers(std::vector<std::string> servers);
  void Change(const std::function<void(Script*)>& change);
  Seen seen() const;
  // Waits until `condition(seen)`; false after 20 s.
  bool WaitUntil(const std::function<bool(const Seen&)>& condition);
  // Ends all calls and stops listening; Start listens on the same port again.
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
