#ifndef EPS_WORKER_RELAY_STAGE_LOADER_H_
#define EPS_WORKER_RELAY_STAGE_LOADER_H_

// The stages of one step in the order in which the relay wants them, fetched ahead: while one
// computes, the next `prefetch` are on their way. Never more than 1 + prefetch stages are held.

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/client/parameter_client.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Host memory of stages, used again by stages of the same shapes. Thread-compatible.
class HostStagePool {
 public:
  // `spec` and `runtime` outlive the pool.
  HostStagePool(const JobSpec& spec, StageRuntime* runtime) : spec_(spec), runtime_(runtime) {}

  // Memory that nobody else refers to any more, or new one. Given back by dropping it.
  std::shared_ptr<HostStage> Get(StageId stage);
  // One pointer per use of the stage.
  TensorPointers Pointers(StageId stage, HostStage* host) const;

 private:
  using Shapes = std::vector<uint64_t>;

  const JobSpec& spec_;
  StageRuntime* const runtime_;
  std::map<Shapes, std::vector<std::shared_ptr<HostStage>>> stages_;
};

class StageLoader {
 public:
  struct Item {
    StageId stage;
    bool backward = false;
  };

  // All borrowed; they outlive the loader. Fetches `items` at `version`, in order.
  StageLoader(ParameterClient* client, StageRuntime* runtime, HostStagePool* pool,
              std::vector<Item> items, Version version, int prefetch);

  // The weights of the next item. The one before must have been dropped by the caller.
  absl::StatusOr<std::shared_ptr<const StageWeights>> Next();

  // Seconds that Next() waited for the network.
  double wait_seconds() const { return wait_seconds_; }

 private:
  struct Pending {
    StageId stage;
    std::shared_ptr<HostStage> host;
    std::unique_ptr<PendingFetch> fetch;
  };

  void FetchAhead(size_t stages);

  ParameterClient* const client_;
  StageRuntime* const runtime_;
  HostStagePool* const pool_;
  const std::vector<Item> items_;
  const Version version_;
  const int prefetch_;
  size_t next_item_ = 0;  // not yet asked for
  std::deque<Pending> pending_;
  double wait_seconds_ = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_STAGE_LOADER_H_
