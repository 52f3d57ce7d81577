#include "storage/nvme_backend.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "storage/extent_format.h"
#include "storage/nvme_backend_impl.h"

namespace eps {
namespace nvme {

NvmeBackend::NvmeBackend(ChunkCompute compute, JobId job, const ExtentLayout& layout,
                         Executor* executor, MemoryAccount* account, Catalogue* catalogue,
                         BackendDoneFn done)
    : compute_(std::move(compute)),
      job_(job),
      layout_(layout),
      executor_(executor),
      account_(account),
      catalogue_(catalogue),
      done_(std::move(done)),
      journal_(executor),
      table_(static_cast<uint32_t>(layout.areas().size())),
      lines_(layout.areas().size()) {
  for (uint32_t i = 0; i < layout_.areas().size(); ++i) {
    EPS_CHECK_MSG(index_.emplace(chunk(i).id.value(), i).second,
                  "chunk " << chunk(i).id << " twice");
  }
}

NvmeBackend::~NvmeBackend() {
  {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    MutexLock lock(&mu_);
    quiescing_ = true;
    CancelCuts();
    BeginParked();
    while (pending_ > 0) {
      const bool in_time = idle_.WaitUntil(&mu_, deadline);
      EPS_CHECK_MSG(in_time || pending_ == 0, pending_ << " operations never ended");
    }
  }
  if (charged_bytes_ > 0) account_->Release(MemoryKind::kScratch, charged_bytes_);
}

absl::Status NvmeBackend::Reserve(uint64_t staging_bytes) {
  const uint64_t buffer_bytes = std::max(layout_.largest_area_bytes(), kDiskBlock + uint64_t{0});
  if (staging_bytes < buffer_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("storage.staging: ", staging_bytes,
                     " bytes, but one chunk with its state has ", buffer_bytes,
                     "; give at least that, or four times as much for speed, or "
                     "lower training.chunk_elements"));
  }
  const uint64_t buffers =
      std::min<uint64_t>(staging_bytes / buffer_bytes, std::max<size_t>(layout_.areas().size(), 1));
  const absl::Status charged = account_->TryCharge(MemoryKind::kScratch, buffers * buffer_bytes);
  if (!charged.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        buffers, " staging buffers of ", buffer_bytes, " bytes do not fit: ", charged.message(),
        "; raise servers.memory_limit or lower storage.staging"));
  }
  charged_bytes_ = buffers * buffer_bytes;
  EPS_ASSIGN_OR_RETURN(staging_, StagingPool::New(buffer_bytes, buffers, executor_));
  return absl::OkStatus();
}

absl::Status NvmeBackend::Adopt(std::unique_ptr<Extents> extents) {
  extents_ = std::move(extents);
  EPS_ASSIGN_OR_RETURN(const CatalogueJob known, catalogue_->FindJob(job_));
  EPS_ASSIGN_OR_RETURN(const std::vector<CatalogueCut> cuts, catalogue_->Cuts(job_));
  MutexLock lock(&mu_);
  term_ = known.promised;
  for (const CatalogueCut& cut : cuts) {
    if (cut.slot.size() != table_.chunks() || cut.residuals_slot > 1) {
      return absl::DataLossError(absl::StrCat(NameOf(cut.border.id), ": ", table_.chunks(),
                                              " chunks expected, ", cut.slot.size(), " found"));
    }
    table_.Adopt(cut);
  }
  return absl::OkStatus();
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
      Capture(next->capture, index);
    } else {
      line.begun = std::move(next);
      Begin(line.begun.get());
    }
  }
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

void NvmeBackend::BeginParked() {
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

// ---- What all operations use.

absl::Status NvmeBackend::failure() {
  MutexLock lock(&mu_);
  return failure_;
}

void NvmeBackend::Fail(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (failure_.ok()) failure_ = status;
  BeginParked();
  AdvanceCuts();
}

void NvmeBackend::Complete(OpId op, Outcome outcome, double seconds) {
  if (outcome.ok()) {
    done_(BackendDone{op, absl::OkStatus(), std::move(*outcome), seconds});
  } else {
    done_(BackendDone{op, outcome.status(), BackendValue(), seconds});
  }
  MutexLock lock(&mu_);
  Ended();
}

void NvmeBackend::Ended() {
  --pending_;
  CompleteQuiesces();
  if (pending_ == 0) idle_.NotifyAll();
}

void NvmeBackend::CompleteQuiesces() {
  if (quiesces_.empty() || pending_ > quiesces_.size()) return;
  quiescing_ = false;
  for (const OpId op : std::exchange(quiesces_, {})) {
    executor_->Post([this, op] { Complete(op, BackendValue()); });
  }
}

}  // namespace nvme

