#ifndef EPS_STORAGE_TESTING_SIMULATED_DISK_H_
#define EPS_STORAGE_TESTING_SIMULATED_DISK_H_

// A disk in memory whose power can be cut, for tests and simulations that repeat exactly.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/mutex.h"
#include "storage/disk/disk.h"

namespace eps {

// Files are arrays of sectors. A sector that was written and not synced is there for readers; a
// power cut keeps it, loses it or tears it. Creating, renaming and removing is durable when the
// call returns; a cut in the middle of one leaves either state. A sync that fails has lost what it
// should have made durable: a later one that succeeds does not make up for it.
//
// Offsets, lengths and addresses that are no multiples of kDiskBlock end the process.
// Thread-safe. Outlives its files and locks; the process that used them may be gone at a cut.
class SimulatedDisk final : public Disk {
 public:
  static constexpr uint64_t kSector = 512;

  // A call as the disk sees it.
  struct Site;

  struct Options {
    // Where operations complete, one task each; borrowed. Null: on the caller's stack, before the
    // call returns, for users that only block.
    Executor* executor = nullptr;
    // Of the order in which operations under way take effect and complete; 0: as issued.
    uint64_t seed = 0;
    uint64_t capacity_bytes = uint64_t{1} << 40;  // of all files together
    // What was opened before a cut: its operations, those under way and later ones, complete with
    // an error, so that the process that is left behind can be taken apart. False: never.
    bool end_dead_operations = false;
    // Told of every call that is counted, with the disk's lock held.
    std::function<void(const Site&)> watch = nullptr;
  };
  enum class Call {
    kCreateFolder,
    kList,
    kCreateFile,
    kOpen,
    kRemove,
    kRename,
    kTakeLock,
    kFreeBytes,
    kRead,
    kWrite,
    kSync,
  };
  static constexpr int kCalls = static_cast<int>(Call::kSync) + 1;
  enum class Fault {
    kIoError,     // Internal, EIO; nothing was done
    kShortWrite,  // as kIoError, but the first half of the sectors was written
    kNoSpace,  // ENOSPC: ResourceExhausted, of reads, writes and syncs Internal; nothing was done
  };

  struct Site {
    Call call;
    std::string path;
    uint64_t offset = 0;  // of a transfer
    uint64_t bytes = 0;   // likewise
    bool fails = false;
  };

  explicit SimulatedDisk(const Options& options);
  ~SimulatedDisk() override;

  absl::Status CreateFolder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::Status CreateFile(const std::string& path, uint64_t size) override;
  absl::StatusOr<std::unique_ptr<AsyncFile>> Open(const std::string& path) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::StatusOr<std::unique_ptr<Lock>> TakeLock(const std::string& path) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override;

  // The same files for users that only block: what it opens completes on the caller's stack. Owned
  // by this disk.
  Disk* blocking();

  // The power fails now: unsynced sectors are kept, lost or torn as drawn from `seed`; of a write
  // under way any sectors may have arrived. Locks are free. What was opened before is dead:
  // operations under way never complete, blocking ones fail. Until PowerOn every call fails.
  void CutPower(uint64_t seed);
  // The same in the middle of the n-th call from now on; 1: the next.
  void CutPowerAtCall(uint64_t n, uint64_t seed);
  void PowerOn();
  bool on() const;

  // The n-th call of the kind from now on fails; 1: the next.
  void FailCall(Call call, uint64_t n, Fault fault);
  void FlipBit(const std::string& path, uint64_t offset, int bit);
  // As in a folder that was copied: the same bytes in another file. REQUIRES that it is not open.
  void ReplaceByCopy(const std::string& path);
  // As on a disk that was carried elsewhere: it is the file that had this number there.
  void SetFileNumber(const std::string& path, uint64_t number);
  void set_capacity_bytes(uint64_t bytes);

  uint64_t calls(Call call) const;
  uint64_t calls() const;  // of all kinds
  uint64_t used_bytes() const;
  // What readers see now.
  std::string Contents(const std::string& path) const;

 private:
  class File;
  class BlockingView;
  class HeldLock;
  struct Inode;
  struct Operation;
  struct PlannedFault {
    uint64_t at;  // the count at which it happens
    Fault fault;
  };

  absl::StatusOr<std::unique_ptr<AsyncFile>> OpenFor(const std::string& path, Executor* executor);
  void Submit(std::unique_ptr<Operation> operation, Executor* executor) EPS_EXCLUDES(mu_);
  void CompleteOne(uint64_t boot) EPS_EXCLUDES(mu_);
  absl::Status Carry(Operation* operation) EPS_REQUIRES(mu_);
  // Counts a call; `fault`, if it is to fail; `cut`: the power fails in the middle of it. Not OK
  // while the power is off.
  struct Entry {
    std::optional<Fault> fault;
    bool cut = false;
  };
  absl::Status Enter(Site site, Entry* entry) EPS_REQUIRES(mu_);
  // A call that blocks: counts it, carries out `change`, or fails, or cuts the power before or
  // after the change.
  template <class Change>
  absl::Status Block(Call call, const std::string& path, const Change& change) EPS_REQUIRES(mu_);
  void Cut(uint64_t seed) EPS_REQUIRES(mu_);
  uint64_t UsedBytes() const EPS_REQUIRES(mu_);
  absl::Status CheckFolderOf(const std::string& path) const EPS_REQUIRES(mu_);

  // Of a process that is gone.
  void EndDead(std::unique_ptr<Operation> operation) EPS_REQUIRES(mu_);

  Executor* const executor_;
  const bool end_dead_operations_;
  const std::function<void(const Site&)> watch_;
  const std::unique_ptr<BlockingView> blocking_;
  mutable Mutex mu_;
  const bool shuffled_;
  uint64_t draws_ EPS_GUARDED_BY(mu_);  // state of the generator
  uint64_t capacity_bytes_ EPS_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Inode>> files_ EPS_GUARDED_BY(mu_);
  std::set<std::string> folders_ EPS_GUARDED_BY(mu_);
  std::set<std::string> locks_ EPS_GUARDED_BY(mu_);
  std::deque<std::unique_ptr<Operation>> under_way_ EPS_GUARDED_BY(mu_);
  uint64_t completions_ EPS_GUARDED_BY(mu_) = 0;
  uint64_t inodes_ EPS_GUARDED_BY(mu_) = 0;
  uint64_t boot_ EPS_GUARDED_BY(mu_) = 1;  // moves with every cut
  bool on_ EPS_GUARDED_BY(mu_) = true;
  uint64_t cut_at_ EPS_GUARDED_BY(mu_) = 0;  // count of all calls; 0: no cut is planned
  uint64_t cut_seed_ EPS_GUARDED_BY(mu_) = 0;
  uint64_t all_calls_ EPS_GUARDED_BY(mu_) = 0;
  std::array<uint64_t, kCalls> calls_ EPS_GUARDED_BY(mu_) = {};
  std::array<std::vector<PlannedFault>, kCalls> faults_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_SIMULATED_DISK_H_
