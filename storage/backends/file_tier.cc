#include "storage/backends/file_tier.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace eps::durable {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

// The end of a staging buffer.
class FileTier::Room final : public GradientRoom {
 public:
  // With a place for a reduction, without one for an update.
  Room(absl::Span<uint8_t> memory, std::unique_ptr<GradientPlace> place_or_null,
       bool takes_codecs = true)
      : memory_(memory), place_or_null_(std::move(place_or_null)), takes_codecs_(takes_codecs) {}

  // Null unless a gradient was left here.
  const std::shared_ptr<const StoredGradient>& stored() const { return stored_; }

  absl::Span<uint8_t> memory() override { return memory_; }
  bool takes_codecs() const override { return takes_codecs_; }
  std::shared_ptr<const ReducedGradient> Keep(const Codec* codec, size_t size) override {
    stored_ =
        std::make_shared<const StoredGradient>(std::move(place_or_null_), codec, memory_, size);
    return stored_;
  }

 private:
  const absl::Span<uint8_t> memory_;
  std::unique_ptr<GradientPlace> place_or_null_;
  const bool takes_codecs_;
  std::shared_ptr<const StoredGradient> stored_;
};

struct FileTier::Running {
  ChunkOp* op = nullptr;
  RunDone done;
  uint8_t* buffer = nullptr;   // null if the operation needs none
  std::unique_ptr<Room> room;  // null unless a gradient passes through the buffer
  double seconds = 0;
  SlotTable::Content written;  // if the operation writes
};

void FileTier::Run(ChunkOp* op, RunDone done) {
  auto run = std::make_shared<Running>();
  run->op = op;
  run->done = std::move(done);
  const bool stores = op->reduces && gradients_ != nullptr;
  if (op->reads.has_value() || op->writes || stores) {
    files_->staging()->Acquire(op->lane, [this, run](uint8_t* buffer) { Load(run, buffer); });
  } else {
    in_flight_->executor(op->lane)->Post([this, run] { Compute(run); });
  }
}

void FileTier::Load(const std::shared_ptr<Running>& run, uint8_t* buffer) {
  run->buffer = buffer;
  const absl::Status failed = in_flight_->failure();
  if (!failed.ok()) return Finish(run, {failed, std::nullopt, 0});
  const ChunkOp& op = *run->op;
  if (op.reduces) {
    std::unique_ptr<GradientPlace> place = gradients_->Take(op.index);
    if (place != nullptr) {
      const bool takes_codecs = decoding_drives_.count(place->drive()) == 0;
      run->room = std::make_unique<Room>(GradientIn(buffer), std::move(place), takes_codecs);
    }
  }
  if (!op.reads.has_value()) return Compute(run);
  AsyncFile::Done loaded = in_flight_->Posted(
      op.lane, [this, run](absl::Status status) { CheckLoaded(run, std::move(status)); });
  if (op.gradient != nullptr && !op.gradient->in_memory()) {
    run->room = std::make_unique<Room>(GradientIn(buffer), nullptr);
    loaded = AfterAll(2, std::move(loaded));
    // Only this tier makes gradients that are not in memory.
    gradients_->Read(static_cast<const StoredGradient&>(*op.gradient), run->room->memory().data(),
                     loaded);
  }
  files_->extents()->Read(op.from.slot, op.index, *op.reads, buffer, std::move(loaded));
}

absl::Span<uint8_t> FileTier::GradientIn(uint8_t* buffer) const {
  const uint64_t area_bytes = std::max<uint64_t>(files_->layout().largest_area_bytes(), kDiskBlock);
  return absl::MakeSpan(buffer + area_bytes, files_->staging()->buffer_bytes() - area_bytes);
}

void FileTier::CheckLoaded(const std::shared_ptr<Running>& run, absl::Status status) {
  const Clock::time_point start = Clock::now();
  const ChunkOp& op = *run->op;
  if (status.ok()) {
    const absl::StatusOr<ExtentFooter> footer =
        files_->extents()->Check(op.from.slot, op.index, *op.reads, run->buffer);
    status = footer.status();
    if (footer.ok() && footer->crc32c != op.from.footer.crc32c) {
      status = files_->extents()->Damaged(
          op.from.slot, op.index,
          absl::StrCat("version ", op.from.footer.version.value(),
                       " as written last expected, version ", footer->version.value(), " found"));
    }
  }
  run->seconds += SecondsSince(start);
  if (!status.ok()) {
    in_flight_->Fail(status);
    return Finish(run, {std::move(status), std::nullopt, 0});
  }
  Compute(run);
}

