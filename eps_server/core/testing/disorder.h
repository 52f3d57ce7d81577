#ifndef EPS_SERVER_CORE_TESTING_DISORDER_H_
#define EPS_SERVER_CORE_TESTING_DISORDER_H_

// Clients that send valid and invalid requests at any time. For tests; for one thread.

#include <functional>
#include <string>

#include "base/testing/tally.h"
#include "eps_server/core/testing/core_cluster.h"

namespace eps {

// Sends requests, drawn from a seed. Borrows the cluster and the dice, which must outlive it.
class Disorder {
 public:
  // Called with the text of each status that is requested.
  using Note = std::function<void(ShardId shard, const std::string& text)>;

  // With `asks_for_gone`, also fetches weights that may have been updated already. A durable job
  // then goes back to its last cut.
  Disorder(CoreCluster* cluster, bool is_durable, bool asks_for_gone, Note note, Dice* dice);

  // Sends at most one request, to a shard that is up.
  void Act();

 private:
  void Hear(ShardId shard, const Event& event) { cluster_.Send(shard, event); }
  StreamId OldStream();
  ChunkId AnyChunk();
  PartId AnyPart();
  // Returns the open step of a shard, or a step next to it.
  uint64_t AnyStep(ShardId shard);

  void Export(ShardId shard);
  void Watch(ShardId shard);
  void Gate(ShardId any);
  void Push();
  void Fetch(ShardId shard);
  void Join(ShardId shard);
  // A worker of Join says that it is alive, or leaves.
  void Beat(ShardId shard);
  void Link(ShardId shard);
  // Repeats BeginStep of the open step with a part's loss on held-out data.
  void Evaluate(ShardId shard);
  // A worker that has computed no step takes over a part. An eager job may then go back, or fail.
  void TakeOver(ShardId shard);
  v1::BeginStepRequest BeginRequest(ShardId shard, uint64_t step);
  void Import(ShardId shard);

  CoreCluster& cluster_;
  const bool is_durable_;
  const bool asks_for_gone_;
  const Note note_;
  Dice& dice_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_DISORDER_H_
