// The durable backend: a queue of operations per chunk, over a tier and an engine that makes cuts.

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "storage/backends/chunk_ops.h"
#include "storage/backends/cut_engine.h"
#include "storage/backends/drives/job_placement.h"
#include "storage/backends/durable_backend.h"
#include "storage/backends/gradients/gradient_area.h"
#include "storage/backends/tiers/new_tier.h"
#include "storage/cuts/drives/drive_placement.h"
#include "storage/cuts/drives/memory_share.h"

namespace eps {
namespace durable {
namespace {

// Lock order: mu_, then the engine's, then InFlight's.
class TieredState final : public StateBackend, private CutChunks {
 public:
  TieredState(ChunkCompute compute, const ExtentLayout& layout, Executor* executor,
              MemoryAccount* account, BackendDoneFn done)
      : compute_(std::move(compute)),
        in_flight_(executor, std::move(done)),
        files_(layout, account, &in_flight_),
        account_(account),
        lines_(layout.areas().size()) {}
  ~TieredState() override;

  // Call once, before any operation. Keeps at most `memory_bytes` of the state in memory.
  absl::Status Open(const JobSpec& spec, const ChunkMap& chunks, const std::vector<ChunkId>& owned,
                    ShardId shard, uint32_t shards, const DurableOptions& options,
                    uint64_t memory_bytes);

  Caps caps() const override;
  void Submit(OpId op, Request request) override;
  void Recycle(CutId oldest_kept) override { engine_->Recycle(oldest_kept); }

 private:
  struct Operation {
    OpId op;
    ChunkOp work;
    bool behind_cut = false;  // when it was submitted, a cut had yet to capture the chunk
  };
  // An entry of a chunk's queue: an operation, or a cut that has yet to capture the chunk.
  struct Waiting {
    PendingCut* cut = nullptr;
    std::unique_ptr<Operation> operation;
  };
  struct Line {
    std::deque<Waiting> waiting;
    std::unique_ptr<Operation> begun;
    uint32_t cuts = 0;               // in `waiting`
    uint32_t writes = 0;             // in `waiting`
    bool offered = false;            // the cut at the head may copy the chunk
    bool copying = false;            // the cut at the head is copying the chunk
    std::optional<Version> version;  // nullopt if it has no content
    bool stored = false;             // the table's slot holds the chunk's current content
  };
  // A cut that copies its chunks out of memory, beginning with those that a write waits for.
  struct Copying {
    PendingCut* cut = nullptr;
    Version border;
    uint32_t left = 0;  // chunks that are not captured yet
    bool begun = false;
    std::deque<uint32_t> order;  // offered lines; may include some that are no longer offered
  };

  const Chunk& chunk(uint32_t index) const { return files_.chunk(index); }
  absl::Status OpenGradients(const DurableOptions& options);

  // ---- Operations of one chunk. The functions are in call order.
  void SubmitToChunk(OpId op, ChunkRequest request) EPS_EXCLUDES(mu_);
  void Advance(uint32_t index) EPS_REQUIRES(mu_);
  void BeginFrom(Line* line, std::deque<Waiting>::iterator next) EPS_REQUIRES(mu_);
  void Begin(Operation* o) EPS_REQUIRES(mu_);
  absl::Status Prepare(Operation* o, bool* parked) EPS_REQUIRES(mu_);
  void Finish(Operation* o, ChunkResult result) EPS_EXCLUDES(mu_);

  // ---- Captures. A chunk in slots is captured when the cut reaches the head of its line; those in
  // memory are copied, one cut after the other.
  void CaptureSlot(PendingCut* cut, uint32_t index) EPS_REQUIRES(mu_);
  void Offer(uint32_t index) EPS_REQUIRES(mu_);
  void BeginCopies() EPS_REQUIRES(mu_);
  bool BeginCopy(Copying* copying) EPS_REQUIRES(mu_);
  void BeginCopyTo(uint32_t slot, const Copying& copying, uint32_t index) EPS_REQUIRES(mu_);
  void PassCut(uint32_t index) EPS_REQUIRES(mu_);
  void EndCopy(PendingCut* cut, uint32_t index, const absl::StatusOr<SlotTable::Content>& copy)
      EPS_EXCLUDES(mu_);