void FileTier::Compute(const std::shared_ptr<Running>& run) {
  ChunkOp* const op = run->op;
  const uint64_t in_place = files_->extents()->BytesInPlace(op->index, op->state);
  if (in_place > 0) return WriteInPlace(run, in_place);
  const Clock::time_point start = Clock::now();
  const ChunkArrays arrays{reinterpret_cast<float*>(run->buffer),
                           files_->layout().area(op->index).stride_bytes / sizeof(float),
                           run->room.get()};
  ChunkResult result{op->work(arrays), std::nullopt, 0};
  op->DropInputs();
  if (op->writes && result.outcome.ok()) {
    run->written.slot = op->target;
    run->written.footer =
        files_->extents()->Seal(op->target, op->index, op->to, op->term, run->buffer);
    result.written = run->written;
  }
  run->seconds += SecondsSince(start);
  // A stored gradient is damaged.
  if (absl::IsDataLoss(result.outcome.status())) in_flight_->Fail(result.outcome.status());
  if (run->room != nullptr && run->room->stored() != nullptr) {
    return WriteGradient(run, std::move(result));
  }
  if (!result.written.has_value()) return Finish(run, std::move(result));
  const uint64_t bytes = files_->layout().area(op->index).bytes();
  files_->Write(op->target, op->index, 0, absl::MakeConstSpan(run->buffer, bytes),
                [this, run, result = std::move(result)](const absl::Status& status) {
                  if (status.ok()) return Finish(run, result);
                  Finish(run, {status, std::nullopt, 0});
                });
}

// The area is torn until both transfers have ended, as it may be during one transfer. Checksums
// wait for a later task, so that the disk has the states of other chunks first.
void FileTier::WriteInPlace(const std::shared_ptr<Running>& run, uint64_t in_place) {
  const ChunkOp& op = *run->op;
  const AsyncFile::Done one = AfterAll(2, [this, run](const absl::Status& status) {
    if (status.ok()) return Finish(run, {BackendValue(), run->written, 0});
    Finish(run, {status, std::nullopt, 0});
  });
  files_->Write(op.target, op.index, 0, absl::MakeConstSpan(op.state.data(), in_place), one);
  in_flight_->executor(Lane::kUpdate)->Post([this, run, in_place, one] {
    WriteRest(run, in_place, one);
  });
}

void FileTier::WriteRest(const std::shared_ptr<Running>& run, uint64_t in_place,
                         const AsyncFile::Done& done) {
  const Clock::time_point start = Clock::now();
  const ChunkOp& op = *run->op;
  run->written.slot = op.target;
  run->written.footer =
      files_->extents()->SealRest(op.target, op.index, op.to, op.term, op.state, run->buffer);
  run->seconds += SecondsSince(start);
  const uint64_t rest = files_->layout().area(op.index).bytes() - in_place;
  files_->Write(op.target, op.index, in_place, absl::MakeConstSpan(run->buffer + in_place, rest),
                done);
}

void FileTier::WriteGradient(const std::shared_ptr<Running>& run, ChunkResult result) {
  gradients_->Write(*run->room->stored(), run->room->memory().data(),
                    in_flight_->Posted(Lane::kUpdate, [this, run, result = std::move(result)](
                                                          const absl::Status& status) {
                      if (status.ok()) return Finish(run, result);
                      in_flight_->Fail(status);
                      Finish(run, {status, std::nullopt, 0});
                    }));
}

void FileTier::Finish(const std::shared_ptr<Running>& run, ChunkResult result) {
  run->room.reset();
  if (run->buffer != nullptr) files_->staging()->Release(run->buffer);
  run->op->DropInputs();
  result.seconds = run->seconds;
  run->done(std::move(result));
}

void FileTier::Capture(const Copy&, std::function<void()>, CopyDone) {
  EPS_CHECK_MSG(false, "a tier in slots is captured by its slot");
}

void FileTier::Sync(uint32_t slot, SyncDone done) { files_->Sync(slot, std::move(done)); }

void FileTier::Check(uint32_t slot, uint32_t index, Extents::Part part, CheckDone done) {
  files_->Check(slot, index, part, nullptr, std::move(done));
}

void FileTier::Adopt(uint32_t index, uint32_t slot, CheckDone done) {
  files_->Check(slot, index, Extents::Part::kAll, nullptr, std::move(done));
}

}  // namespace eps::durable