namespace {

uint64_t NewNonce() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// Removes what an attempt to create the job left, and makes its files.
absl::Status CreateExtents(const NvmeOptions& options, Disk* disk, const ExtentLayout& layout,
                           const ExtentIdentity& identity) {
  EPS_RETURN_IF_ERROR(disk->CreateFolder(options.folder));
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk->List(options.folder));
  for (const char* const ours : extent_format::kFileNames) {
    if (std::find(names.begin(), names.end(), ours) == names.end()) continue;
    EPS_RETURN_IF_ERROR(disk->Remove(absl::StrCat(options.folder, "/", ours)));
  }
  const uint64_t wanted = 2 * layout.file_bytes();
  EPS_ASSIGN_OR_RETURN(const uint64_t free_bytes, disk->FreeBytes(options.folder));
  if (wanted > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options.folder, ": two slots of ", layout.file_bytes(), " bytes want ", wanted,
        " bytes, and ", free_bytes, " are free: ", wanted - free_bytes,
        " are missing; free them, choose another storage.path, or spread the job over more "
        "servers (servers.addresses)"));
  }
  return Extents::Create(disk, options.folder, layout, identity);
}

absl::Status CheckKnown(const CatalogueJob& known, const JobSpec& spec, ShardId shard,
                        uint32_t shards, const std::string& folder) {
  if (known.shards != shards) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": this state was made for ", known.shards, " servers, and the job has ", shards,
        " (servers.addresses); eps checkpoint reshard STATE --servers=", shards,
        " --out=NEW makes a state folder for ", shards));
  }
  if (known.shard != shard.value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, ": shard ", shard.value(), " of ", shards, " expected, shard ",
                     known.shard, " of ", known.shards,
                     " found: give each server its own storage.path, and the servers in the order "
                     "of before (servers.addresses)"));
  }
  if (known.spec_text == spec.ToText()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(folder, ": the job here has another specification: ",
                   FirstDifference(known.spec_text, spec.ToText())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateBackend>> NewNvmeBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
    uint32_t shards, Executor* executor, MemoryAccount* account, const NvmeOptions& options,
    BackendDoneFn done) {
  std::sort(owned.begin(), owned.end());
  EPS_ASSIGN_OR_RETURN(ChunkCompute compute, ChunkCompute::New(spec, account));
  const ExtentLayout layout(chunks, owned, compute.arrays(), options.residual_bytes,
                            spec.training.parts);
  ExtentIdentity identity;
  identity.job = spec.id();
  identity.digest = spec.Digest();
  identity.shard = shard.value();
  identity.shards = shards;
  auto backend =
      std::make_unique<nvme::NvmeBackend>(std::move(compute), identity.job, layout, executor,
                                          account, options.catalogue, std::move(done));
  EPS_RETURN_IF_ERROR(backend->Reserve(options.staging_bytes));
  Disk* const disk =
      options.blocking_disk_or_null != nullptr ? options.blocking_disk_or_null : options.disk;
  const absl::StatusOr<CatalogueJob> known = options.catalogue->FindJob(identity.job);
  if (known.ok()) {
    EPS_RETURN_IF_ERROR(CheckKnown(*known, spec, shard, shards, options.folder));
    identity.nonce = known->extents_nonce;
  } else if (absl::IsNotFound(known.status())) {
    identity.nonce = NewNonce();
    EPS_RETURN_IF_ERROR(CreateExtents(options, disk, layout, identity));
    CatalogueJob job;
    job.id = identity.job;
    job.spec_text = spec.ToText();
    job.shard = identity.shard;
    job.shards = shards;
    job.extents_nonce = identity.nonce;
    EPS_RETURN_IF_ERROR(options.catalogue->AddJob(job));
  } else {
    return known.status();
  }
  EPS_RETURN_IF_ERROR(Extents::CheckHeaders(disk, options.folder, layout, identity));
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<Extents> extents,
                       Extents::Open(options.disk, options.folder, layout, identity));
  EPS_RETURN_IF_ERROR(backend->Adopt(std::move(extents)));
  return std::unique_ptr<StateBackend>(std::move(backend));
}

}  // namespace eps