  // ---- CutChunks.
  void Capture(PendingCut* cut) override EPS_EXCLUDES(mu_);
  void Retry() override EPS_EXCLUDES(mu_);
  bool IsIdle() override EPS_EXCLUDES(mu_);
  void Rewrite(uint32_t index) override EPS_EXCLUDES(mu_);
  void SetAll(std::optional<Version> version) override EPS_EXCLUDES(mu_);

  std::shared_ptr<DeviceDisk> devices_;  // may be null
  const ChunkCompute compute_;
  InFlight in_flight_;
  SlotFiles files_;
  MemoryAccount* const account_;
  std::unique_ptr<GradientArea> gradients_;  // null unless the tier stores gradients there
  std::unique_ptr<Tier> tier_;
  uint32_t copied_ = 0;                   // chunks that are not in slots: each cut copies them
  FileTier* stores_gradients_ = nullptr;  // tier_ or its part, if it does
  std::unique_ptr<CutEngine> engine_;
  absl::flat_hash_map<uint32_t, uint32_t> index_;  // by chunk id

  Mutex mu_;
  std::vector<Line> lines_ EPS_GUARDED_BY(mu_);         // by index
  std::vector<Operation*> parked_ EPS_GUARDED_BY(mu_);  // begun, waiting for a free slot
  std::deque<Copying> copying_ EPS_GUARDED_BY(mu_);     // only the first one copies
  uint64_t copies_ EPS_GUARDED_BY(mu_) = 0;             // in flight, with a staging buffer each
};

absl::Status TieredState::Open(const JobSpec& spec, const ChunkMap& chunks,
                               const std::vector<ChunkId>& owned, ShardId shard, uint32_t shards,
                               const DurableOptions& options, uint64_t memory_bytes) {
  devices_ = options.devices_or_null;
  EPS_ASSIGN_OR_RETURN(MadeTier made,
                       NewTier({&compute_, &files_, &in_flight_, account_}, chunks, owned,
                               {ChunksInMemory(chunks, owned, compute_.arrays(), memory_bytes),
                                options.slot_folders(), devices_.get(), options.device_use}));
  tier_ = std::move(made.tier);
  const bool seals = spec.training.mode == Mode::kSealed;
  if (options.gradients_on_disk && seals) stores_gradients_ = made.on_host_or_null;
  for (uint32_t i = 0; i < files_.layout().areas().size(); ++i) {
    EPS_CHECK_MSG(index_.emplace(chunk(i).id.value(), i).second,
                  "chunk " << chunk(i).id << " twice");
    copied_ += tier_->in_slots(i) ? 0 : 1;
  }
  const uint64_t gradient_bytes =
      stores_gradients_ != nullptr ? files_.layout().largest_gradient_bytes() : 0;
  EPS_RETURN_IF_ERROR(files_.Reserve(options.staging_bytes, gradient_bytes));
  CutChunks* const queues = this;
  engine_ = std::make_unique<CutEngine>(&files_, tier_.get(), queues, &in_flight_, account_);
  EPS_RETURN_IF_ERROR(engine_->Open(spec, shard, shards, options));
  return gradient_bytes > 0 ? OpenGradients(options) : absl::OkStatus();
}

absl::Status TieredState::OpenGradients(const DurableOptions& options) {
  auto area =
      GradientArea::Open(options.blocking(), options.disk, options.slot_folders(), files_.layout());
  EPS_RETURN_IF_ERROR(options.NameOtherJobs(area.status()));
  gradients_ = *std::move(area);
  stores_gradients_->StoreGradients(gradients_.get());
  return absl::OkStatus();
}

TieredState::~TieredState() {
  if (engine_ == nullptr) return;
  in_flight_.Drain([this] {
    engine_->CancelCuts();
    Retry();
  });
}

StateBackend::Caps TieredState::caps() const {
  return {.durable = true,
          .log_steps = engine_->log_steps(),
          .stores_gradients = gradients_ != nullptr,
          .state_bytes = tier_->state_bytes()};
}

void TieredState::Submit(OpId op, Request request) {
  if (auto* const of_chunk = std::get_if<ChunkRequest>(&request)) {
    return SubmitToChunk(op, std::move(*of_chunk));
  }
  engine_->Submit(op, std::move(std::get<DurableRequest>(request)));
}

void TieredState::SubmitToChunk(OpId op, ChunkRequest request) {
  in_flight_.Begin();
  const ChunkId id = ChunkOf(request);
  const auto it = index_.find(id.value());
  if (it == index_.end()) {
    // Complete on another stack: the caller may hold locks that the completion needs.
    return in_flight_.executor(Lane::kCore)->Post([this, op, id] {
      in_flight_.Complete(
          op, absl::NotFoundError(absl::StrCat("chunk ", id.value(), " is none of the ",
                                               index_.size(), " chunks of this shard")));
    });
  }
  const uint32_t index = it->second;
  auto operation = std::make_unique<Operation>();
  operation->op = op;
  operation->work = NewChunkOp(compute_, chunk(index), std::move(request));
  operation->work.index = index;
  MutexLock lock(&mu_);
  Line* const line = &lines_[index];
  operation->behind_cut = line->cuts > 0;
  if (operation->work.writes) {
    ++line->writes;
    if (line->offered) copying_.front().order.push_front(index);
  }
  line->waiting.push_back({nullptr, std::move(operation)});
  Advance(index);
  BeginCopies();
}

void TieredState::Advance(uint32_t index) {
  Line* const line = &lines_[index];
  while (line->begun == nullptr && !line->waiting.empty()) {
    auto next = line->waiting.begin();
    if (next->cut != nullptr && tier_->in_slots(index)) {
      PendingCut* const cut = next->cut;
      line->waiting.pop_front();
      --line->cuts;
      CaptureSlot(cut, index);
      continue;
    }
    if (next->cut != nullptr) {
      Offer(index);
      // An operation that writes nothing need not wait for the copy.
      while (next != line->waiting.end() && next->cut != nullptr) ++next;
      if (next == line->waiting.end() || next->operation->work.writes) return;
    }
    BeginFrom(line, next);
  }
}

void TieredState::BeginFrom(Line* line, std::deque<Waiting>::iterator next) {
  line->begun = std::move(next->operation);
  line->waiting.erase(next);
  if (line->begun->work.writes) --line->writes;
  Begin(line->begun.get());
}

void TieredState::Begin(Operation* o) {
  bool parked = false;
  const absl::Status status = Prepare(o, &parked);
  if (parked) return parked_.push_back(o);
  if (!status.ok()) {
    in_flight_.executor(Lane::kCore)->Post([this, o, status] {
      Finish(o, {status, std::nullopt, 0});
    });
    return;
  }
  if (o->work.writes) lines_[o->work.index].stored = tier_->in_slots(o->work.index);
  tier_->Run(&o->work, [this, o](ChunkResult result) { Finish(o, std::move(result)); });
}

// Decides whether the operation may run, and in which slot. Sets *parked if it must wait for one.
absl::Status TieredState::Prepare(Operation* o, bool* parked) {
  ChunkOp* const work = &o->work;
  EPS_RETURN_IF_ERROR(in_flight_.failure());
  const absl::Status cancelled = Cancelled(absl::StrCat("chunk ", chunk(work->index).id.value()));
  if (!tier_->in_slots(work->index)) {
    if (work->writes && o->behind_cut && in_flight_.quiescing()) return cancelled;
    if (work->check == nullptr) return absl::OkStatus();
    return work->check(lines_[work->index].version);
  }
  if (work->check != nullptr) EPS_RETURN_IF_ERROR(work->check(lines_[work->index].version));
  if (work->writes) {
    const std::optional<uint32_t> target = engine_->Target(work->index);
    if (target.has_value()) {
      work->target = *target;
    } else {
      *parked = !in_flight_.quiescing();
      if (!*parked) return cancelled;
      return absl::OkStatus();
    }
  }
  const std::optional<SlotTable::Content> content = engine_->content(work->index);
  if (content.has_value()) work->from = *content;
  work->term = engine_->term();
  return absl::OkStatus();
}

void TieredState::Finish(Operation* o, ChunkResult result) {
  const uint32_t index = o->work.index;
  o->work.DropInputs();
  if (result.written.has_value()) engine_->SetContent(index, *result.written);
  const bool wrote = o->work.writes && result.outcome.ok();
  in_flight_.Report(o->op, std::move(result.outcome), result.seconds);
  {
    MutexLock lock(&mu_);
    Line* const line = &lines_[index];
    if (wrote) line->version = o->work.to;
    line->begun.reset();
    Advance(index);
    BeginCopies();
  }
  in_flight_.End();
}

void TieredState::Capture(PendingCut* cut) {
  MutexLock lock(&mu_);
  if (copied_ > 0) {
    Copying copying;
    copying.cut = cut;
    copying.border = cut->request.border.version;
    copying.left = copied_;
    copying_.push_back(std::move(copying));
  }
  for (uint32_t i = 0; i < lines_.size(); ++i) {
    lines_[i].waiting.push_back({cut, nullptr});
    ++lines_[i].cuts;
    Advance(i);
  }
  BeginCopies();
}

void TieredState::CaptureSlot(PendingCut* cut, uint32_t index) {
  engine_->Captured(
      cut, index,
      ChunkCompute::CheckVersion(chunk(index), lines_[index].version, cut->request.border.version));
}

// Offers the chunk to the cut at the head of its line. All earlier operations have ended.
void TieredState::Offer(uint32_t index) {
  Line* const line = &lines_[index];
  Copying* const copying = &copying_.front();
  if (line->offered || line->copying || !copying->begun) return;
  if (line->waiting.front().cut != copying->cut) return;
  line->offered = true;
  if (line->writes > 0) {
    copying->order.push_front(index);
  } else {
    copying->order.push_back(index);
  }
}

void TieredState::BeginCopies() {
  while (!copying_.empty()) {
    Copying* const copying = &copying_.front();
    if (copying->left == 0) {
      copying_.pop_front();
      continue;
    }
    if (!copying->begun) {
      copying->begun = true;
      for (uint32_t i = 0; i < lines_.size(); ++i) {
        if (lines_[i].begun == nullptr && !tier_->in_slots(i)) Offer(i);
      }
    }
    if (!BeginCopy(copying)) return;
  }
}

// Returns false if no further copy can begin now.
bool TieredState::BeginCopy(Copying* copying) {
  std::deque<uint32_t>* const order = &copying->order;
  while (!order->empty() && !lines_[order->front()].offered) order->pop_front();
  if (order->empty()) return false;
  const uint32_t index = order->front();
  Line* const line = &lines_[index];
  PendingCut* const cut = copying->cut;
  absl::Status outcome;
  if (engine_->Wants(*cut)) {
    outcome = ChunkCompute::CheckVersion(chunk(index), line->version, copying->border);
    if (outcome.ok() && !line->stored) {
      const std::optional<uint32_t> slot = engine_->Target(index);
      if (!slot.has_value() || copies_ == files_.staging()->buffers()) return false;
      BeginCopyTo(*slot, *copying, index);
      return true;
    }
  } else {
    outcome = Cancelled(absl::StrCat("chunk ", chunk(index).id.value()));
  }
  line->offered = false;
  --copying->left;
  engine_->Captured(cut, index, outcome);
  PassCut(index);
  return true;
}

void TieredState::BeginCopyTo(uint32_t slot, const Copying& copying, uint32_t index) {
  lines_[index].offered = false;
  lines_[index].copying = true;
  ++copies_;
  in_flight_.Begin();
  Tier::Copy copy;
  copy.index = index;
  copy.slot = slot;
  copy.version = ContentVersion(chunk(index), copying.border);
  copy.term = engine_->term();
  tier_->Capture(
      copy,
      [this, index] {
        MutexLock lock(&mu_);
        lines_[index].stored = true;
        PassCut(index);
      },
      [this, cut = copying.cut, index](const absl::StatusOr<SlotTable::Content>& content) {
        EndCopy(cut, index, content);
      });
}

// Removes the cut from the head of the line, since it has the chunk or failed, and continues with
// the operations that waited for it.
void TieredState::PassCut(uint32_t index) {
  Line* const line = &lines_[index];
  line->copying = false;
  line->waiting.pop_front();
  --line->cuts;
  Advance(index);
}

void TieredState::EndCopy(PendingCut* cut, uint32_t index,
                          const absl::StatusOr<SlotTable::Content>& copy) {
  if (copy.ok()) engine_->SetContent(index, *copy);
  {
    MutexLock lock(&mu_);
    --copies_;
    --copying_.front().left;
    engine_->Captured(cut, index, copy.status());
    BeginCopies();
  }
  in_flight_.End();
}

void TieredState::Retry() {
  MutexLock lock(&mu_);
  for (Operation* const o : std::exchange(parked_, {})) Begin(o);
  BeginCopies();
}

bool TieredState::IsIdle() {
  MutexLock lock(&mu_);
  return copying_.empty() && std::all_of(lines_.begin(), lines_.end(), [](const Line& line) {
           return line.begun == nullptr && line.waiting.empty();
         });
}

void TieredState::Rewrite(uint32_t index) {
  MutexLock lock(&mu_);
  lines_[index].stored = false;
}

void TieredState::SetAll(std::optional<Version> version) {
  MutexLock lock(&mu_);
  for (Line& line : lines_) {
    line.version = version;
    line.stored = version.has_value();
  }
}

}  // namespace
}  // namespace durable

namespace {

absl::StatusOr<std::unique_ptr<StateBackend>> NewTieredState(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
    uint32_t shards, Executor* executor, MemoryAccount* account, const DurableOptions& options,
    bool in_dram, BackendDoneFn done) {
  std::sort(owned.begin(), owned.end());
  EPS_ASSIGN_OR_RETURN(ChunkCompute compute, ChunkCompute::New(spec, account, options.updates()));
  EPS_ASSIGN_OR_RETURN(const DrivePlacement placement,
                       PlacementOf(spec, chunks, owned, compute.arrays(), *options.catalogue,
                                   static_cast<uint32_t>(options.drive_folders.size())));
  const ExtentLayout layout(chunks, owned, compute.arrays(), options.residual_bytes,
                            spec.training.parts, placement);
  auto backend = std::make_unique<durable::TieredState>(std::move(compute), layout, executor,
                                                        account, std::move(done));
  const uint64_t memory = in_dram ? std::numeric_limits<uint64_t>::max() : options.memory_bytes;
  EPS_RETURN_IF_ERROR(backend->Open(spec, chunks, owned, shard, shards, options, memory));
  return std::unique_ptr<StateBackend>(std::move(backend));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateBackend>> NewNvmeBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
    uint32_t shards, Executor* executor, MemoryAccount* account, const DurableOptions& options,
    BackendDoneFn done) {
  return NewTieredState(spec, chunks, std::move(owned), shard, shards, executor, account, options,
                        /*in_dram=*/false, std::move(done));
}

absl::StatusOr<std::unique_ptr<StateBackend>> NewDurableDramBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
    uint32_t shards, Executor* executor, MemoryAccount* account, const DurableOptions& options,
    BackendDoneFn done) {
  return NewTieredState(spec, chunks, std::move(owned), shard, shards, executor, account, options,
                        /*in_dram=*/true, std::move(done));
}

}  // namespace eps
