#include "storage/backends/dram_backend.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "optimizer/chunk_compute.h"
#include "storage/backends/chunk_arena.h"
#include "storage/backends/chunk_ops.h"

namespace eps {
namespace {

constexpr char kNotDurable[] = "this state backend keeps nothing on disk";

class DramBackend final : public StateBackend {
 public:
  DramBackend(ChunkCompute compute, std::unique_ptr<ChunkArena> arena, const ChunkMap& chunks,
              const std::vector<ChunkId>& owned, Executor* executor, BackendDoneFn done);
  ~DramBackend() override;

  Caps caps() const override { return {.state_bytes = arena_->charged_bytes()}; }
  void Submit(OpId op, Request request) override;
  void Recycle(CutId) override { EPS_CHECK_MSG(false, kNotDurable); }

 private:
  // One chunk. Only tasks of `sequence` touch the members after it.
  struct Slot {
    const Chunk* chunk = nullptr;
    uint32_t index = 0;  // in the arena
    std::unique_ptr<Sequence> sequence;
    std::optional<Version> version;  // nullopt if it has no content
  };

  // Runs in the chunk's sequence.
  void Run(OpId op, Slot* slot, ChunkOp work);
  void Complete(OpId op, absl::StatusOr<BackendValue> outcome, double seconds) EPS_EXCLUDES(mu_);

  const ChunkCompute compute_;
  const std::unique_ptr<ChunkArena> arena_;
  Executor* const executor_;
  const BackendDoneFn done_;
  absl::flat_hash_map<uint32_t, std::unique_ptr<Slot>> slots_;  // by chunk id; fixed

  Mutex mu_;
  CondVar idle_;
  uint64_t pending_ EPS_GUARDED_BY(mu_) = 0;
};

DramBackend::DramBackend(ChunkCompute compute, std::unique_ptr<ChunkArena> arena,
                         const ChunkMap& chunks, const std::vector<ChunkId>& owned,
                         Executor* executor, BackendDoneFn done)
    : compute_(std::move(compute)),
      arena_(std::move(arena)),
      executor_(executor),
      done_(std::move(done)) {
  for (uint32_t i = 0; i < owned.size(); ++i) {
    auto slot = std::make_unique<Slot>();
    slot->chunk = &chunks.chunk(owned[i]);
    slot->index = i;
    slot->sequence = std::make_unique<Sequence>(executor_);
    EPS_CHECK_MSG(slots_.emplace(owned[i].value(), std::move(slot)).second,
                  "chunk " << owned[i] << " twice");
  }
}

DramBackend::~DramBackend() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  MutexLock lock(&mu_);
  while (pending_ > 0) {
    const bool in_time = idle_.WaitUntil(&mu_, deadline);
    EPS_CHECK_MSG(in_time || pending_ == 0, pending_ << " operations never ended");
  }
}

void DramBackend::Submit(OpId op, Request request) {
  auto* const of_chunk = std::get_if<ChunkRequest>(&request);
  EPS_CHECK_MSG(of_chunk != nullptr, kNotDurable);
  {
    MutexLock lock(&mu_);
    ++pending_;
  }
  const ChunkId id = ChunkOf(*of_chunk);
  const auto it = slots_.find(id.value());
  if (it == slots_.end()) {
    // Complete on another stack: the caller may hold locks that the completion needs.
    executor_->lane(Lane::kCore)->Post([this, op, id] {
      Complete(op,
               absl::NotFoundError(absl::StrCat("chunk ", id.value(), " is none of the ",
                                                slots_.size(), " chunks of this shard")),
               0);
    });
    return;
  }
  Slot* const slot = it->second.get();
  ChunkOp work = NewChunkOp(compute_, *slot->chunk, std::move(*of_chunk));
  const Lane lane = work.lane;
  slot->sequence->PostTo(
      lane, [this, op, slot, work = std::move(work)]() mutable { Run(op, slot, std::move(work)); });
}

void DramBackend::Run(OpId op, Slot* slot, ChunkOp work) {
  const auto start = std::chrono::steady_clock::now();
  const absl::Status legal = work.check == nullptr ? absl::OkStatus() : work.check(slot->version);
  absl::StatusOr<BackendValue> outcome =
      legal.ok() ? work.work(arena_->arrays(slot->index)) : legal;
  if (outcome.ok() && work.writes) slot->version = work.to;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  work = ChunkOp();  // destroys the inputs before the outcome is reported
  Complete(op, std::move(outcome), took.count());
}

void DramBackend::Complete(OpId op, absl::StatusOr<BackendValue> outcome, double seconds) {
  if (outcome.ok()) {
    done_(BackendDone{op, absl::OkStatus(), std::move(*outcome), seconds});
  } else {
    done_(BackendDone{op, outcome.status(), BackendValue(), seconds});
  }
  MutexLock lock(&mu_);
  if (--pending_ == 0) idle_.NotifyAll();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateBackend>> NewDramBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done) {
  EPS_ASSIGN_OR_RETURN(ChunkCompute compute, ChunkCompute::New(spec, account));
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<ChunkArena> arena,
                       ChunkArena::New(chunks, owned, compute.arrays(), account));
  return std::unique_ptr<StateBackend>(std::make_unique<DramBackend>(
      std::move(compute), std::move(arena), chunks, owned, executor, std::move(done)));
}

}  // namespace eps
