#ifndef EPS_STORAGE_TESTING_SIMULATED_DISK_H_
#define EPS_STORAGE_TESTING_SIMULATED_DISK_H_

// A disk in memory whose power can be cut, for tests and simulations that repeat exactly.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/mutex.h"
#include "storage/disk/disk.h"
#include "storage/testing/simulated_calls.h"
#include "storage/testing/simulated_inode.h"

namespace eps {

// Files are arrays of sectors. Readers see a sector that was written and not synced; a power cut
// keeps it, loses it or tears it. Renaming and removing are durable when the call returns; a cut in
// the middle of one leaves either state. CreateFile makes three calls of its kind, because a real
// disk creates, fills and syncs: a cut in any of them leaves no file, an empty one, a part or the
// whole. A failed sync loses what it should have made durable, even if a later sync succeeds.
//
// Offsets, lengths and addresses that are no multiples of kDiskBlock end the process.
// Thread-safe. Must outlive its files and locks. The process that used them may end before a cut.
class SimulatedDisk final : public Disk {
 public:
  using Call = DiskCall;
  using Fault = DiskFault;
  using Site = DiskCallSite;
  static constexpr int kCalls = kDiskCalls;
  static constexpr uint64_t kSector = SimulatedInode::kSector;

  // Settings of a disk.
  struct Options {
    // Runs the completions of operations, one task each; borrowed. Null: they run on the caller's
    // stack, before the call returns, for users that only block.
    Executor* executor = nullptr;
    // Determines the order in which operations in flight take effect and complete; 0 keeps the
    // order of calls.
    uint64_t seed = 0;
    uint64_t capacity_bytes = uint64_t{1} << 40;  // of all files together
    // Whether operations on what was opened before a cut complete with an error, so that the
    // abandoned process can be destroyed. If false, they never complete.
    bool end_dead_operations = false;
    // Called for every counted call, with the disk's lock held.
    std::function<void(const Site&)> watch = nullptr;
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

  // A view of the same files for users that only block: it completes on the caller's stack. Owned
  // by this disk.
  Disk* blocking();

  // Cuts the power now. `seed` decides which unsynced sectors are kept, lost or torn; any sectors
  // of a write in flight may have arrived. Releases all locks. Everything that was opened before is
  // dead: operations in flight never complete, blocking ones fail. Every call fails until PowerOn.
  void CutPower(uint64_t seed);
  // The same in the middle of the n-th call from now on; 1 is the next.
  void CutPowerAtCall(uint64_t n, uint64_t seed);
  void PowerOn();
  bool on() const;

  // Fails the n-th call of the kind from now on; 1 is the next.
  void FailCall(Call call, uint64_t n, Fault fault);
  void FlipBit(const std::string& path, uint64_t offset, int bit);
  // Moves the bytes to another file, as copying a folder does. REQUIRES that the file is not open.
  void ReplaceByCopy(const std::string& path);
  // Sets the file's number, as if the disk had been moved from elsewhere.
  void SetFileNumber(const std::string& path, uint64_t number);
  void set_capacity_bytes(uint64_t bytes);

  uint64_t calls(Call call) const;
  uint64_t calls() const;  // of all kinds
  uint64_t used_bytes() const;
  // Returns what readers see now.
  std::string Contents(const std::string& path) const;

 private:
  class File;
  class BlockingView;
  class HeldLock;
  struct Operation;  // a transfer or a sync in flight

  absl::StatusOr<std::unique_ptr<AsyncFile>> OpenFor(const std::string& path, Executor* executor);
  void Submit(std::unique_ptr<Operation> operation, Executor* executor) EPS_EXCLUDES(mu_);
  void CompleteOne(uint64_t boot) EPS_EXCLUDES(mu_);
  absl::Status Carry(Operation* operation) EPS_REQUIRES(mu_);
  // Counts a call and sets what happens to it. Returns an error while the power is off.
  absl::Status Enter(const Site& site, PlannedCalls::Entry* entry) EPS_REQUIRES(mu_);
  // Runs a blocking call: counts it, then carries out `change`, or fails, or cuts the power before
  // or after the change.
  template <class Change>
  absl::Status Block(Call call, const std::string& path, const Change& change) EPS_REQUIRES(mu_);
  // One of the three calls of CreateFile: the file grows to `size`.
  absl::Status Grow(const std::string& path, uint64_t size) EPS_REQUIRES(mu_);
  void Cut(uint64_t seed) EPS_REQUIRES(mu_);
  uint64_t UsedBytes() const EPS_REQUIRES(mu_);
  absl::Status CheckFolderOf(const std::string& path) const EPS_REQUIRES(mu_);
  absl::Status RenameFolder(const std::string& from, const std::string& to) EPS_REQUIRES(mu_);

  // Completes an operation of a process that a power cut ended, if the options ask for it.
  void EndDead(std::unique_ptr<Operation> operation) EPS_REQUIRES(mu_);

  Executor* const executor_;
  const bool end_dead_operations_;
  const std::unique_ptr<BlockingView> blocking_;
  mutable Mutex mu_;
  const bool shuffled_;
  uint64_t draws_ EPS_GUARDED_BY(mu_);  // state of the generator
  uint64_t capacity_bytes_ EPS_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<SimulatedInode>> files_ EPS_GUARDED_BY(mu_);
  std::set<std::string> folders_ EPS_GUARDED_BY(mu_);
  std::set<std::string> locks_ EPS_GUARDED_BY(mu_);
  std::deque<std::unique_ptr<Operation>> under_way_ EPS_GUARDED_BY(mu_);
  uint64_t completions_ EPS_GUARDED_BY(mu_) = 0;
  uint64_t inodes_ EPS_GUARDED_BY(mu_) = 0;
  uint64_t boot_ EPS_GUARDED_BY(mu_) = 1;  // increases with every cut
  bool on_ EPS_GUARDED_BY(mu_) = true;
  PlannedCalls plan_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_SIMULATED_DISK_H_
