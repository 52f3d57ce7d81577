#include "storage/backends/near/csd_tier.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/backends/gradients/gradient_area.h"
#include "storage/csd/kernels/kernel_records.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/disk.h"

namespace eps::durable {
namespace {

using Clock = std::chrono::steady_clock;

// Checks that the result of measuring the chunk fits into the answer of a device.
absl::Status CheckMeasurable(const ChunkCompute& compute, const Chunk& chunk) {
  const size_t segments = chunk.segments.size();
  if (!compute.adapts() || segments <= csd::kMaxMeasuredSegments) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("storage.kind=csd: chunk ", chunk.id.value(), " holds ", segments,
                   " tensors, and a device measures at most ", csd::kMaxMeasuredSegments,
                   " of one chunk for the optimizer; lower training.chunk_elements"));
}

}  // namespace

// One update or measurement, from its begin to its end.
struct CsdTier::Running {
  ChunkOp* op = nullptr;
  RunDone done;
  ChunkInSet in;  // with the gradient after it
  Place from;     // the chunk's areas in its slots
  Place target;
  bool has_set = false;
  MemorySets::Gates before;  // of the chunk that was in the set; may be null
  MemorySets::Gates gates;   // of this chunk, if the next one takes over its buffers
  csd::UpdateKernel kernel;
  UpdateResult result;
  ChunkResult outcome;  // if the update succeeds
  Clock::time_point computing;
  double seconds = 0;
  std::vector<UpdateRequest::Encode> encode;
  // Keeps its place until the kernel has read it.
  std::shared_ptr<const ReducedGradient> gradient;

  const ExtentLayout::Area& area() const { return *in.area; }
  Device* device() const { return in.device(); }
  bool measures() const { return op->measure != nullptr; }
  const UpdateRequest& request() const { return measures() ? *op->measure : *op->update; }
};

// A part of a chunk's area that is moved by itself.
struct CsdTier::Buffer {
  uint64_t begin;
  uint64_t bytes;
  Purpose purpose;
};

std::vector<CsdTier::Buffer> CsdTier::BuffersOf(const ExtentLayout::Area& area) const {
  std::vector<Buffer> buffers;
  const bool by_array = use_.hands_buffers_over && area.stride_bytes % kDiskBlock == 0;
  const uint64_t step = by_array ? area.stride_bytes : area.data_bytes;
  for (uint64_t at = 0; at < area.data_bytes; at += step) {
    buffers.push_back({at, step, Purpose::kState});
  }
  buffers.push_back({area.data_bytes, area.footer_bytes, Purpose::kPadding});
  return buffers;
}

absl::StatusOr<std::unique_ptr<CsdTier>> CsdTier::New(const ChunkCompute* compute, SlotFiles* files,
                                                      InFlight* in_flight, DeviceDisk* disk,
                                                      const Extents::Folders& folders,
                                                      DeviceUse use) {
  std::unique_ptr<CsdTier> tier(new CsdTier(compute, files, in_flight, disk, use));
  std::vector<Device*> devices;
  for (const std::string& folder : folders) devices.push_back(disk->DeviceOf(folder));
  std::vector<uint64_t> bytes(folders.size(), kDiskBlock);
  for (const ExtentLayout::Area& area : files->layout().areas()) {
    if (devices[area.drive] == nullptr) continue;
    bytes[area.drive] = std::max(bytes[area.drive], area.bytes() + DeviceReads::RoomAfter(area));
    EPS_RETURN_IF_ERROR(CheckMeasurable(*compute, *area.chunk));
  }
  tier->sets_.resize(folders.size());
  for (uint32_t drive = 0; drive < folders.size(); ++drive) {
    if (devices[drive] == nullptr) continue;
    EPS_RETURN_IF_ERROR(tier->Prepare(devices[drive], drive, folders[drive], bytes[drive]));
  }
  return tier;
}

