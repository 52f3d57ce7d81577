#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "storage/backends/cut_backend.h"
#include "storage/backends/dram_backend.h"

namespace eps {
namespace durable {
namespace {

// The DRAM backend behind a line for each chunk, in which a cut that has not copied the chunk yet
// holds up what would change it.
class DurableDramBackend final : public CutBackend {
 public:
  DurableDramBackend(const ExtentLayout& layout, Executor* executor, MemoryAccount* account,
                     BackendDoneFn done)
      : CutBackend(layout, executor, account, std::move(done)), lines_(layout.areas().size()) {}
  ~DurableDramBackend() override { Drain(); }

  // Reserves the memory of all chunks. To be called once, before Open.
  absl::Status Reserve(ChunkCompute compute, const ChunkMap& chunks,
                       const std::vector<ChunkId>& owned);

  void Read(OpId op, ChunkId chunk, Version version, const Codec* codec, Axis axis) override;
  void ReadState(OpId op, ChunkId chunk, Version version) override;
  void WriteState(OpId op, ChunkId chunk, Version version, Bytes state) override;
  void Initialize(OpId op, ChunkId chunk) override;
  void Stats(OpId op, UpdateRequest request) override;
  void Update(OpId op, UpdateRequest request) override;

 private:
  // An operation that waits for the cuts before it, or one of these.
  struct Waiting {
    PendingCut* cut = nullptr;
    OpId op;
    bool writes = false;
    std::function<void()> pass;  // to the DRAM backend
  };
  // What waits, from the first cut on that has not copied the chunk.
  struct Line {
    std::deque<Waiting> waiting;
    uint32_t writes = 0;  // in `waiting`
    bool stored = false;  // the table's content is the chunk as it is
  };
  // A cut that has not captured all its chunks.
  struct Capturing {
    PendingCut* cut = nullptr;
    bool begun = false;
    std::deque<uint32_t> order;  // of those to come, and of some that are taken
    std::vector<bool> taken;
  };
  struct Copy {
    PendingCut* cut = nullptr;
    uint32_t index = 0;
    uint32_t slot = 0;
    Term term;
    uint8_t* buffer = nullptr;
  };

  void Submit(OpId op, ChunkId chunk, bool writes, std::function<void()> pass) EPS_EXCLUDES(mu_);
  void Pass(Waiting operation, Line* line_or_null) EPS_REQUIRES(mu_);

  // ---- Captures, in the order in which a chunk passes these functions.
  void Capture(PendingCut* cut) override EPS_REQUIRES(mu_);
  void BeginWaiting() override EPS_REQUIRES(mu_);
  bool BeginNext(Capturing* capturing) EPS_REQUIRES(mu_);
  void CopyChunk(const Copy& copy) EPS_EXCLUDES(mu_);
  void OpenLine(uint32_t index) EPS_REQUIRES(mu_);
  void WriteCopy(const Copy& copy, absl::Status status) EPS_EXCLUDES(mu_);
  void EndCopy(const Copy& copy, const absl::Status& status) EPS_EXCLUDES(mu_);

  bool HasOperations() const override EPS_REQUIRES(mu_);
  void Restored(uint32_t index, Version version, const uint8_t* area) override EPS_EXCLUDES(mu_);

