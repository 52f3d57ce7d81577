#include "worker/exec/stash/stash_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/disk.h"

namespace eps {
namespace {

// A disk that is silent for so long is broken.
constexpr std::chrono::minutes kTimeout{5};

absl::Status Failure(const std::string& folder, const char* what, int error) {
  const std::string text =
      absl::StrCat("worker.stash_path: ", what, " in ", folder, ": ", std::strerror(error));
  return error == ENOSPC ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

// Returns an open file without a name, for direct I/O if the file system has that.
absl::StatusOr<Descriptor> OpenFile(const std::string& folder) {
  std::string path = folder + "/eps-stash-XXXXXX";
  Descriptor file(mkostemp(path.data(), O_CLOEXEC));
  if (!file.ok()) return Failure(folder, "creating a file", errno);
  Descriptor direct(open(path.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT));
  unlink(path.c_str());
  return direct.ok() ? std::move(direct) : std::move(file);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StashFile>> StashFile::Create(const std::string& folder,
                                                             uint64_t item_bytes,
                                                             MemoryAccount* account_or_null) {
  EPS_ASSIGN_OR_RETURN(Descriptor file, OpenFile(folder));
  const uint64_t bytes = RoundUpTo(item_bytes, kDiskBlock);
  EPS_ASSIGN_OR_RETURN(auto memory, StateArena::New(bytes * kBuffers));
  absl::StatusOr<std::unique_ptr<IoQueue>> queue = NewUringQueue(kBuffers);
  if (!queue.ok()) queue = NewThreadQueue(kBuffers);
  return std::unique_ptr<StashFile>(new StashFile(folder, bytes, std::move(file), std::move(memory),
                                                  *std::move(queue), account_or_null));
}

StashFile::StashFile(std::string folder, uint64_t item_bytes, Descriptor file,
                     std::unique_ptr<StateArena> memory, std::unique_ptr<IoQueue> queue,
                     MemoryAccount* account_or_null)
    : folder_(std::move(folder)),
      item_bytes_(item_bytes),
      file_(std::move(file)),
      memory_(std::move(memory)),
      queue_(std::move(queue)),
      account_(account_or_null) {
  if (account_ != nullptr) account_->Charge(MemoryKind::kScratch, item_bytes * kBuffers);
  auto* const begin = reinterpret_cast<uint8_t*>(memory_->floats());
  MutexLock lock(&mu_);
  transfers_.resize(kBuffers);
  for (size_t i = 0; i < kBuffers; ++i) transfers_[i].data = begin + i * item_bytes_;
}

StashFile::~StashFile() {
  if (account_ != nullptr) account_->Release(MemoryKind::kScratch, item_bytes_ * kBuffers);
  MutexLock lock(&mu_);
  for (const Transfer& transfer : transfers_) {
    while (transfer.runs) done_.WaitFor(&mu_, std::chrono::seconds(1));
  }
}

absl::Status StashFile::Reserve(uint64_t items) {
  if (items <= reserved_) return absl::OkStatus();
  const int error = posix_fallocate(file_.get(), 0, static_cast<off_t>(items * item_bytes_));
  if (error != 0) {
    return Failure(folder_,
                   absl::StrCat("taking ", items * item_bytes_, " bytes for the stash").c_str(),
                   error);
  }
  for (uint64_t place = items; place > reserved_; --place) free_.push_back(place - 1);
  crcs_.resize(items);
  sizes_.resize(items);
  reserved_ = items;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> StashFile::Write(absl::Span<const uint8_t> bytes) {
  EPS_CHECK(bytes.size() <= item_bytes_);
  if (free_.empty()) EPS_RETURN_IF_ERROR(Reserve(reserved_ + 1));
  const uint64_t place = free_.back();
  MutexLock lock(&mu_);
  // A transfer that is under way for an earlier item of this place comes first.
  if (Transfer* const earlier = FindOrNull(place)) {
    EPS_RETURN_IF_ERROR(Await(*earlier));
    earlier->place = kNone;
  }
  EPS_ASSIGN_OR_RETURN(Transfer* const transfer, FreeTransfer());
  std::memcpy(transfer->data, bytes.data(), bytes.size());
  crcs_[place] = CrcOf(transfer->data, bytes.size());
  sizes_[place] = bytes.size();
  Start(transfer, place, /*reads=*/false);
  free_.pop_back();
  return place;
}

void StashFile::StartRead(uint64_t place) {
  MutexLock lock(&mu_);
  if (FindOrNull(place) != nullptr) return;
  for (Transfer& transfer : transfers_) {
    if (transfer.place == kNone) return Start(&transfer, place, /*reads=*/true);
  }
}

absl::Status StashFile::Read(uint64_t place, absl::Span<uint8_t> out) {
  EPS_CHECK(place < sizes_.size() && out.size() == sizes_[place]);
  MutexLock lock(&mu_);
  Transfer* transfer = FindOrNull(place);
  if (transfer == nullptr) {
    EPS_ASSIGN_OR_RETURN(transfer, FreeTransfer());
    Start(transfer, place, /*reads=*/true);
  }
  EPS_RETURN_IF_ERROR(Await(*transfer));
  const bool intact = CrcOf(transfer->data, out.size()) == crcs_[place];
  if (intact) std::memcpy(out.data(), transfer->data, out.size());
  transfer->place = kNone;
  if (intact) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("worker.stash_path: the file in ", folder_, " gave ",
                                          out.size(), " other bytes than were written at offset ",
                                          place * item_bytes_));
}

void StashFile::GiveBack(uint64_t place) { free_.push_back(place); }

absl::StatusOr<StashFile::Transfer*> StashFile::FreeTransfer() {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  for (;;) {
    if (!status_.ok()) return status_;
    // The place that was written first is read last. Bytes that were read ahead go only if no write
    // is done; they are then read again.
    const auto goes_before = [](const Transfer& a, const Transfer& b) {
      return std::make_pair(a.reads, a.place) < std::make_pair(b.reads, b.place);
    };
    Transfer* free = nullptr;
    for (Transfer& transfer : transfers_) {
      if (transfer.place == kNone) return &transfer;
      if (transfer.runs) continue;
      if (free == nullptr || goes_before(transfer, *free)) free = &transfer;
    }
    if (free != nullptr) return free;
    if (!done_.WaitUntil(&mu_, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("worker.stash_path: the disk of ", folder_, " is silent for five minutes"));
    }
  }
}

void StashFile::Start(Transfer* transfer, uint64_t place, bool reads) {
  transfer->place = place;
  transfer->reads = reads;
  transfer->runs = true;
  auto request = std::make_unique<IoRequest>();
  request->kind = reads ? IoRequest::Kind::kRead : IoRequest::Kind::kWrite;
  request->fd = file_.get();
  request->path = folder_ + "/eps-stash";
  request->offset = place * item_bytes_;
  request->data = transfer->data;
  request->size = item_bytes_;
  request->done = [this, transfer](absl::Status status) {
    MutexLock lock(&mu_);
    transfer->runs = false;
    if (status_.ok()) status_ = std::move(status);
    done_.NotifyAll();
  };
  queue_->Start(std::move(request));
}

absl::Status StashFile::Await(const Transfer& transfer) {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (transfer.runs) {
    if (!done_.WaitUntil(&mu_, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("worker.stash_path: the disk of ", folder_, " is silent for five minutes"));
    }
  }
  return status_;
}

StashFile::Transfer* StashFile::FindOrNull(uint64_t place) {
  for (Transfer& transfer : transfers_) {
    if (transfer.place == place) return &transfer;
  }
  return nullptr;
}

}  // namespace eps