absl::Status CsdTier::Prepare(Device* device, uint32_t drive, const std::string& folder,
                              uint64_t bytes) {
  absl::StatusOr<std::unique_ptr<MemorySets>> sets =
      MemorySets::New(device, bytes, use_.sets, in_flight_);
  if (!sets.ok()) {
    return absl::Status(sets.status().code(),
                        absl::StrCat(sets.status().message(), "; ", use_.sets, " sets of ", bytes,
                                     " bytes are needed: raise storage.csd.dram, "
                                     "or lower storage.csd.sets or training.chunk_elements"));
  }
  sets_[drive] = *std::move(sets);
  if (!device->info().has_codecs) {
    EPS_LOG_INFO("storage: device " << device->info().name
                                    << " has no codecs: gradients and weights cross its link in "
                                       "FP32, and the server encodes weights");
    on_host_.StoreDecoded(drive);
  }
  const uint64_t gradients = files_->layout().gradient_file_bytes(drive);
  if (!use_.gradients_in_memory || gradients == 0) return absl::OkStatus();
  const absl::Status there = disk_->CreateInMemory(GradientArea::PathIn(folder), gradients);
  if (!absl::IsResourceExhausted(there)) return there;
  EPS_LOG_INFO("storage: gradients wait on the medium (storage.csd.dram): " << there.message());
  return absl::OkStatus();
}

void CsdTier::Run(ChunkOp* op, RunDone done) {
  MemorySets* const sets = SetsOf(op->index);
  if (sets == nullptr) return on_host_.Run(op, std::move(done));
  if (reads_.CanFetch(*op, *sets)) return reads_.Fetch(op, sets, std::move(done));
  if (op->update == nullptr && op->measure == nullptr) return on_host_.Run(op, std::move(done));
  auto run = std::make_shared<Running>();
  run->op = op;
  run->done = std::move(done);
  run->in.area = &files_->layout().area(op->index);
  run->in.sets = sets;
  in_flight_->executor(Lane::kUpdate)->Post([this, run] { FindPlaces(run); });
}

void CsdTier::Check(uint32_t slot, uint32_t index, Extents::Part part, CheckDone done) {
  MemorySets* const sets = SetsOf(index);
  if (sets == nullptr || part != Extents::Part::kAll) {
    return on_host_.Check(slot, index, part, std::move(done));
  }
  reads_.Check(slot, index, sets, std::move(done));
}

void CsdTier::FindPlaces(const Update& run) {
  const absl::Status failed = in_flight_->failure();
  if (!failed.ok()) return Finish(run, {failed, std::nullopt, 0});
  const ChunkOp& op = *run->op;
  for (auto& [place, slot] :
       {std::make_pair(&run->from, op.from.slot), std::make_pair(&run->target, op.target)}) {
    const absl::StatusOr<Place> found = reads_.PlaceOf(slot, op.index);
    if (!found.ok()) return Fail(run, found.status());
    *place = *found;
  }
  run->in.sets->AcquireEarly(
      Lane::kUpdate,
      [this, run](Place set, const MemorySets::Gates& before) { TakeSet(run, set, before); });
}

void CsdTier::TakeSet(const Update& run, Place set, const MemorySets::Gates& before) {
  run->has_set = true;
  run->in.set = set;
  if (before == nullptr) return Load(run);
  if (before->array_bytes() == run->area().stride_bytes) {
    run->before = before;
    return Load(run);
  }
  // The buffers of a chunk of another size lie elsewhere.
  before->WhenAll([this, run] { Load(run); });
}

void CsdTier::Load(const Update& run) {
  const Place set = run->in.set;
  run->kernel.gradient_at = set.At(run->area().bytes()).offset;
  const std::vector<Buffer> buffers = BuffersOf(run->area());
  const size_t room = buffers.size();
  if (use_.hands_buffers_over && !run->measures()) {
    run->gates = std::make_shared<BufferGates>(room + 1, run->area().stride_bytes);
  }
  const AsyncFile::Done loaded =
      AfterAll(room + 1, in_flight_->Posted(Lane::kUpdate, [this, run](const absl::Status& status) {
        Compute(run, status);
      }));
  for (size_t i = 0; i < room; ++i) {
    WhenFree(run, i, [run, set, loaded, buffer = buffers[i]] {
      run->device()->Copy(run->from.At(buffer.begin), set.At(buffer.begin), buffer.bytes,
                          buffer.purpose, loaded);
    });
  }
  WhenFree(run, room, [this, run, loaded] { LoadGradient(run, loaded); });
}

void CsdTier::WhenFree(const Update& run, size_t buffer, std::function<void()> then) {
  if (run->before == nullptr) return then();
  run->before->When(buffer, std::move(then));
}

