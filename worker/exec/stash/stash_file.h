#ifndef EPS_WORKER_EXEC_STASH_STASH_FILE_H_
#define EPS_WORKER_EXEC_STASH_STASH_FILE_H_

// A file for the part of a stash that finds no room in memory. Writes and reads run while the
// worker computes.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/descriptor.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "storage/disk/io_queue.h"
#include "storage/disk/state_arena.h"

namespace eps {

// Items of one size, each in a place of its own. The file has no name, so that nothing is left of
// it however the process ends. Errors name the folder and worker.stash_path. Use it from one
// thread.
class StashFile {
 public:
  // The most transfers at a time; each has a buffer.
  static constexpr size_t kBuffers = 4;

  // Creates a file in `folder` for items of up to `item_bytes`. Charges its buffers to
  // `account_or_null`.
  static absl::StatusOr<std::unique_ptr<StashFile>> Create(const std::string& folder,
                                                           uint64_t item_bytes,
                                                           MemoryAccount* account_or_null);
  // Waits for its transfers.
  ~StashFile();
  StashFile(const StashFile&) = delete;
  StashFile& operator=(const StashFile&) = delete;

  uint64_t item_bytes() const { return item_bytes_; }
  // Takes room on the disk for `items` in all. ResourceExhausted if the disk has too little.
  absl::Status Reserve(uint64_t items);

  // Copies the bytes and starts to write them. Returns their place, to be given back.
  absl::StatusOr<uint64_t> Write(absl::Span<const uint8_t> bytes);
  // Starts to read a place, if a buffer is free.
  void StartRead(uint64_t place);
  // Reads a place, and checks that its bytes are those that were written (CRC32C): else DataLoss.
  absl::Status Read(uint64_t place, absl::Span<uint8_t> out);
  void GiveBack(uint64_t place);

 private:
  static constexpr uint64_t kNone = UINT64_MAX;
  // A buffer, and the place whose bytes it holds once its transfer is done.
  struct Transfer {
    uint8_t* data = nullptr;
    uint64_t place = kNone;
    bool reads = false;
    bool runs = false;
  };

  StashFile(std::string folder, uint64_t item_bytes, Descriptor file,
            std::unique_ptr<StateArena> memory, std::unique_ptr<IoQueue> queue,
            MemoryAccount* account_or_null);
  // Waits for a buffer that no transfer uses. Prefers one that holds nothing.
  absl::StatusOr<Transfer*> FreeTransfer() EPS_REQUIRES(mu_);
  void Start(Transfer* transfer, uint64_t place, bool reads) EPS_REQUIRES(mu_);
  // Waits until it is done; returns the first error of any transfer.
  absl::Status Await(const Transfer& transfer) EPS_REQUIRES(mu_);
  Transfer* FindOrNull(uint64_t place) EPS_REQUIRES(mu_);

  const std::string folder_;
  const uint64_t item_bytes_;  // in whole blocks
  const Descriptor file_;
  const std::unique_ptr<StateArena> memory_;
  const std::unique_ptr<IoQueue> queue_;
  MemoryAccount* const account_;  // may be null
  uint64_t reserved_ = 0;         // items that the file has room for
  std::vector<uint64_t> free_;    // places that were given back
  std::vector<uint32_t> crcs_;    // by place
  std::vector<uint64_t> sizes_;   // by place
  Mutex mu_;
  CondVar done_;
  std::vector<Transfer> transfers_ EPS_GUARDED_BY(mu_);
  absl::Status status_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_STASH_STASH_FILE_H_
