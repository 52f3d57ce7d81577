#include "storage/backends/tiers/dram_tier.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"

namespace eps::durable {

DramTier::DramTier(std::unique_ptr<ChunkArena> arena, SlotFiles* files, InFlight* in_flight)
    : arena_(std::move(arena)), files_(files), in_flight_(in_flight) {
  for (size_t i = 0; i < files_->layout().areas().size(); ++i) {
    sequences_.emplace_back(in_flight_->executor(Lane::kUpdate));
  }
}

void DramTier::Run(ChunkOp* op, RunDone done) {
  sequences_[op->index].PostTo(op->lane, [this, op, done = std::move(done)] {
    const auto start = std::chrono::steady_clock::now();
    ChunkResult result{op->work(arena_->arrays(op->index)), std::nullopt, 0};
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    op->DropInputs();
    done(std::move(result));
  });
}

void DramTier::Capture(const Copy& copy, std::function<void()> copied, CopyDone done) {
  // The chunk's next update waits for the copy, and other chunks' for its buffer.
  files_->staging()->Acquire(Lane::kUpdate, [=](uint8_t* buffer) {
    sequences_[copy.index].Post([=] {
      {
        const TraceSpan span(kCopyForCutSpan, {0, files_->chunk(copy.index).id.value() + 1});
        std::memcpy(buffer, arena_->arrays(copy.index).weights, bytes(copy.index));
      }
      copied();
      // Compute checksums in a later task: the chunk may be updated meanwhile.
      in_flight_->executor(Lane::kUpdate)->Post([=] { WriteCopy(copy, buffer, done); });
    });
  });
}

void DramTier::WriteCopy(const Copy& copy, uint8_t* buffer, const CopyDone& done) {
  const absl::Status failed = in_flight_->failure();
  if (!failed.ok()) {
    files_->staging()->Release(buffer);
    return done(failed);
  }
  SlotTable::Content content;
  content.slot = copy.slot;
  content.footer = files_->extents()->Seal(copy.slot, copy.index, copy.version, copy.term, buffer);
  const auto area = absl::MakeConstSpan(buffer, files_->layout().area(copy.index).bytes());
  files_->Write(copy.slot, copy.index, 0, area, [=](const absl::Status& written) {
    files_->staging()->Release(buffer);
    if (!written.ok()) return done(written);
    done(content);
  });
}

void DramTier::Sync(uint32_t slot, SyncDone done) { files_->Sync(slot, std::move(done)); }

void DramTier::Check(uint32_t slot, uint32_t index, Extents::Part part, CheckDone done) {
  files_->Check(slot, index, part, nullptr, std::move(done));
}

void DramTier::Adopt(uint32_t index, uint32_t slot, CheckDone done) {
  const auto use = [this, index](const uint8_t* buffer) {
    std::memcpy(arena_->arrays(index).weights, buffer, bytes(index));
  };
  files_->Check(slot, index, Extents::Part::kAll, use, std::move(done));
}

}  // namespace eps::durable