void CsdTier::LoadGradient(const Update& run, const AsyncFile::Done& loaded) {
  const ChunkOp& op = *run->op;
  if (op.gradient == nullptr || op.gradient->in_memory()) {
    files_->staging()->Acquire(
        Lane::kUpdate, [this, run, loaded](uint8_t* buffer) { SendGradient(run, buffer, loaded); });
    return;
  }
  // Only the tier on the host makes gradients that are not in memory, on the chunk's device.
  const auto& stored = static_cast<const StoredGradient&>(*op.gradient);
  run->kernel.gradient_codec = std::string(stored.codec()->name());
  run->kernel.gradient_bytes = stored.size();
  run->kernel.gradient_crc32c = stored.crc32c();
  const absl::StatusOr<Place> file = disk_->PlaceOf(stored.place().path());
  if (!file.ok()) return loaded(file.status());
  if (file->where == Place::Where::kDram) {
    run->kernel.gradient_at = file->At(stored.place().offset()).offset;
    return loaded(absl::OkStatus());
  }
  run->device()->Copy(file->At(stored.place().offset()), run->in.set.At(run->area().bytes()),
                      RoundUpTo(stored.size(), kDiskBlock), Purpose::kGradient, loaded);
}

void CsdTier::SendGradient(const Update& run, uint8_t* buffer, const AsyncFile::Done& loaded) {
  const Clock::time_point start = Clock::now();
  const Chunk& chunk = *run->area().chunk;
  const absl::StatusOr<ChunkCompute::Gathered> gathered =
      compute_->Gather(chunk, run->request(), /*decodes=*/!run->device()->info().has_codecs,
                       absl::MakeSpan(buffer, chunk.elements * sizeof(float)));
  run->seconds += std::chrono::duration<double>(Clock::now() - start).count();
  if (!gathered.ok()) {
    files_->staging()->Release(buffer);
    return loaded(gathered.status());
  }
  const uint64_t bytes = gathered->bytes;
  std::fill(buffer + bytes, buffer + RoundUpTo(bytes, kDiskBlock), uint8_t{0});
  run->kernel.gradient_codec = std::string(gathered->codec->name());
  run->kernel.gradient_bytes = bytes;
  run->kernel.gradient_crc32c = CrcOf(buffer, bytes);
  run->device()->HostWrite(absl::MakeConstSpan(buffer, RoundUpTo(bytes, kDiskBlock)),
                           run->in.set.At(run->area().bytes()), Purpose::kGradient,
                           [this, buffer, loaded](absl::Status status) {
                             files_->staging()->Release(buffer);
                             loaded(std::move(status));
                           });
}

void CsdTier::Compute(const Update& run, const absl::Status& loaded) {
  if (!loaded.ok()) return Fail(run, loaded);
  const ChunkOp& op = *run->op;
  csd::UpdateKernel* const kernel = &run->kernel;
  run->in.chunk = {run->in.set.offset, run->area().chunk->id, files_->extents()->nonce(),
                   op.from.slot};
  kernel->from = run->in.chunk;
  kernel->from_crc32c = op.from.footer.crc32c;
  const UpdateRequest& request = run->request();
  kernel->from_version = request.from;
  kernel->to_slot = op.target;
  kernel->to = request.to;
  kernel->term = op.term;
  kernel->step = request.step;
  kernel->trust_ratios = request.trust_ratios;
  kernel->norm_scale = request.norm_scale;
  run->encode = request.encode;
  run->gradient = op.gradient;
  const bool measures = run->measures();
  run->op->DropInputs();
  run->computing = Clock::now();
  if (measures) {
    return reads_.Run(
        run->in, csd::MeasureKernel{*kernel}, Lane::kUpdate,
        [this, run](const absl::StatusOr<std::string>& answer) { EndMeasurement(run, answer); });
  }
  reads_.Run(run->in, *kernel, Lane::kUpdate,
             [this, run](const absl::StatusOr<std::string>& answer) { Store(run, answer); });
}

void CsdTier::EndMeasurement(const Update& run, const absl::StatusOr<std::string>& answer) {
  run->seconds += std::chrono::duration<double>(Clock::now() - run->computing).count();
  run->gradient = nullptr;
  if (absl::IsDataLoss(answer.status())) {
    return reads_.NameDamage(run->kernel.from.slot, run->op->index, answer.status(),
                             [this, run](const absl::Status& status) { Fail(run, status); });
  }
  if (!answer.ok()) return Fail(run, answer.status());
  absl::StatusOr<MeasureResult> result = csd::DecodeMeasureKernelResult(*answer);
  const size_t segments = run->area().chunk->segments.size();
  if (result.ok() && result->segments.size() != segments) {
    result = absl::DataLossError(absl::StrCat("chunk ", run->area().chunk->id.value(),
                                              ": norms of ", segments, " segments expected, ",
                                              result->segments.size(), " found"));
  }
  if (!result.ok()) return Fail(run, result.status());
  Finish(run, {BackendValue(*std::move(result)), std::nullopt, 0});
}

