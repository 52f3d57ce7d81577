#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "optimizer/chunk_compute.h"
#include "storage/backends/cut_backend.h"

namespace eps {
namespace durable {
namespace {

// One operation of one chunk, in the chunk's line. Once begun, it is touched by one task at a time.
struct Operation {
  OpId op;
  uint32_t index = 0;
  PendingCut* capture = nullptr;  // of this cut; nothing else is done
  // Asked before anything is done, with the version that is here.
  std::function<absl::Status(std::optional<Version>)> check;
  std::optional<Extents::Part> reads;
  bool writes = false;
  Version to;  // of what is written
  std::function<Outcome(const ChunkArrays&)> work;

  SlotTable::Content from;  // what is read
  uint32_t target = 0;      // slot of what is written
  Term term;
  uint8_t* buffer = nullptr;
  BackendValue value;
  double seconds = 0;
};

class NvmeBackend final : public CutBackend {
 public:
  NvmeBackend(ChunkCompute compute, const ExtentLayout& layout, Executor* executor,
              MemoryAccount* account, BackendDoneFn done)
      : CutBackend(layout, executor, account, std::move(done)),
        compute_(std::move(compute)),
        lines_(layout.areas().size()) {}
  ~NvmeBackend() override { Drain(); }

  void Read(OpId op, ChunkId chunk, Version version, const Codec* codec, Axis axis) override;
  void ReadState(OpId op, ChunkId chunk, Version version) override;
  void WriteState(OpId op, ChunkId chunk, Version version, Bytes state) override;
  void Initialize(OpId op, ChunkId chunk) override;
  void Stats(OpId op, UpdateRequest request) override;
  void Update(OpId op, UpdateRequest request) override;

 private:
  struct Line {
    std::deque<std::unique_ptr<Operation>> waiting;
    std::unique_ptr<Operation> begun;
  };

  // Operations of one chunk, in the order in which they pass these functions.
  void Submit(OpId op, ChunkId chunk, std::unique_ptr<Operation> operation) EPS_EXCLUDES(mu_);
  void Advance(uint32_t index) EPS_REQUIRES(mu_);
  void CaptureContent(PendingCut* cut, uint32_t index) EPS_REQUIRES(mu_);
  void Begin(Operation* o) EPS_REQUIRES(mu_);
  void Load(Operation* o, uint8_t* buffer) EPS_EXCLUDES(mu_);
  void Loaded(Operation* o, absl::Status status) EPS_EXCLUDES(mu_);
  void Compute(Operation* o) EPS_EXCLUDES(mu_);
  void Written(Operation* o, const SlotTable::Content& content, absl::Status status)
      EPS_EXCLUDES(mu_);
  void Finish(Operation* o, Outcome outcome) EPS_EXCLUDES(mu_);

  // A cut's capture of a chunk is an operation in the chunk's line: the slot that holds the chunk
  // then is the cut's.
  void Capture(PendingCut* cut) override EPS_REQUIRES(mu_);
  void BeginWaiting() override EPS_REQUIRES(mu_);
  bool HasOperations() const override EPS_REQUIRES(mu_);
  void Restored(uint32_t, Version, const uint8_t*) override {}
  ChunkArrays Arrays(const Operation& o) const;

