#ifndef EPS_WORKER_CLIENT_RESIDUAL_KEEPER_H_
#define EPS_WORKER_CLIENT_RESIDUAL_KEEPER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "worker/client/client_core.h"
#include "worker/client/fetcher.h"

namespace eps {

// Keeps the residuals of the hosted parts: the elements that sparse gradient codecs omitted (error
// feedback), encoded in quantization.residual. With residual_home=server, residuals are fetched for
// every step and returned with the contribution. With residual_home=worker they stay here and are
// sent only when the servers request them (BeginStepReply.push_residuals); those of contributions
// of another process, after a resume or a takeover, are fetched once (docs/protocol.md, L8).
class ResidualKeeper {
 public:
  // The contribution that a residual belongs to.
  struct Place {
    StageId use;
    PartId part;
    ChunkId chunk;
    friend bool operator<(const Place& a, const Place& b) {
      return std::tie(a.use, a.part, a.chunk) < std::tie(b.use, b.part, b.chunk);
    }
  };

  // `fetch(op, chunks)` requests the residuals of op's stage and part from the servers.
  // `on_arrival` is called with the lock held when Find may return more. Borrows all arguments.
  ResidualKeeper(const JobView* job, std::vector<PartId> parts,
                 std::function<void(std::shared_ptr<FetchOp>, const std::vector<ChunkId>&)> fetch,
                 std::function<void()> on_arrival);

  // Begins a step that reads `version`. Adopts the residuals of the previous step unless the
  // servers skipped it, and forgets those of contributions that another process made in it. `push`
  // says for each shard whether contributions carry their residuals.
  void Begin(Step step, Version version, std::vector<bool> push) EPS_REQUIRES(client_lock);
  // Requests the missing residuals for contributions of a stage.
  void Want(StageId stage) EPS_REQUIRES(client_lock);
  // As Want, if the open step reads `version`: weights may be fetched ahead of their step, whose
  // residuals do not exist yet.
  void WantAt(Version version, StageId stage) EPS_REQUIRES(client_lock) {
    if (version == version_) Want(stage);
  }

  // Returns the codec of the chunk's residuals in the open step; null if none are kept.
  const Codec* codec_or_null(ChunkId chunk) const EPS_REQUIRES(client_lock) {
    return job_->codecs->residual_or_null(chunk, step_);
  }
  bool PushesTo(ShardId shard) const EPS_REQUIRES(client_lock) { return push_[shard.value()]; }
  // Returns the residual of the steps before the open one: no bytes if there is none, nullopt if it
  // has not arrived yet. REQUIRES Want for the stage.
  std::optional<Bytes> Find(const Place& place) const EPS_REQUIRES(client_lock);
  // Stores the residual that the contribution of the open step leaves.
  void Put(const Place& place, Bytes residual) EPS_REQUIRES(client_lock);
  // Whether contributions to the open step left residuals that no server has.
  bool OnlyHere() const EPS_REQUIRES(client_lock);

 private:
  void OnFetched(const FetchOp& op) EPS_REQUIRES(client_lock);
  bool lives_here() const { return job_->spec.codecs.residual_home == ResidualHome::kWorker; }

  const JobView* const job_;
  const std::vector<PartId> parts_;
  const std::function<void(std::shared_ptr<FetchOp>, const std::vector<ChunkId>&)> fetch_;
  const std::function<void()> on_arrival_;

  Step step_ EPS_GUARDED_BY(client_lock);
  Version version_ EPS_GUARDED_BY(client_lock);
  std::vector<bool> push_ EPS_GUARDED_BY(client_lock);
  std::set<Place> wanted_ EPS_GUARDED_BY(client_lock);
  std::map<Place, Bytes> residuals_ EPS_GUARDED_BY(client_lock);  // from before the open step
  std::map<Place, Bytes> left_out_ EPS_GUARDED_BY(client_lock);   // of the open step
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_RESIDUAL_KEEPER_H_
