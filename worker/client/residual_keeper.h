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

// What sparse gradient codecs left out of the hosted parts' contributions (error feedback), encoded
// in quantization.residual. With residual_home=server it is fetched for every step and goes back
// with the contribution; with residual_home=worker it stays here, is fetched once after a resume,
// and goes to the servers only where they ask for it (BeginStepReply.push_residuals).
class ResidualKeeper {
 public:
  struct Place {
    StageId use;
    PartId part;
    ChunkId chunk;
    friend bool operator<(const Place& a, const Place& b) {
      return std::tie(a.use, a.part, a.chunk) < std::tie(b.use, b.part, b.chunk);
    }
  };

  // `fetch(op, chunks)` asks the servers for the residuals of op's stage and part. `on_arrival` is
  // called with the lock held when Find may have more. All borrowed.
  ResidualKeeper(const JobView* job, std::vector<PartId> parts,
                 std::function<void(std::shared_ptr<FetchOp>, const std::vector<ChunkId>&)> fetch,
                 std::function<void()> on_arrival);

  // A step begins that reads `version`: what the step before left out counts, unless the servers
  // skipped it. `push`: by shard, whether contributions bring their residuals.
  void Begin(Step step, Version version, std::vector<bool> push) EPS_REQUIRES(client_lock);
  // Asks for what the contributions of a stage will need and is not here.
  void Want(StageId stage) EPS_REQUIRES(client_lock);

  // The codec of the chunk's residuals in the open step; null if none are kept.
  const Codec* codec_or_null(ChunkId chunk) const EPS_REQUIRES(client_lock) {
    return job_->codecs->residual_or_null(chunk, step_);
  }
  bool PushesTo(ShardId shard) const EPS_REQUIRES(client_lock) { return push_[shard.value()]; }
  // What was left out before the open step: no bytes if nothing was, nullopt while it is on its
  // way. REQUIRES Want for the stage.
  std::optional<Bytes> Find(const Place& place) const EPS_REQUIRES(client_lock);
  // What the contribution of the open step leaves out.
  void Put(const Place& place, Bytes residual) EPS_REQUIRES(client_lock);

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
  std::map<Place, Bytes> residuals_ EPS_GUARDED_BY(client_lock);  // before the open step
  std::map<Place, Bytes> left_out_ EPS_GUARDED_BY(client_lock);   // by the open step
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_RESIDUAL_KEEPER_H_