  const ChunkCompute compute_;
  std::vector<Line> lines_ EPS_GUARDED_BY(mu_);         // by index
  std::vector<Operation*> parked_ EPS_GUARDED_BY(mu_);  // begun, but both slots are needed
};

bool NvmeBackend::HasOperations() const {
  return std::any_of(lines_.begin(), lines_.end(), [](const Line& line) {
    return line.begun != nullptr || !line.waiting.empty();
  });
}

// ---- Operations of one chunk.

void NvmeBackend::Submit(OpId op, ChunkId chunk, std::unique_ptr<Operation> operation) {
  MutexLock lock(&mu_);
  ++pending_;
  const auto it = index_.find(chunk.value());
  if (it == index_.end()) {
    // Not completed on the caller's stack, which may hold locks that the completion needs.
    executor_->Post([this, op, chunk] {
      Complete(op, absl::NotFoundError(absl::StrCat("chunk ", chunk.value(), " is none of the ",
                                                    index_.size(), " chunks of this shard")));
    });
    return;
  }
  operation->op = op;
  operation->index = it->second;
  lines_[it->second].waiting.push_back(std::move(operation));
  Advance(it->second);
}

void NvmeBackend::Advance(uint32_t index) {
  Line& line = lines_[index];
  while (line.begun == nullptr && !line.waiting.empty()) {
    std::unique_ptr<Operation> next = std::move(line.waiting.front());
    line.waiting.pop_front();
    if (next->capture != nullptr) {
      CaptureContent(next->capture, index);
    } else {
      line.begun = std::move(next);
      Begin(line.begun.get());
    }
  }
}

void NvmeBackend::Capture(PendingCut* cut) {
  for (uint32_t i = 0; i < table_.chunks(); ++i) {
    auto capture = std::make_unique<Operation>();
    capture->capture = cut;
    lines_[i].waiting.push_back(std::move(capture));
    Advance(i);
  }
}

void NvmeBackend::CaptureContent(PendingCut* cut, uint32_t index) {
  const std::optional<SlotTable::Content>& content = table_.content(index);
  Captured(
      cut, index,
      ChunkCompute::CheckVersion(chunk(index),
                                 content.has_value() ? std::make_optional(content->footer.version)
                                                     : std::optional<Version>(),
                                 cut->request.border.version));
}

void NvmeBackend::Begin(Operation* o) {
  const std::optional<SlotTable::Content>& content = table_.content(o->index);
  absl::Status status = failure_;
  if (status.ok() && o->check != nullptr) {
    status = o->check(content.has_value() ? std::make_optional(content->footer.version)
                                          : std::optional<Version>());
  }
  if (status.ok() && o->writes) {
    const std::optional<uint32_t> target = table_.Target(o->index);
    if (!target.has_value() && !quiescing_) {
      parked_.push_back(o);
      return;
    }
    if (target.has_value()) {
      o->target = *target;
    } else {
      status = Cancelled(absl::StrCat("chunk ", chunk(o->index).id.value()));
    }
  }
  if (!status.ok()) {
    executor_->Post([this, o, status] { Finish(o, status); });
    return;
  }
  if (content.has_value()) o->from = *content;
  o->term = term_;
  if (o->reads.has_value() || o->writes) {
    staging_->Acquire([this, o](uint8_t* buffer) { Load(o, buffer); });
  } else {
    executor_->Post([this, o] { Compute(o); });
  }
}

void NvmeBackend::BeginWaiting() {
  const std::vector<Operation*> parked = std::exchange(parked_, {});
  for (Operation* o : parked) Begin(o);
}

void NvmeBackend::Load(Operation* o, uint8_t* buffer) {
  o->buffer = buffer;
  const absl::Status failed = failure();
  if (!failed.ok()) return Finish(o, failed);
  if (!o->reads.has_value()) return Compute(o);
  extents_->Read(o->from.slot, o->index, *o->reads, buffer,
                 Posted([this, o](absl::Status status) { Loaded(o, std::move(status)); }));
}

void NvmeBackend::Loaded(Operation* o, absl::Status status) {
  const auto start = std::chrono::steady_clock::now();
  if (status.ok()) {
    const absl::StatusOr<ExtentFooter> footer =
        extents_->Check(o->from.slot, o->index, *o->reads, o->buffer);
    status = footer.status();
    if (footer.ok() && footer->crc32c != o->from.footer.crc32c) {
      status = extents_->Damaged(
          o->from.slot, o->index,
          absl::StrCat("version ", o->from.footer.version.value(),
                       " as written last expected, version ", footer->version.value(), " found"));
    }
  }
  o->seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!status.ok()) {
    Fail(status);
    return Finish(o, status);
  }
  Compute(o);
}

ChunkArrays NvmeBackend::Arrays(const Operation& o) const {
  return ChunkArrays{reinterpret_cast<float*>(o.buffer),
                     layout_.area(o.index).stride_bytes / sizeof(float)};
}

void NvmeBackend::Compute(Operation* o) {
  const auto start = std::chrono::steady_clock::now();
  Outcome outcome = o->work(Arrays(*o));
  o->work = nullptr;  // the inputs are dropped, and no longer charged, when the outcome is told
  const bool writes = o->writes && outcome.ok();
  SlotTable::Content content;
  if (writes) {
    o->value = std::move(*outcome);
    content.slot = o->target;
    content.footer = extents_->Seal(o->target, o->index, o->to, o->term, o->buffer);
  }
  o->seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!writes) return Finish(o, std::move(outcome));
  extents_->Write(o->target, o->index, o->buffer, Posted([this, o, content](absl::Status status) {
                    Written(o, content, std::move(status));
                  }));
}

void NvmeBackend::Written(Operation* o, const SlotTable::Content& content, absl::Status status) {
  if (!status.ok()) {
    Fail(status);
    return Finish(o, status);
  }
  {
    MutexLock lock(&mu_);
    table_.SetContent(o->index, content);
    dirty_[content.slot] = true;
  }
  Finish(o, std::move(o->value));
}

void NvmeBackend::Finish(Operation* o, Outcome outcome) {
  if (o->buffer != nullptr) staging_->Release(o->buffer);
  o->work = nullptr;
  o->check = nullptr;
  if (outcome.ok()) {
    done_(BackendDone{o->op, absl::OkStatus(), std::move(*outcome), o->seconds});
  } else {
    done_(BackendDone{o->op, outcome.status(), BackendValue(), o->seconds});
  }
  const uint32_t index = o->index;
  MutexLock lock(&mu_);
  lines_[index].begun.reset();
  Advance(index);
  Ended();
}

void NvmeBackend::Read(OpId op, ChunkId id, Version version, const Codec* codec, Axis axis) {
  auto o = std::make_unique<Operation>();
  Operation* const raw = o.get();
  o->check = [this, raw, version](std::optional<Version> present) {
    return ChunkCompute::CheckVersion(chunk(raw->index), present, version);
  };
  o->reads = Extents::Part::kWeights;
  o->work = [this, raw, version, codec, axis](const ChunkArrays& arrays) -> Outcome {
    return BackendValue(compute_.Read(chunk(raw->index), version, *codec, axis, arrays));
  };
  Submit(op, id, std::move(o));
}

void NvmeBackend::ReadState(OpId op, ChunkId id, Version version) {
  auto o = std::make_unique<Operation>();
  Operation* const raw = o.get();
  o->check = [this, raw, version](std::optional<Version> present) {
    return ChunkCompute::CheckVersion(chunk(raw->index), present, version);
  };
  o->reads = Extents::Part::kAll;
  o->work = [this, raw](const ChunkArrays& arrays) -> Outcome {
    return BackendValue(compute_.ReadState(chunk(raw->index), arrays));
  };
  Submit(op, id, std::move(o));
}

void NvmeBackend::WriteState(OpId op, ChunkId id, Version version, Bytes state) {
  auto o = std::make_unique<Operation>();
  Operation* const raw = o.get();
  o->check = [this, raw, version, state](std::optional<Version>) {
    return compute_.CheckState(chunk(raw->index), version, state);
  };
  o->writes = true;
  o->to = version;
  o->work = [this, raw, state](const ChunkArrays& arrays) -> Outcome {
    compute_.WriteState(chunk(raw->index), state, arrays);
    return BackendValue();
  };
  Submit(op, id, std::move(o));
}

void NvmeBackend::Initialize(OpId op, ChunkId id) {
  auto o = std::make_unique<Operation>();
  Operation* const raw = o.get();
  o->writes = true;
  o->work = [this, raw](const ChunkArrays& arrays) -> Outcome {
    compute_.Initialize(chunk(raw->index), arrays);
    return BackendValue();
  };
  Submit(op, id, std::move(o));
}

void NvmeBackend::Stats(OpId op, UpdateRequest request) {
  const ChunkId id = request.chunk;
  auto shared = std::make_shared<UpdateRequest>(std::move(request));
  auto o = std::make_unique<Operation>();
  Operation* const raw = o.get();
  o->work = [this, raw, shared = std::move(shared)](const ChunkArrays&) -> Outcome {
    EPS_ASSIGN_OR_RETURN(UpdateResult result, compute_.Stats(chunk(raw->index), *shared));
    return BackendValue(std::move(result));
  };
  Submit(op, id, std::move(o));
}

void NvmeBackend::Update(OpId op, UpdateRequest request) {
  const ChunkId id = request.chunk;
  auto shared = std::make_shared<UpdateRequest>(std::move(request));
  auto o = std::make_unique<Operation>();
  Operation* const raw = o.get();
  o->check = [this, raw, request = shared.get()](std::optional<Version> present) {
    return ChunkCompute::CheckUpdate(chunk(raw->index), present, *request);
  };
  o->reads = Extents::Part::kAll;
  o->writes = true;
  o->to = shared->to;
  // Moved, so that the work holds the only reference to the contributions.
  o->work = [this, raw, shared = std::move(shared)](const ChunkArrays& arrays) -> Outcome {
    EPS_ASSIGN_OR_RETURN(UpdateResult result, compute_.Update(chunk(raw->index), *shared, arrays));
    return BackendValue(std::move(result));
  };
  Submit(op, id, std::move(o));
}

}  // namespace
}  // namespace durable

absl::StatusOr<std::unique_ptr<StateBackend>> NewNvmeBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
    uint32_t shards, Executor* executor, MemoryAccount* account, const DurableOptions& options,
    BackendDoneFn done) {
  std::sort(owned.begin(), owned.end());
  EPS_ASSIGN_OR_RETURN(ChunkCompute compute, ChunkCompute::New(spec, account));
  const ExtentLayout layout(chunks, owned, compute.arrays(), options.residual_bytes,
                            spec.training.parts);
  auto backend = std::make_unique<durable::NvmeBackend>(std::move(compute), layout, executor,
                                                        account, std::move(done));
  EPS_RETURN_IF_ERROR(backend->Open(spec, shard, shards, options));
  return std::unique_ptr<StateBackend>(std::move(backend));
}

}  // namespace eps
