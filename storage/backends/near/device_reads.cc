#include "storage/backends/near/device_reads.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/disk.h"

namespace eps::durable {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

// The encodings of one chunk's weights, one after the other.
struct DeviceReads::Encoding {
  ChunkInSet in;
  bool check = false;  // whether the weights come from a slot
  uint32_t from_crc32c = 0;
  Version version;
  Lane lane = Lane::kUpdate;
  std::vector<UpdateRequest::Encode> encode;
  EncodedDone done;
  std::vector<Bytes> encoded;
  Clock::time_point begun;  // of the encoding in progress
  double seconds = 0;

  const Chunk& chunk() const { return *in.area->chunk; }
  void End(absl::StatusOr<std::vector<Bytes>> outcome) { done(std::move(outcome), seconds); }
  void Count() { seconds += std::chrono::duration<double>(Clock::now() - begun).count(); }
};

uint64_t DeviceReads::RoomAfter(const ExtentLayout::Area& area) {
  // No wire codec of weights takes more than FP32 and a block of heads; see CanFetch.
  return RoundUpTo(area.chunk->elements * sizeof(float), kDiskBlock) + kDiskBlock;
}

absl::StatusOr<Place> DeviceReads::PlaceOf(uint32_t slot, uint32_t index) const {
  const ExtentLayout::Area& area = files_->layout().area(index);
  EPS_ASSIGN_OR_RETURN(const Place file, disk_->PlaceOf(files_->extents()->path(slot, area.drive)));
  return file.At(area.offset);
}

void DeviceReads::Run(const ChunkInSet& in, const csd::Kernel& kernel, Lane lane,
                      Device::KernelDone done) {
  in_flight_->Begin();
  in.device()->Run(
      csd::Encode(kernel), kAllMemory, in.device()->info().dram_bytes,
      [this, lane, done = std::move(done)](absl::StatusOr<std::string> answer) {
        in_flight_->executor(lane)->Post([done, answer = std::move(answer)] { done(answer); });
        in_flight_->End();
      });
}

void DeviceReads::NameDamage(uint32_t slot, uint32_t index, const absl::Status& status,
                             std::function<void(absl::Status)> done) {
  files_->Check(slot, index, Extents::Part::kAll, nullptr,
                [status, done = std::move(done)](const absl::StatusOr<ExtentFooter>& footer) {
                  done(footer.ok() ? status : footer.status());
                });
}

void DeviceReads::Check(uint32_t slot, uint32_t index, MemorySets* sets, Tier::CheckDone done) {
  const absl::StatusOr<Place> from = PlaceOf(slot, index);
  if (!from.ok()) return done(from.status());
  ChunkInSet in;
  in.area = &files_->layout().area(index);
  in.sets = sets;
  in.chunk = {0, in.area->chunk->id, files_->extents()->nonce(), slot};
  const auto end = [this, sets, slot, index, done = std::move(done)](
                       Place set, const absl::StatusOr<ExtentFooter>& footer) {
    sets->Release(set);
    if (!absl::IsDataLoss(footer.status())) return done(footer);
    NameDamage(slot, index, footer.status(), done);
  };
  in_flight_->Begin();  // until the set is there
  sets->Acquire(Lane::kBackground, [this, in, from = *from, end](Place set) mutable {
    in.set = set;
    in.chunk.at = set.offset;
    in.device()->Copy(
        from, set, in.area->bytes(), Purpose::kCheck,
        in_flight_->Posted(Lane::kBackground, [this, in, end](const absl::Status& copied) {
          if (!copied.ok()) return end(in.set, copied);
          Run(in, csd::CheckKernel{in.chunk}, Lane::kBackground,
              [in, end](const absl::StatusOr<std::string>& answer) {
                if (!answer.ok()) return end(in.set, answer.status());
                end(in.set, csd::DecodeCheckKernelResult(*answer));
              });
        }));
    in_flight_->End();
  });
}

bool DeviceReads::CanFetch(const ChunkOp& op, const MemorySets& sets) const {
  if (!Encodes(*sets.device()) || op.read == nullptr) return false;
  const ExtentLayout::Area& area = files_->layout().area(op.index);
  return op.read->codec->MaxEncodedSize(*area.chunk, op.read->axis) <= RoomAfter(area);
}

void DeviceReads::Fetch(ChunkOp* op, MemorySets* sets, Tier::RunDone done) {
  auto encoding = std::make_shared<Encoding>();
  encoding->in.area = &files_->layout().area(op->index);
  encoding->in.sets = sets;
  encoding->in.chunk = {0, encoding->in.area->chunk->id, files_->extents()->nonce(), op->from.slot};
  encoding->check = true;
  encoding->from_crc32c = op->from.footer.crc32c;
  encoding->version = op->read->version;
  encoding->lane = op->lane;
  encoding->encode = {{op->read->codec, op->read->axis}};
  const auto finish = [this, op, done = std::move(done)](absl::StatusOr<BackendValue> outcome,
                                                         double seconds) {
    if (!outcome.ok()) in_flight_->Fail(outcome.status());
    op->DropInputs();
    done({std::move(outcome), std::nullopt, seconds});
  };
  encoding->done = [this, op, sets, encoding = encoding.get(), finish](
                       absl::StatusOr<std::vector<Bytes>> encoded, double seconds) {
    sets->Release(encoding->in.set);
    if (encoded.ok()) return finish(BackendValue(std::move(encoded->front())), seconds);
    if (!absl::IsDataLoss(encoded.status())) return finish(encoded.status(), seconds);
    NameDamage(op->from.slot, op->index, encoded.status(),
               [finish](const absl::Status& status) { finish(status, 0); });
  };
  sets->Acquire(op->lane, [this, op, encoding, finish](Place set) {
    encoding->in.set = set;
    encoding->in.chunk.at = set.offset;
    absl::Status status = in_flight_->failure();
    const absl::StatusOr<Place> from = PlaceOf(op->from.slot, op->index);
    if (status.ok()) status = from.status();
    if (!status.ok()) {
      encoding->in.sets->Release(set);
      return finish(status, 0);
    }
    const ExtentLayout::Area& area = *encoding->in.area;
    const AsyncFile::Done loaded =
        AfterAll(2, in_flight_->Posted(op->lane, [this, encoding](const absl::Status& copied) {
          if (!copied.ok()) return encoding->End(copied);
          EncodeNext(encoding);
        }));
    Device* const device = encoding->in.device();
    device->Copy(*from, set, RoundUpTo(area.stride_bytes, kDiskBlock), Purpose::kWeights, loaded);
    device->Copy(from->At(area.data_bytes), set.At(area.data_bytes), area.footer_bytes,
                 Purpose::kPadding, loaded);
  });
}

void DeviceReads::Encode(const ChunkInSet& in, Version version,
                         std::vector<UpdateRequest::Encode> encode, EncodedDone done) {
  auto encoding = std::make_shared<Encoding>();
  encoding->in = in;
  encoding->version = version;
  bool fits = Encodes(*in.device());
  for (const UpdateRequest::Encode& each : encode) {
    fits = fits && each.codec->MaxEncodedSize(*in.area->chunk, each.axis) <= RoomAfter(*in.area);
  }
  encoding->encode = std::move(encode);
  encoding->done = std::move(done);
  if (fits || encoding->encode.empty()) return EncodeNext(encoding);
  EncodeOnHost(encoding);
}

void DeviceReads::EncodeNext(const std::shared_ptr<Encoding>& encoding) {
  if (encoding->encoded.size() == encoding->encode.size()) {
    return encoding->End(std::move(encoding->encoded));
  }
  const UpdateRequest::Encode& next = encoding->encode[encoding->encoded.size()];
  csd::EncodeKernel kernel;
  kernel.from = encoding->in.chunk;
  kernel.check = encoding->check;
  kernel.from_crc32c = encoding->from_crc32c;
  kernel.version = encoding->version;
  kernel.codec = std::string(next.codec->name());
  kernel.axis = next.axis;
  kernel.to_at = encoding->in.set.At(encoding->in.area->bytes()).offset;
  kernel.to_bytes = RoomAfter(*encoding->in.area);
  encoding->begun = Clock::now();
  Run(encoding->in, kernel, encoding->lane,
      [this, encoding](const absl::StatusOr<std::string>& answer) { BringUp(encoding, answer); });
}

void DeviceReads::BringUp(const std::shared_ptr<Encoding>& encoding,
                          const absl::StatusOr<std::string>& answer) {
  encoding->Count();
  if (!answer.ok()) return encoding->End(answer.status());
  const absl::StatusOr<csd::EncodeKernelResult> result = csd::DecodeEncodeKernelResult(*answer);
  if (!result.ok()) return encoding->End(result.status());
  if (result->bytes == 0 || result->bytes > RoomAfter(*encoding->in.area)) {
    return encoding->End(absl::InternalError(
        absl::StrCat("device ", encoding->in.device()->info().name, ": ", result->bytes,
                     " bytes of encoded weights of chunk ", encoding->chunk().id.value(),
                     "; expected at most ", RoomAfter(*encoding->in.area))));
  }
  files_->staging()->Acquire(encoding->lane, [this, encoding, result = *result](uint8_t* buffer) {
    const absl::Span<uint8_t> into(buffer, RoundUpTo(result.bytes, kDiskBlock));
    const auto arrived = [this, encoding, result, buffer](absl::Status status) {
      if (status.ok() && CrcOf(buffer, result.bytes) != result.crc32c) {
        status = absl::InternalError(absl::StrCat(
            "device ", encoding->in.device()->info().name, ": the encoded weights of chunk ",
            encoding->chunk().id.value(), " changed on their way to the host"));
      }
      if (status.ok()) {
        encoding->encoded.push_back(
            compute_->CopyEncoded(absl::MakeConstSpan(buffer, result.bytes)));
      }
      files_->staging()->Release(buffer);
      if (!status.ok()) return encoding->End(status);
      EncodeNext(encoding);
    };
    encoding->in.device()->HostRead(encoding->in.set.At(encoding->in.area->bytes()), into,
                                    Purpose::kWeights, in_flight_->Posted(encoding->lane, arrived));
  });
}

void DeviceReads::EncodeOnHost(const std::shared_ptr<Encoding>& encoding) {
  files_->staging()->Acquire(encoding->lane, [this, encoding](uint8_t* buffer) {
    const uint64_t bytes = encoding->chunk().elements * sizeof(float);
    encoding->in.device()->HostRead(
        encoding->in.weights_back.value_or(encoding->in.set),
        absl::MakeSpan(buffer, RoundUpTo(bytes, kDiskBlock)), Purpose::kWeights,
        in_flight_->Posted(encoding->lane, [this, encoding, buffer](const absl::Status& status) {
          const ChunkArrays arrays{reinterpret_cast<float*>(buffer),
                                   encoding->in.area->stride_bytes / sizeof(float), nullptr};
          encoding->begun = Clock::now();
          for (const UpdateRequest::Encode& each : encoding->encode) {
            if (!status.ok()) break;
            encoding->encoded.push_back(compute_->Read(encoding->chunk(), encoding->version,
                                                       *each.codec, each.axis, arrays));
          }
          encoding->Count();
          files_->staging()->Release(buffer);
          if (!status.ok()) return encoding->End(status);
          encoding->End(std::move(encoding->encoded));
        }));
  });
}

}  // namespace eps::durable