void CsdTier::Store(const Update& run, const absl::StatusOr<std::string>& answer) {
  run->seconds += std::chrono::duration<double>(Clock::now() - run->computing).count();
  run->gradient = nullptr;  // the kernel has read it
  if (absl::IsDataLoss(answer.status())) {
    return reads_.NameDamage(run->kernel.from.slot, run->op->index, answer.status(),
                             [this, run](const absl::Status& status) { Fail(run, status); });
  }
  if (!answer.ok()) return Fail(run, answer.status());
  const absl::StatusOr<csd::UpdateKernelResult> result = csd::DecodeUpdateKernelResult(*answer);
  if (!result.ok()) return Fail(run, result.status());
  run->result.sum_squares = result->sum_squares;
  run->outcome.written =
      SlotTable::Content{run->op->target, {run->kernel.to, run->kernel.term, result->crc32c}};
  files_->MarkDirty(run->op->target, run->area().drive);
  const size_t buffers = BuffersOf(run->area()).size();
  if (run->gates != nullptr) {
    run->has_set = false;
    run->in.sets->Release(run->in.set, run->gates);
  }
  if (use_.reads_weights_back) run->in.weights_back = run->target;
  const AsyncFile::Done ended = AfterAll(
      buffers + 1, in_flight_->Posted(Lane::kUpdate, [this, run](const absl::Status& status) {
        End(run, status);
      }));
  // The buffers that are written before the weights come up.
  const size_t first = run->gates != nullptr ? 1 : use_.reads_weights_back ? buffers : 0;
  const auto rest = [this, run, first, buffers, ended] {
    StoreBuffers(run, first, buffers, ended, nullptr);
    BringUp(run, ended);
  };
  if (first == 0) return rest();
  StoreBuffers(run, 0, first, ended, AfterAll(first, [rest](const absl::Status&) { rest(); }));
}

void CsdTier::StoreBuffers(const Update& run, size_t begin, size_t end, const AsyncFile::Done& each,
                           const AsyncFile::Done& all_or_null) {
  const std::vector<Buffer> buffers = BuffersOf(run->area());
  for (size_t i = begin; i < end; ++i) {
    const Buffer& buffer = buffers[i];
    run->device()->Copy(run->in.set.At(buffer.begin), run->target.At(buffer.begin), buffer.bytes,
                        buffer.purpose, [run, i, each, all_or_null](const absl::Status& status) {
                          // The first has weights, which have yet to come up.
                          if (run->gates != nullptr && i > 0) run->gates->Free(i);
                          if (all_or_null != nullptr) all_or_null(status);
                          each(status);
                        });
  }
}

// Brings the new weights up, if the update has to return them.
void CsdTier::BringUp(const Update& run, const AsyncFile::Done& ended) {
  reads_.Encode(run->in, run->kernel.to, std::move(run->encode),
                [run, ended](absl::StatusOr<std::vector<Bytes>> encoded, double seconds) {
                  run->seconds += seconds;
                  const absl::Status status = encoded.status();
                  if (status.ok()) run->result.encoded = *std::move(encoded);
                  if (run->gates != nullptr) run->gates->FreeWeights();
                  ended(status);
                });
}

void CsdTier::End(const Update& run, const absl::Status& status) {
  if (!status.ok()) return Fail(run, status);
  run->outcome.outcome = BackendValue(std::move(run->result));
  Finish(run, std::move(run->outcome));
}

void CsdTier::Fail(const Update& run, const absl::Status& status) {
  // Bad inputs are the caller's, and leave the chunk as it was.
  if (!absl::IsInvalidArgument(status)) in_flight_->Fail(status);
  Finish(run, {status, std::nullopt, 0});
}

void CsdTier::Finish(const Update& run, ChunkResult result) {
  if (run->has_set) run->in.sets->Release(run->in.set);
  run->op->DropInputs();
  result.seconds = run->seconds;
  run->done(std::move(result));
}

}  // namespace eps::durable
