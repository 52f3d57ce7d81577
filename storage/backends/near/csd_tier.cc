#include "storage/backends/near/csd_tier.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "storage/backends/gradients/gradient_area.h"
#include "storage/csd/kernels/update_kernel.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/disk.h"

namespace eps::durable {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kFp32[] = "fp32";

}  // namespace

// One update, from its begin to its end.
struct CsdTier::Running {
  ChunkOp* op = nullptr;
  RunDone done;
  const ExtentLayout::Area* area = nullptr;
  MemorySets* sets = nullptr;
  Place from;  // the chunk's areas in its slots
  Place target;
  Place set;  // device memory: the area, then the gradient
  bool has_set = false;
  csd::UpdateKernel kernel;
  UpdateResult result;
  ChunkResult outcome;  // if the update succeeds
  Clock::time_point computing;
  double seconds = 0;
  std::vector<UpdateRequest::Encode> encode;

  Device* device() const { return sets->device(); }
};

absl::StatusOr<std::unique_ptr<CsdTier>> CsdTier::New(const ChunkCompute* compute, SlotFiles* files,
                                                      InFlight* in_flight, DeviceDisk* disk,
                                                      const Extents::Folders& folders, int sets) {
  std::unique_ptr<CsdTier> tier(new CsdTier(compute, files, in_flight, disk));
  std::vector<uint64_t> bytes(folders.size(), kDiskBlock);
  for (const ExtentLayout::Area& area : files->layout().areas()) {
    bytes[area.drive] = std::max(bytes[area.drive], area.bytes() + area.gradient_bytes);
  }
  for (size_t drive = 0; drive < folders.size(); ++drive) {
    Device* const device = disk->DeviceOf(folders[drive]);
    EPS_CHECK_MSG(device != nullptr, folders[drive] << " lies in no device");
    absl::StatusOr<std::unique_ptr<MemorySets>> of_device =
        MemorySets::New(device, bytes[drive], sets, in_flight->executor(Lane::kUpdate));
    if (!of_device.ok()) {
      return absl::Status(
          of_device.status().code(),
          absl::StrCat(of_device.status().message(), "; ", sets, " sets of ", bytes[drive],
                       " bytes are needed: raise storage.csd.dram, "
                       "or lower storage.csd.sets or training.chunk_elements"));
    }
    tier->sets_.push_back(*std::move(of_device));
  }
  return tier;
}

void CsdTier::Run(ChunkOp* op, RunDone done) {
  if (op->update == nullptr) return on_host_.Run(op, std::move(done));
  auto run = std::make_shared<Running>();
  run->op = op;
  run->done = std::move(done);
  run->area = &files_->layout().area(op->index);
  run->sets = sets_[run->area->drive].get();
  in_flight_->executor(Lane::kUpdate)->Post([this, run] { FindPlaces(run); });
}

void CsdTier::FindPlaces(const Update& run) {
  const absl::Status failed = in_flight_->failure();
  if (!failed.ok()) return Finish(run, {failed, std::nullopt, 0});
  const ChunkOp& op = *run->op;
  for (auto& [place, slot] :
       {std::make_pair(&run->from, op.from.slot), std::make_pair(&run->target, op.target)}) {
    const absl::StatusOr<Place> file =
        disk_->PlaceOf(files_->extents()->path(slot, run->area->drive));
    if (!file.ok()) return Fail(run, file.status());
    *place = file->At(run->area->offset);
  }
  run->sets->Acquire([this, run](Place set) {
    run->has_set = true;
    Load(run, set);
  });
}

void CsdTier::Load(const Update& run, Place set) {
  run->set = set;
  const ExtentLayout::Area& area = *run->area;
  const AsyncFile::Done loaded = AfterAll(
      3, in_flight_->Posted(Lane::kUpdate,
                            [this, run](const absl::Status& status) { Compute(run, status); }));
  run->device()->Copy(run->from, set, area.data_bytes, Purpose::kState, loaded);
  run->device()->Copy(run->from.At(area.data_bytes), set.At(area.data_bytes), area.footer_bytes,
                      Purpose::kPadding, loaded);
  LoadGradient(run, loaded);
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
  run->device()->Copy(file->At(stored.place().offset()), run->set.At(run->area->bytes()),
                      RoundUpTo(stored.size(), kDiskBlock), Purpose::kGradient, loaded);
}

void CsdTier::SendGradient(const Update& run, uint8_t* buffer, const AsyncFile::Done& loaded) {
  const Clock::time_point start = Clock::now();
  const Chunk& chunk = *run->area->chunk;
  const uint64_t bytes = chunk.elements * sizeof(float);
  const absl::Status summed =
      compute_->Sum(chunk, *run->op->update, reinterpret_cast<float*>(buffer));
  run->seconds += std::chrono::duration<double>(Clock::now() - start).count();
  if (!summed.ok()) {
    files_->staging()->Release(buffer);
    return loaded(summed);
  }
  std::fill(buffer + bytes, buffer + RoundUpTo(bytes, kDiskBlock), uint8_t{0});
  run->kernel.gradient_codec = kFp32;
  run->kernel.gradient_bytes = bytes;
  run->kernel.gradient_crc32c = CrcOf(buffer, bytes);
  run->device()->HostWrite(absl::MakeConstSpan(buffer, RoundUpTo(bytes, kDiskBlock)),
                           run->set.At(run->area->bytes()), Purpose::kGradient,
                           [this, buffer, loaded](absl::Status status) {
                             files_->staging()->Release(buffer);
                             loaded(std::move(status));
                           });
}