  std::vector<Line> lines_ EPS_GUARDED_BY(mu_);         // by index
  std::deque<Capturing> captures_ EPS_GUARDED_BY(mu_);  // one after the other
  uint64_t copies_ EPS_GUARDED_BY(mu_) = 0;             // on their way, a staging buffer each
  uint64_t passed_ EPS_GUARDED_BY(mu_) = 0;             // operations in the DRAM backend
  std::unique_ptr<DramBackend> dram_;
};

absl::Status DurableDramBackend::Reserve(ChunkCompute compute, const ChunkMap& chunks,
                                         const std::vector<ChunkId>& owned) {
  EPS_ASSIGN_OR_RETURN(dram_, DramBackend::New(std::move(compute), chunks, owned, executor_,
                                               account_, [this](BackendDone done) {
                                                 done_(std::move(done));
                                                 MutexLock lock(&mu_);
                                                 --passed_;
                                                 Ended();
                                               }));
  return absl::OkStatus();
}

// ---- Operations.

void DurableDramBackend::Submit(OpId op, ChunkId chunk, bool writes, std::function<void()> pass) {
  MutexLock lock(&mu_);
  ++pending_;
  Waiting operation;
  operation.op = op;
  operation.writes = writes;
  operation.pass = std::move(pass);
  const auto it = index_.find(chunk.value());
  if (it == index_.end()) return Pass(std::move(operation), nullptr);  // it is refused there
  Line* const line = &lines_[it->second];
  const bool waits = writes ? !line->waiting.empty() : line->writes > 0;
  if (!waits) return Pass(std::move(operation), line);
  line->waiting.push_back(std::move(operation));
  if (!writes) return;
  ++line->writes;
  Capturing* const capturing = &captures_.front();
  if (capturing->begun && !capturing->taken[it->second]) {
    capturing->order.push_front(it->second);
  }
}

void DurableDramBackend::Pass(Waiting operation, Line* line_or_null) {
  if (!failure_.ok()) {
    operation.pass = nullptr;  // the inputs are let go of before the outcome is told
    executor_->Post([this, op = operation.op, status = failure_] { Complete(op, status); });
    return;
  }
  if (operation.writes && line_or_null != nullptr) line_or_null->stored = false;
  ++passed_;
  operation.pass();
}

void DurableDramBackend::Read(OpId op, ChunkId chunk, Version version, const Codec* codec,
                              Axis axis) {
  Submit(op, chunk, /*writes=*/false, [=] { dram_->Read(op, chunk, version, codec, axis); });
}

void DurableDramBackend::ReadState(OpId op, ChunkId chunk, Version version) {
  Submit(op, chunk, /*writes=*/false, [=] { dram_->ReadState(op, chunk, version); });
}

void DurableDramBackend::WriteState(OpId op, ChunkId chunk, Version version, Bytes state) {
  Submit(op, chunk, /*writes=*/true, [=, state = std::move(state)]() mutable {
    dram_->WriteState(op, chunk, version, std::move(state));
  });
}

void DurableDramBackend::Initialize(OpId op, ChunkId chunk) {
  Submit(op, chunk, /*writes=*/true, [=] { dram_->Initialize(op, chunk); });
}

void DurableDramBackend::Stats(OpId op, UpdateRequest request) {
  const ChunkId chunk = request.chunk;
  Submit(op, chunk, /*writes=*/false, [this, op, request = std::move(request)]() mutable {
    dram_->Stats(op, std::move(request));
  });
}

// Moved on, so that the DRAM backend holds the only reference to the contributions.
void DurableDramBackend::Update(OpId op, UpdateRequest request) {
  const ChunkId chunk = request.chunk;
  Submit(op, chunk, /*writes=*/true, [this, op, request = std::move(request)]() mutable {
    dram_->Update(op, std::move(request));
  });
}

// ---- Captures.

void DurableDramBackend::Capture(PendingCut* cut) {
  Capturing capturing;
  capturing.cut = cut;
  capturing.taken.resize(lines_.size());
  captures_.push_back(std::move(capturing));
  for (Line& line : lines_) {
    Waiting barrier;
    barrier.cut = cut;
    line.waiting.push_back(std::move(barrier));
  }
  BeginWaiting();
}

void DurableDramBackend::BeginWaiting() {
  while (!captures_.empty()) {
    Capturing* const capturing = &captures_.front();
    if (capturing->cut->uncaptured == 0) {
      captures_.pop_front();
      continue;
    }
    if (!capturing->begun) {
      capturing->begun = true;
      for (uint32_t i = 0; i < lines_.size(); ++i) {
        if (lines_[i].writes > 0) capturing->order.push_back(i);
      }
      for (uint32_t i = 0; i < lines_.size(); ++i) {
        if (lines_[i].writes == 0) capturing->order.push_back(i);
      }
    }
    if (!BeginNext(capturing)) return;
  }
}

// False: nothing more can begin now.
bool DurableDramBackend::BeginNext(Capturing* capturing) {
  std::deque<uint32_t>* const order = &capturing->order;
  while (!order->empty() && capturing->taken[order->front()]) order->pop_front();
  if (order->empty()) return false;
  const uint32_t index = order->front();
  PendingCut* const cut = capturing->cut;
  if (quiescing_ || !failure_.ok() || !cut->status.ok()) {
    capturing->taken[index] = true;
    OpenLine(index);
    Captured(cut, index, Cancelled(absl::StrCat("chunk ", chunk(index).id.value())));
    return true;
  }
  if (lines_[index].stored) {
    capturing->taken[index] = true;
    OpenLine(index);
    Captured(cut, index,
             ChunkCompute::CheckVersion(chunk(index), table_.content(index)->footer.version,
                                        cut->request.border.version));
    return true;
  }
  const std::optional<uint32_t> slot = table_.Target(index);
  if (!slot.has_value() || copies_ == staging_->buffers()) return false;
  capturing->taken[index] = true;
  ++copies_;
  ++pending_;
  Copy copy;
  copy.cut = cut;
  copy.index = index;
  copy.slot = *slot;
  copy.term = term_;
  staging_->Acquire([this, copy](uint8_t* buffer) mutable {
    copy.buffer = buffer;
    CopyChunk(copy);
  });
  return true;
}

void DurableDramBackend::CopyChunk(const Copy& copy) {
  dram_->Visit(chunk(copy.index).id,
               [this, copy](std::optional<Version> version, const ChunkArrays& arrays) {
                 const absl::Status at_border = ChunkCompute::CheckVersion(
                     chunk(copy.index), version, copy.cut->request.border.version);
                 const uint64_t stride_bytes = layout_.area(copy.index).stride_bytes;
                 EPS_CHECK(arrays.stride * sizeof(float) == stride_bytes);
                 if (at_border.ok()) {
                   std::memcpy(copy.buffer, arrays.weights, stride_bytes * layout_.arrays());
                 }
                 {
                   MutexLock lock(&mu_);
                   lines_[copy.index].stored = at_border.ok();
                   OpenLine(copy.index);
                 }
                 // Checksums are computed while the chunk may be updated.
                 executor_->Post([this, copy, at_border] { WriteCopy(copy, at_border); });
               });
}

// The cut at the head of the line has the chunk, or does without it: what waited for it goes on.
void DurableDramBackend::OpenLine(uint32_t index) {
  Line* const line = &lines_[index];
  line->waiting.pop_front();
  while (!line->waiting.empty() && line->waiting.front().cut == nullptr) {
    Waiting operation = std::move(line->waiting.front());
    line->waiting.pop_front();
    if (operation.writes) --line->writes;
    if (quiescing_ && operation.writes) {
      operation.pass = nullptr;
      executor_->Post([this, op = operation.op, id = chunk(index).id] {
        Complete(op, Cancelled(absl::StrCat("chunk ", id.value())));
      });
    } else {
      Pass(std::move(operation), line);
    }
  }
}

void DurableDramBackend::WriteCopy(const Copy& copy, absl::Status status) {
  if (status.ok()) status = failure();
  if (!status.ok()) return EndCopy(copy, status);
  SlotTable::Content content;
  content.slot = copy.slot;
  content.footer = extents_->Seal(copy.slot, copy.index, copy.cut->request.border.version,
                                  copy.term, copy.buffer);
  extents_->Write(copy.slot, copy.index, copy.buffer,
                  Posted([this, copy, content](absl::Status written) {
                    if (written.ok()) {
                      MutexLock lock(&mu_);
                      table_.SetContent(copy.index, content);
                      dirty_[content.slot] = true;
                    } else {
                      Fail(written);
                    }
                    EndCopy(copy, written);
                  }));
}

void DurableDramBackend::EndCopy(const Copy& copy, const absl::Status& status) {
  staging_->Release(copy.buffer);
  MutexLock lock(&mu_);
  --copies_;
  Captured(copy.cut, copy.index, status);
  BeginWaiting();
  Ended();
}

bool DurableDramBackend::HasOperations() const { return passed_ > 0 || !captures_.empty(); }

void DurableDramBackend::Restored(uint32_t index, Version version, const uint8_t* area) {
  dram_->Set(chunk(index).id, version, reinterpret_cast<const float*>(area));
  MutexLock lock(&mu_);
  lines_[index].stored = true;
}

}  // namespace
}  // namespace durable

absl::StatusOr<std::unique_ptr<StateBackend>> NewDurableDramBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
    uint32_t shards, Executor* executor, MemoryAccount* account, const DurableOptions& options,
    BackendDoneFn done) {
  std::sort(owned.begin(), owned.end());
  EPS_ASSIGN_OR_RETURN(ChunkCompute compute, ChunkCompute::New(spec, account));
  const ExtentLayout layout(chunks, owned, compute.arrays(), options.residual_bytes,
                            spec.training.parts);
  auto backend =
      std::make_unique<durable::DurableDramBackend>(layout, executor, account, std::move(done));
  EPS_RETURN_IF_ERROR(backend->Reserve(std::move(compute), chunks, owned));
  EPS_RETURN_IF_ERROR(backend->Open(spec, shard, shards, options));
  return std::unique_ptr<StateBackend>(std::move(backend));
}

}  // namespace eps
