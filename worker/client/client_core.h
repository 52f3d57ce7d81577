#ifndef EPS_WORKER_CLIENT_CLIENT_CORE_H_
#define EPS_WORKER_CLIENT_CLIENT_CORE_H_

// What all parts of one client share: its options, its one lock, its failure and its view of the
// job. Parts of a client call each other with `mu` held; gRPC's callbacks take it first.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/executor.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "compression/codec_table.h"
#include "grpcpp/support/status.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"
#include "worker/client/parameter_client.h"

namespace eps {

using TimePoint = std::chrono::steady_clock::time_point;

// What a client knows of its job since Join. Immutable.
struct JobView {
  JobSpec spec;
  ChunkMap chunks;
  std::vector<ShardId> placement;    // by chunk
  std::vector<std::string> servers;  // in shard order
  JobId id;
  Term term;
  Step first_step;                   // that Join gave
  std::optional<CodecTable> codecs;  // set by Join

  // "3 (h.2)".
  std::string StageText(StageId stage) const;
};

// The tensor's array among `pointers`, one per TensorUse of `stage` for each view; null if the
// stage does not use the tensor.
float* TensorPointer(const JobSpec& spec, StageId stage, const TensorPointers& pointers,
                     TensorId tensor, uint32_t view = 0);

// Held by whoever holds the mutex of a client. The parts of a client share one mutex, each by a
// pointer of its own, which clang takes for different ones; so this stands in the annotations.
struct EPS_CAPABILITY("role") ClientRole {};
inline ClientRole client_lock;

class EPS_SCOPED_CAPABILITY ClientLock {
 public:
  explicit ClientLock(Mutex* mu) EPS_ACQUIRE(mu, client_lock) EPS_NO_THREAD_SAFETY_ANALYSIS
      : mu_(mu) {
    mu_->Lock();
  }
  ~ClientLock() EPS_RELEASE() EPS_NO_THREAD_SAFETY_ANALYSIS { mu_->Unlock(); }
  ClientLock(const ClientLock&) = delete;
  ClientLock& operator=(const ClientLock&) = delete;

 private:
  Mutex* const mu_;
};

// Shared by the client and by fetches that outlive it.
struct ClientCore {
  explicit ClientCore(ClientOptions client_options);

  // The first failure stays. Wakes all who wait.
  void Fail(const absl::Status& status) EPS_REQUIRES(client_lock);
  // An RPC that holds pointers into the client begins or ends.
  void RpcStarted() EPS_REQUIRES(client_lock) { ++active_rpcs; }
  void RpcDone() EPS_REQUIRES(client_lock);
  std::string NextRequestId() EPS_REQUIRES(client_lock);
  // The pause before attempt `attempt` (0-based) to reach a server: doubles from 20 ms to 2 s,
  // half of it random, so that workers that lost a server together do not return together.
  std::chrono::milliseconds BackOff(int attempt) EPS_REQUIRES(client_lock);
  // Unavailable: the server, for how long, what was waited for, the last error, what to change.
  absl::Status Away(absl::string_view address, TimePoint since, absl::string_view waited_for,
                    const absl::Status& last) const;

  const ClientOptions options;
  const uint64_t nonce;  // names this process to the servers; of no influence on any bit

  Mutex mu;
  CondVar changed;  // for callers: something they may wait for has happened
  CondVar timer;    // for the supervisor: something is due earlier than it thinks
  absl::Status failure EPS_GUARDED_BY(client_lock);
  ClientStats stats EPS_GUARDED_BY(client_lock);
  int active_rpcs EPS_GUARDED_BY(client_lock) = 0;

 private:
  uint64_t next_request_ EPS_GUARDED_BY(client_lock) = 1;
  std::minstd_rand jitter_ EPS_GUARDED_BY(client_lock);
};

// Whether a call that ended so may be repeated by identity: the server, the connection or the
// stream went away, which says nothing about the request.
bool MayRepeat(absl::StatusCode code);

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_CLIENT_CORE_H_