void CsdTier::Compute(const Update& run, const absl::Status& loaded) {
  if (!loaded.ok()) return Fail(run, loaded);
  const ChunkOp& op = *run->op;
  csd::UpdateKernel* const kernel = &run->kernel;
  kernel->chunk = run->area->chunk->id;
  kernel->nonce = files_->extents()->nonce();
  kernel->from_slot = op.from.slot;
  kernel->from_crc32c = op.from.footer.crc32c;
  kernel->from = op.update->from;
  kernel->to_slot = op.target;
  kernel->to = op.to;
  kernel->term = op.term;
  kernel->step = op.update->step;
  kernel->norm_scale = op.update->norm_scale;
  run->encode = op.update->encode;
  run->op->DropInputs();
  run->computing = Clock::now();
  in_flight_->Begin();
  run->device()->Run(
      csd::Encode(*kernel), run->set, run->sets->bytes(),
      [this, run](absl::StatusOr<std::string> answer) {
        in_flight_->executor(Lane::kUpdate)->Post([this, run, answer = std::move(answer)] {
          Store(run, answer);
        });
        in_flight_->End();
      });
}

void CsdTier::Store(const Update& run, const absl::StatusOr<std::string>& answer) {
  run->seconds += std::chrono::duration<double>(Clock::now() - run->computing).count();
  if (absl::IsDataLoss(answer.status())) return FailDamaged(run, answer.status());
  if (!answer.ok()) return Fail(run, answer.status());
  const absl::StatusOr<csd::UpdateKernelResult> result = csd::DecodeUpdateKernelResult(*answer);
  if (!result.ok()) return Fail(run, result.status());
  run->result.sum_squares = result->sum_squares;
  run->outcome.written =
      SlotTable::Content{run->op->target, {run->kernel.to, run->kernel.term, result->crc32c}};
  const ExtentLayout::Area& area = *run->area;
  files_->MarkDirty(run->op->target, area.drive);
  const AsyncFile::Done stored = AfterAll(
      2, in_flight_->Posted(Lane::kUpdate,
                            [this, run](const absl::Status& status) { Encode(run, status); }));
  run->device()->Copy(run->set, run->target, area.data_bytes, Purpose::kState, stored);
  run->device()->Copy(run->set.At(area.data_bytes), run->target.At(area.data_bytes),
                      area.footer_bytes, Purpose::kPadding, stored);
}

// Brings the new weights up, if the update has to return them.
void CsdTier::Encode(const Update& run, const absl::Status& stored) {
  if (!stored.ok()) return Fail(run, stored);
  if (run->encode.empty()) {
    run->outcome.outcome = BackendValue(std::move(run->result));
    return Finish(run, std::move(run->outcome));
  }
  files_->staging()->Acquire(Lane::kUpdate,
                             [this, run](uint8_t* buffer) { EncodeFrom(run, buffer); });
}

void CsdTier::EncodeFrom(const Update& run, uint8_t* buffer) {
  const ExtentLayout::Area& area = *run->area;
  run->device()->HostRead(
      run->set, absl::MakeSpan(buffer, RoundUpTo(area.chunk->elements * sizeof(float), kDiskBlock)),
      Purpose::kWeights,
      in_flight_->Posted(Lane::kUpdate, [this, run, buffer](const absl::Status& status) {
        const ExtentLayout::Area& area = *run->area;
        const ChunkArrays arrays{reinterpret_cast<float*>(buffer),
                                 area.stride_bytes / sizeof(float), nullptr};
        for (const UpdateRequest::Encode& encode : run->encode) {
          if (!status.ok()) break;
          run->result.encoded.push_back(
              compute_->Read(*area.chunk, run->kernel.to, *encode.codec, encode.axis, arrays));
        }
        files_->staging()->Release(buffer);
        if (!status.ok()) return Fail(run, status);
        run->outcome.outcome = BackendValue(std::move(run->result));
        Finish(run, std::move(run->outcome));
      }));
}

void CsdTier::FailDamaged(const Update& run, const absl::Status& status) {
  files_->Check(run->kernel.from_slot, run->op->index, Extents::Part::kAll, nullptr,
                [this, run, status](const absl::StatusOr<ExtentFooter>& footer) {
                  Fail(run, footer.ok() ? status : footer.status());
                });
}

void CsdTier::Fail(const Update& run, const absl::Status& status) {
  // Bad inputs are the caller's, and leave the chunk as it was.
  if (!absl::IsInvalidArgument(status)) in_flight_->Fail(status);
  Finish(run, {status, std::nullopt, 0});
}

void CsdTier::Finish(const Update& run, ChunkResult result) {
  if (run->has_set) run->sets->Release(run->set);
  run->op->DropInputs();
  result.seconds = run->seconds;
  run->done(std::move(result));
}

}  // namespace eps::durable
