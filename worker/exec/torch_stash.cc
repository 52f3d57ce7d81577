#include "worker/exec/torch_stash.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "c10/core/CachingDeviceAllocator.h"
#include "worker/exec/stash/stash_tensors.h"
#include "worker/exec/torch_guard.h"
#include "worker/exec/torch_host_stage.h"

namespace eps {
namespace {

using at::Tensor;

uint64_t HostLimit(const RuntimeOptions& options) {
  return options.stash_host == 0 ? MemoryAccount::kNoLimit : options.stash_host;
}

// Returns nine tenths of the free memory of a device; 0 if it does not say how much is free.
uint64_t MostOfFree(c10::Device device) {
  uint64_t free = 0;
  static_cast<void>(CatchTorch("asking the device for its free memory", [&] {
    free = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first;
  }));
  return free / 10 * 9;
}

// Returns the bytes that a device has for activations that wait; a CPU only if it is told to.
uint64_t DeviceRoom(const JobSpec& spec, const RuntimeOptions& options, c10::Device device) {
  uint64_t all = options.device_memory;
  if (all == 0 && !device.is_cpu()) all = MostOfFree(device);
  return all - std::min(all, DeviceBytesWithoutStash(spec, LargestStage(spec)));
}

StashRooms RoomsOf(const RuntimeOptions& options, bool is_cpu, uint64_t device_room) {
  StashRooms rooms;
  if (options.stash == "device") {
    rooms.device = MemoryAccount::kNoLimit;
    return rooms;
  }
  rooms.host = HostLimit(options);
  rooms.file = !options.stash_path.empty();
  if (options.stash == "auto" && !is_cpu) rooms.device = device_room;
  return rooms;
}

}  // namespace

TorchStash::TorchStash(const JobSpec& spec, const StashCodec& codec, const RuntimeOptions& options,
                       at::ScalarType type, c10::Device device, DeviceCopies* copies_or_null,
                       MemoryAccount* account_or_null)
    : codec_(codec),
      sizes_(StashSizesOf(spec, codec)),
      type_(type),
      path_(options.stash_path),
      copies_(copies_or_null),
      account_(account_or_null),
      device_room_(DeviceRoom(spec, options, device)),
      host_room_(HostLimit(options)),
      tiers_(RoomsOf(options, device.is_cpu(), device_room_)) {}

absl::Status TorchStash::Begin(uint64_t inputs, uint64_t gradients) {
  const uint64_t more = sizes_.gradient - std::min(sizes_.gradient, sizes_.input);
  EPS_RETURN_IF_ERROR(tiers_.Begin(inputs * sizes_.input + gradients * more));
  EPS_RETURN_IF_ERROR(ReserveHost());
  if (tiers_.in_file() == 0) return absl::OkStatus();
  if (filed_ == nullptr) {
    EPS_ASSIGN_OR_RETURN(
        auto file, StashFile::Create(path_, std::max(sizes_.input, sizes_.gradient), account_));
    EPS_LOG_INFO("stash: " << tiers_.in_file() << " bytes of a step wait in a file in " << path_);
    filed_ = std::make_unique<FiledStash>(std::move(file), copies_);
  }
  return filed_->file().Reserve(tiers_.in_file() / sizes_.input + 1);
}

absl::Status TorchStash::ReserveHost() {
  if (copies_ == nullptr) return absl::OkStatus();
  const uint64_t item = std::max(sizes_.input, sizes_.gradient);
  uint64_t items = (tiers_.on_host() + item - 1) / item;
  if (tiers_.in_file() > 0) items += FiledStash::kBuffers;
  return CatchTorch(
      "reserving host memory for the stash", [&] { copies_->stash_memory().Reserve(items, item); },
      kPinnedMemoryKeys);
}

absl::StatusOr<ActivationPtr> TorchStash::Stash(ActivationPtr activation) {
  const auto& from = static_cast<const TorchActivation&>(*activation);
  const bool encoded = from.encoded().defined();
  const uint64_t bytes = encoded ? from.encoded().nbytes() : from.tensor.nbytes();
  switch (tiers_.Next(bytes)) {
    case StashTier::kDevice:
      if (!encoded) return activation;
      return ActivationPtr(std::make_shared<TorchActivation>(Tensor(), from.encoded()));
    case StashTier::kHost: {
      // A gradient finds no room in the place of an input that is in the file.
      absl::StatusOr<ActivationPtr> stashed = StashOnHost(from);
      const bool is_full = absl::IsResourceExhausted(stashed.status()) && filed_ != nullptr;
      if (!is_full || bytes > filed_->file().item_bytes()) return stashed;
      break;
    }
    case StashTier::kFile:
      if (bytes > filed_->file().item_bytes()) return StashOnHost(from);
      break;
  }
  return StashInFile(from);
}

absl::StatusOr<ActivationPtr> TorchStash::StashOnHost(const TorchActivation& from) {
  const bool encoded = from.encoded().defined();
  const Tensor tensor = encoded ? from.encoded() : from.tensor;
  EPS_ASSIGN_OR_RETURN(StashCharge charge, ChargeHost(tensor.nbytes()));
  if (encoded) from.DropEncoded();
  std::shared_ptr<StashedActivation> stashed;
  EPS_RETURN_IF_ERROR(CatchTorch(
      "stashing an activation",
      [&] {
        stashed = copies_ == nullptr  // a CPU keeps the tensor where it is
                      ? std::make_shared<StashedActivation>(tensor, encoded, std::move(charge))
                      : std::make_shared<StashedActivation>(copies_->CopyToStash(tensor), encoded,
                                                            std::move(charge));
      },
      kPinnedMemoryKeys));
  if (!encoded) from.ShareWith(stashed->off_device);
  return ActivationPtr(std::move(stashed));
}

absl::StatusOr<ActivationPtr> TorchStash::StashInFile(const TorchActivation& from) {
  const bool encoded = from.encoded().defined();
  absl::StatusOr<ActivationPtr> stashed;
  EPS_RETURN_IF_ERROR(CatchTorch(
      "stashing an activation in a file",
      [&] { stashed = filed_->Stash(encoded ? from.encoded() : from.tensor, encoded); },
      kPinnedMemoryKeys));
  if (encoded) from.DropEncoded();
  return stashed;
}

absl::StatusOr<ActivationPtr> TorchStash::Unstash(const ActivationPtr& stashed) {
  std::shared_ptr<TorchActivation> activation;
  absl::Status status;
  const absl::Status thrown = CatchTorch(
      "fetching an activation from the stash",
      [&] {
        if (const auto* const on_host = dynamic_cast<const StashedActivation*>(stashed.get())) {
          const Tensor tensor = copies_ == nullptr
                                    ? on_host->tensor
                                    : copies_->CopyFromStash({on_host->tensor, on_host->copied});
          activation = std::make_shared<TorchActivation>(Decoded(tensor, on_host->encoded));
          if (!on_host->encoded) activation->ShareWith(on_host->off_device);
        } else if (const auto* const filed = dynamic_cast<const FiledActivation*>(stashed.get())) {
          const absl::StatusOr<Tensor> tensor = filed_->Unstash(*filed);
          status = tensor.status();
          if (!status.ok()) return;
          activation = std::make_shared<TorchActivation>(Decoded(*tensor, filed->encoded));
        } else {
          const auto& on_device = static_cast<const TorchActivation&>(*stashed);
          if (on_device.tensor.defined()) return;
          activation = std::make_shared<TorchActivation>(Decoded(on_device.encoded(), true));
        }
      },
      kPinnedMemoryKeys);
  EPS_RETURN_IF_ERROR(thrown);
  EPS_RETURN_IF_ERROR(status);
  return activation == nullptr ? stashed : ActivationPtr(std::move(activation));
}

void TorchStash::WillUnstash(const ActivationPtr& stashed) {
  const auto* const filed = dynamic_cast<const FiledActivation*>(stashed.get());
  if (filed != nullptr) filed_->StartRead(*filed);
}

absl::StatusOr<StashCharge> TorchStash::ChargeHost(uint64_t bytes) {
  for (MemoryAccount* const account : {&host_room_, account_}) {
    if (account == nullptr) continue;
    const absl::Status room = account->TryCharge(MemoryKind::kStash, bytes);
    if (room.ok()) continue;
    if (account != &host_room_) host_room_.Release(MemoryKind::kStash, bytes);
    return absl::Status(
        room.code(),
        absl::StrCat("stashing an activation in host memory: ", room.message(),
                     "; raise worker.stash_host, choose a worker.stash_codec of fewer bytes, or "
                     "lower training.micro_batches or micro_batch_size"));
  }
  return StashCharge{std::make_unique<Charge>(&host_room_, MemoryKind::kStash, bytes),
                     std::make_unique<Charge>(account_, MemoryKind::kStash, bytes)};
}

Tensor TorchStash::Decoded(const Tensor& stashed, bool is_encoded) const {
  if (!is_encoded) return stashed;
  Tensor out = at::empty(stashed.sizes(), stashed.options().dtype(at::kFloat));
  DecodeFromStash(codec_, stashed, out);
  return out.to(type_);
}

}  // namespace eps
