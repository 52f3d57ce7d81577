#ifndef EPS_BENCH_PEERS_ONE_PASS_WORLD_H_
#define EPS_BENCH_PEERS_ONE_PASS_WORLD_H_

// The data of one_pass_bench: a model's gradients, the state as the peers store it, and the DRAM
// backend that the server runs.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/mutex.h"
#include "bench/peers/timing.h"
#include "optimizer/rules/adamw.h"
#include "storage/state_backend.h"

namespace eps {

using Encoded = std::shared_ptr<const EncodedChunk>;

// A model of square layers in chunks of 512 rows.
inline constexpr uint32_t kOnePassWidth = 1024;
JobSpec OnePassSpec(int mebi_parameters);

// The step of all updates, and AdamW's scalars for it.
StepScalars OnePassStep();
AdamWScalars OnePassScalars(const JobSpec& spec, const Chunk& chunk);

// The gradients of a step by part and chunk: in bf16, and as opaque chunks that cannot be read in
// place; the first part also in FP32. Values have eight bits, so that sums are exact in every
// order. Immutable.
struct Gradients {
  Gradients(const ChunkMap& chunks, uint32_t parts);

  std::vector<std::vector<Encoded>> bf16;
  std::vector<std::vector<Encoded>> opaque;
  std::vector<Encoded> fp32;
};

// Weights, moments and a sum of gradients of all chunks, stored consecutively.
class Arrays {
 public:
  explicit Arrays(const ChunkMap& chunks);
  void Reset();
  uint64_t elements() const { return elements_; }
  float* SumOf(const Chunk& chunk) const;
  // Returns a chunk as one long row with a separate gradient.
  AdamWTile Row(const Chunk& chunk, const float* gradient) const;

 private:
  const uint64_t elements_;
  const PageArray weight_, exp_avg_, exp_avg_sq_, sum_;
  std::vector<uint64_t> offsets_;  // by chunk
};

// A thread pool whose caller can wait until all work is done.
class Crew {
 public:
  explicit Crew(int threads) : pool_(threads) {}

  ThreadPool* pool() { return &pool_; }
  int threads() const { return pool_.threads(); }
  // Calls `visit` for every chunk; each thread visits a run of chunks.
  void ForEachChunk(const ChunkMap& chunks, const std::function<void(const Chunk&)>& visit);

  // Counts work that is posted elsewhere: Wait returns after `tasks` calls of Done.
  void Expect(size_t tasks);
  void Done();
  void Wait();

 private:
  Mutex mu_;
  CondVar all_done_;
  size_t left_ EPS_GUARDED_BY(mu_) = 0;
  ThreadPool pool_;
};

// The DRAM backend with all chunks of a job. Use it from one thread.
class Server {
 public:
  Server(const JobSpec& spec, const ChunkMap& chunks, Crew* crew);

  void WriteState(const Arrays& arrays);
  // Update applies the parts to all chunks; Stats only sums them.
  void Update(const std::vector<const std::vector<Encoded>*>& parts,
              const std::vector<UpdateRequest::Encode>& encode);
  void Stats(const std::vector<const std::vector<Encoded>*>& parts);

  // Returns weights and moments as ReadState returns them.
  std::vector<Bytes> ReadState();
  // The results of the last update, by chunk.
  const std::vector<UpdateResult>& results() const { return results_; }

 private:
  using Operation = std::function<void(const Chunk& chunk, OpId op)>;

  void ForEachChunk(const Operation& start);
  UpdateRequest RequestOf(const Chunk& chunk,
                          const std::vector<const std::vector<Encoded>*>& parts) const;
  void Take(BackendDone done);

  const ChunkMap& chunks_;
  Crew* const crew_;
  MemoryAccount account_;
  Version version_{0};
  std::vector<UpdateResult> results_;
  std::vector<Bytes> bytes_;
  std::unique_ptr<StateBackend> backend_;
};

}  // namespace eps

#endif  // EPS_BENCH_PEERS_ONE_PASS_WORLD_H_
