#ifndef EPS_WORKER_CLIENT_CLIENT_CORE_H_
#define EPS_WORKER_CLIENT_CLIENT_CORE_H_

// The state that all parts of one client share: its options, its lock, its failure and its view of
// the job. Parts of a client call each other with `mu` held; gRPC's callbacks acquire it first.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/executor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/mutex.h"
#include "compression/codec_table.h"
#include "grpcpp/support/status.h"
#include "worker/client/frozen_cache.h"
#include "worker/client/parameter_client.h"

namespace eps {

using TimePoint = std::chrono::steady_clock::time_point;

// While a call waits, it asks so often whether it is interrupted.
inline constexpr std::chrono::milliseconds kInterruptPoll{100};

// The parts that a worker holds, with the generations of their leases.
using Leases = std::map<PartId, uint64_t>;

// A client's knowledge of its job after Join. Immutable.
struct JobView {
  JobSpec spec;
  ChunkMap chunks;
  std::vector<ShardId> placement;    // by chunk
  std::vector<std::string> servers;  // in shard order
  JobId id;
  Term term;
  std::optional<CodecTable> codecs;  // set by Join
  Leases leases;                     // set by Join; a standby's when it gets them

  // Returns 0 for a part that this worker does not hold.
  uint64_t GenerationOf(PartId part) const;
  // Returns "3 (h.2)".
  std::string StageText(StageId stage) const;
};

// A role held by the holder of a client's mutex. The parts of a client refer to the same mutex
// through different pointers, which clang's analysis regards as different mutexes; the annotations
// therefore name this role.
struct EPS_CAPABILITY("role") ClientRole {};
inline ClientRole client_lock;

// Holds a client's mutex, and with it the role `client_lock`, in a scope.
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

// The progress of the thread that uses a client, for the Beats of its session.
struct WorkState {
  Step step;            // the step that it computes; 0 before the first
  uint64_t visits = 0;  // stages whose weights it has received, and gradients that it has pushed
  int waits = 0;        // calls that wait for a server now
};

// The state that the client shares with fetches that outlive it.
struct ClientCore {
  explicit ClientCore(ClientOptions client_options);

  // Records the failure unless there already is one. Wakes all waiters.
  void Fail(const absl::Status& status) EPS_REQUIRES(client_lock);
  // Returns whether the caller should give up (ClientOptions::interrupted). For that caller's
  // thread.
  bool Interrupted() const { return options.interrupted && options.interrupted(); }
  // Returns whether the worker should give back its leases, for that reason or as the lead wishes.
  bool Leaves() const { return wish != WorkerWish::kNone || Interrupted(); }
  // Call these when an RPC that holds pointers into the client begins and ends.
  void RpcStarted() EPS_REQUIRES(client_lock) { ++active_rpcs; }
  void RpcDone() EPS_REQUIRES(client_lock);
  std::string NextRequestId() EPS_REQUIRES(client_lock);
  // Returns the pause before attempt `attempt` (0-based) to reach a server: it doubles from 20 ms
  // to 2 s, and half of it is random, so that workers that lost a server do not return all at once.
  std::chrono::milliseconds BackOff(int attempt) EPS_REQUIRES(client_lock);
  // Returns Unavailable with the server, the duration, what was waited for, the last error and what
  // to change.
  absl::Status Away(absl::string_view address, TimePoint since, absl::string_view waited_for,
                    const absl::Status& last) const;

  const ClientOptions options;
  // Set by the session, and never back to kNone.
  std::atomic<WorkerWish> wish{WorkerWish::kNone};
  const uint64_t nonce;  // identifies this process to the servers; affects no result

  Mutex mu;
  CondVar changed;  // wakes callers: something that they may wait for has happened
  CondVar timer;    // wakes the supervisor: something is due earlier than it expects
  absl::Status failure EPS_GUARDED_BY(client_lock);
  ClientStats stats EPS_GUARDED_BY(client_lock);
  FrozenCache frozen EPS_GUARDED_BY(client_lock);
  WorkState work EPS_GUARDED_BY(client_lock);
  int active_rpcs EPS_GUARDED_BY(client_lock) = 0;

 private:
  uint64_t next_request_ EPS_GUARDED_BY(client_lock) = 1;
  std::minstd_rand jitter_ EPS_GUARDED_BY(client_lock);
};

// Returns whether a call that ended with `code` may be retried by identity: the code means that the
// server, the connection or the stream is gone, not that the request was refused.
bool MayRepeat(absl::StatusCode code);

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_CLIENT_CORE_H_
