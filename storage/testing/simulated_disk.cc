#include "storage/testing/simulated_disk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace eps {
namespace {

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status PowerIsOff() { return absl::InternalError("simulated disk: the power is off"); }

}  // namespace

struct SimulatedDisk::Operation {
  std::string Where() const {
    return absl::StrCat(path, " at ", offset, ", ", kind == Call::kRead ? into.size() : from.size(),
                        " bytes");
  }

  Site site() const {
    return Site{kind, path, offset, kind == Call::kRead ? into.size() : from.size()};
  }

  Call kind;
  std::shared_ptr<SimulatedInode> inode;
  std::string path;
  uint64_t boot = 0;  // of the file
  uint64_t offset = 0;
  absl::Span<uint8_t> into;
  std::vector<uint8_t> from;  // a copy: the process may have ended when the power fails
  AsyncFile::Done done;
  std::optional<Fault> fault;
  uint64_t completed_before = 0;  // for a sync: the writes that it covers
};

class SimulatedDisk::File final : public AsyncFile {
 public:
  File(SimulatedDisk* disk, Executor* executor, std::shared_ptr<SimulatedInode> inode,
       std::string path, uint64_t boot)
      : disk_(disk),
        executor_(executor),
        inode_(std::move(inode)),
        path_(std::move(path)),
        size_(inode_->now.size()),
        boot_(boot) {}

  void Read(uint64_t offset, absl::Span<uint8_t> into, Done done) override {
    CheckAligned(offset, into.data(), into.size());
    auto operation = New(Call::kRead, offset, std::move(done));
    operation->into = into;
    disk_->Submit(std::move(operation), executor_);
  }
  void Write(uint64_t offset, absl::Span<const uint8_t> from, Done done) override {
    CheckAligned(offset, from.data(), from.size());
    auto operation = New(Call::kWrite, offset, std::move(done));
    operation->from.assign(from.begin(), from.end());
    disk_->Submit(std::move(operation), executor_);
  }
  void Sync(Done done) override { disk_->Submit(New(Call::kSync, 0, std::move(done)), executor_); }
  const std::string& path() const override { return path_; }
  uint64_t size() const override { return size_; }
  FileIdentity identity() const override { return {inode_->number, 0}; }

 private:
  static void CheckAligned(uint64_t offset, const void* address, size_t bytes) {
    EPS_CHECK_MSG(offset % kDiskBlock == 0 && bytes % kDiskBlock == 0 &&
                      reinterpret_cast<uintptr_t>(address) % kDiskBlock == 0,
                  "offset " << offset << ", " << bytes << " bytes at " << address);
  }
  std::unique_ptr<Operation> New(Call kind, uint64_t offset, Done done) const {
    auto operation = std::make_unique<Operation>();
    operation->kind = kind;
    operation->inode = inode_;
    operation->path = path_;
    operation->boot = boot_;
    operation->offset = offset;
    operation->done = std::move(done);
    return operation;
  }

  SimulatedDisk* const disk_;
  Executor* const executor_;  // null: completes on the caller's stack
  const std::shared_ptr<SimulatedInode> inode_;
  const std::string path_;
  const uint64_t size_;
  const uint64_t boot_;
};

class SimulatedDisk::HeldLock final : public Lock {
 public:
  HeldLock(SimulatedDisk* disk, std::string path, uint64_t boot)
      : disk_(disk), path_(std::move(path)), boot_(boot) {}
  ~HeldLock() override {
    MutexLock lock(&disk_->mu_);
    if (disk_->boot_ == boot_) disk_->locks_.erase(path_);
  }

 private:
  SimulatedDisk* const disk_;
  const std::string path_;
  const uint64_t boot_;
};

class SimulatedDisk::BlockingView final : public Disk {
 public:
  explicit BlockingView(SimulatedDisk* disk) : disk_(disk) {}

  absl::Status CreateFolder(const std::string& path) override { return disk_->CreateFolder(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return disk_->List(path);
  }
  absl::Status CreateFile(const std::string& path, uint64_t size) override {
    return disk_->CreateFile(path, size);
  }
  absl::StatusOr<std::unique_ptr<AsyncFile>> Open(const std::string& path) override {
    return disk_->OpenFor(path, nullptr);
  }
  absl::Status Remove(const std::string& path) override { return disk_->Remove(path); }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return disk_->Rename(from, to);
  }
  absl::StatusOr<std::unique_ptr<Lock>> TakeLock(const std::string& path) override {
    return disk_->TakeLock(path);
  }
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    return disk_->FreeBytes(path);
  }

 private:
  SimulatedDisk* const disk_;
};

SimulatedDisk::SimulatedDisk(const Options& options)
    : executor_(options.executor),
      end_dead_operations_(options.end_dead_operations),
      blocking_(std::make_unique<BlockingView>(this)),
      shuffled_(options.seed != 0),
      draws_(options.seed),
      capacity_bytes_(options.capacity_bytes),
      folders_{"/", "."},
      plan_(options.watch) {}

SimulatedDisk::~SimulatedDisk() = default;

Disk* SimulatedDisk::blocking() { return blocking_.get(); }

absl::Status SimulatedDisk::Enter(const Site& site, PlannedCalls::Entry* entry) {
  if (!on_) return PowerIsOff();
  *entry = plan_.Enter(site);
  return absl::OkStatus();
}

template <class Change>
absl::Status SimulatedDisk::Block(Call call, const std::string& path, const Change& change) {
  PlannedCalls::Entry entry;
  EPS_RETURN_IF_ERROR(Enter(Site{call, path}, &entry));
  if (entry.fault) return FaultStatus(call, *entry.fault, path);
  if (!entry.cut) return change();
  uint64_t draws = plan_.cut_seed();
  if (NextDraw(&draws) % 2 == 0) change().IgnoreError();
  Cut(plan_.cut_seed());
  return PowerIsOff();
}

absl::Status SimulatedDisk::CheckFolderOf(const std::string& path) const {
  if (folders_.count(FolderOf(path)) != 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(path, ": there is no folder ", FolderOf(path)));
}

absl::Status SimulatedDisk::CreateFolder(const std::string& path) {
  MutexLock lock(&mu_);
  return Block(Call::kCreateFolder, path, [&]() EPS_REQUIRES(mu_) {
    for (std::string folder = path; folders_.insert(folder).second; folder = FolderOf(folder)) {
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<std::string>> SimulatedDisk::List(const std::string& path) {
  std::vector<std::string> names;
  MutexLock lock(&mu_);
  EPS_RETURN_IF_ERROR(Block(Call::kList, path, [&]() EPS_REQUIRES(mu_) {
    if (folders_.count(path) == 0) return absl::NotFoundError(absl::StrCat("no folder ", path));
    const auto add = [&](const std::string& entry) {
      if (entry == path || FolderOf(entry) != path) return;
      names.push_back(entry.substr(entry.rfind('/') + 1));
    };
    for (const auto& file : files_) add(file.first);
    for (const std::string& folder : folders_) {
      if (folder != "." && folder != "/") add(folder);
    }
    std::sort(names.begin(), names.end());
    return absl::OkStatus();
  }));
  return names;
}

absl::Status SimulatedDisk::CreateFile(const std::string& path, uint64_t size) {
  MutexLock lock(&mu_);
  if (on_) {
    EPS_RETURN_IF_ERROR(CheckFolderOf(path));
    if (files_.count(path) != 0) return absl::AlreadyExistsError(absl::StrCat(path, " exists"));
  }
  EPS_RETURN_IF_ERROR(Grow(path, 0));
  EPS_RETURN_IF_ERROR(Grow(path, size));
  return Grow(path, size);  // the sync
}

absl::Status SimulatedDisk::Grow(const std::string& path, uint64_t size) {
  PlannedCalls::Entry entry;
  EPS_RETURN_IF_ERROR(Enter(Site{Call::kCreateFile, path}, &entry));
  std::shared_ptr<SimulatedInode>& inode = files_[path];
  if (inode == nullptr) {
    inode = std::make_shared<SimulatedInode>();
    inode->number = ++inodes_;
  }
  const uint64_t others = UsedBytes() - inode->now.size();
  const uint64_t free = others < capacity_bytes_ ? capacity_bytes_ - others : 0;
  if (entry.fault || size > free) {
    files_.erase(path);
    if (entry.fault) return FaultStatus(Call::kCreateFile, *entry.fault, path);
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": ", size - free, " bytes are missing on the simulated disk"));
  }
  uint64_t sectors = (size + kSector - 1) / kSector;
  uint64_t draws = plan_.cut_seed();
  const uint64_t left = entry.cut ? NextDraw(&draws) % 4 : 3;  // nothing, no bytes, a part, all
  if (left < 3) sectors = left == 2 ? NextDraw(&draws) % (sectors + 1) : 0;
  inode->now.resize(sectors * kSector);
  inode->durable = inode->now;
  if (!entry.cut) return absl::OkStatus();
  if (left == 0) files_.erase(path);
  Cut(plan_.cut_seed());
  return PowerIsOff();
}

absl::StatusOr<std::unique_ptr<AsyncFile>> SimulatedDisk::Open(const std::string& path) {
  return OpenFor(path, executor_);
}

absl::StatusOr<std::unique_ptr<AsyncFile>> SimulatedDisk::OpenFor(const std::string& path,
                                                                  Executor* executor) {
  std::unique_ptr<AsyncFile> file;
  MutexLock lock(&mu_);
  EPS_RETURN_IF_ERROR(Block(Call::kOpen, path, [&]() EPS_REQUIRES(mu_) {
    const auto it = files_.find(path);
    if (it == files_.end()) return absl::NotFoundError(absl::StrCat("no file ", path));
    file = std::make_unique<File>(this, executor, it->second, path, boot_);
    return absl::OkStatus();
  }));
  return file;
}

absl::Status SimulatedDisk::Remove(const std::string& path) {
  MutexLock lock(&mu_);
  return Block(Call::kRemove, path, [&]() EPS_REQUIRES(mu_) {
    if (files_.erase(path) != 0) return absl::OkStatus();
    if (folders_.count(path) == 0) return absl::NotFoundError(absl::StrCat("no file ", path));
    const std::string below = absl::StrCat(path, "/");
    const auto file = files_.lower_bound(below);
    const auto folder = folders_.lower_bound(below);
    if ((file != files_.end() && absl::StartsWith(file->first, below)) ||
        (folder != folders_.end() && absl::StartsWith(*folder, below))) {
      return absl::InternalError(absl::StrCat(path, ": remove: the folder is not empty"));
    }
    folders_.erase(path);
    return absl::OkStatus();
  });
}

absl::Status SimulatedDisk::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(&mu_);
  return Block(Call::kRename, from, [&]() EPS_REQUIRES(mu_) {
    EPS_RETURN_IF_ERROR(CheckFolderOf(to));
    const auto it = files_.find(from);
    if (it == files_.end()) return RenameFolder(from, to);
    std::shared_ptr<SimulatedInode> inode = std::move(it->second);
    files_.erase(it);
    files_[to] = std::move(inode);
    return absl::OkStatus();
  });
}

absl::Status SimulatedDisk::RenameFolder(const std::string& from, const std::string& to) {
  if (folders_.count(from) == 0) return absl::NotFoundError(absl::StrCat("no file ", from));
  if (folders_.count(to) != 0 || files_.count(to) != 0) {
    return absl::AlreadyExistsError(absl::StrCat(from, ": rename: ", to, " exists"));
  }
  const std::string below = absl::StrCat(from, "/");
  const auto moved = [&](const std::string& path) { return to + path.substr(from.size()); };
  std::vector<std::string> folders = {from};
  for (const std::string& folder : folders_) {
    if (absl::StartsWith(folder, below)) folders.push_back(folder);
  }
  for (const std::string& folder : folders) {
    folders_.erase(folder);
    folders_.insert(moved(folder));
  }
  std::vector<std::string> files;
  for (const auto& file : files_) {
    if (absl::StartsWith(file.first, below)) files.push_back(file.first);
  }
  for (const std::string& file : files) {
    std::shared_ptr<SimulatedInode> inode = std::move(files_[file]);
    files_.erase(file);
    files_[moved(file)] = std::move(inode);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Disk::Lock>> SimulatedDisk::TakeLock(const std::string& path) {
  uint64_t boot = 0;
  {
    MutexLock lock(&mu_);
    EPS_RETURN_IF_ERROR(Block(Call::kTakeLock, path, [&]() EPS_REQUIRES(mu_) {
      EPS_RETURN_IF_ERROR(CheckFolderOf(path));
      if (!locks_.insert(path).second) {
        return absl::FailedPreconditionError(absl::StrCat(path, " is held already"));
      }
      if (files_.count(path) == 0) files_[path] = std::make_shared<SimulatedInode>();
      return absl::OkStatus();
    }));
    boot = boot_;
  }
  return std::make_unique<HeldLock>(this, path, boot);
}

absl::StatusOr<uint64_t> SimulatedDisk::FreeBytes(const std::string& path) {
  uint64_t free = 0;
  MutexLock lock(&mu_);
  EPS_RETURN_IF_ERROR(Block(Call::kFreeBytes, path, [&]() EPS_REQUIRES(mu_) {
    const uint64_t used = UsedBytes();
    if (used < capacity_bytes_) free = capacity_bytes_ - used;
    return absl::OkStatus();
  }));
  return free;
}

void SimulatedDisk::Submit(std::unique_ptr<Operation> operation, Executor* executor) {
  AsyncFile::Done done;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    PlannedCalls::Entry entry;
    status = operation->boot == boot_ ? Enter(operation->site(), &entry) : PowerIsOff();
    if (!status.ok() && executor != nullptr) return EndDead(std::move(operation));
    operation->fault = entry.fault;
    operation->completed_before = completions_;
    if (executor != nullptr || entry.cut) {
      if (executor == nullptr) done = std::move(operation->done);
      under_way_.push_back(std::move(operation));
      if (entry.cut) {
        Cut(plan_.cut_seed());
        status = PowerIsOff();
      } else {
        executor->Post([this, boot = boot_] { CompleteOne(boot); });
      }
    } else {
      done = std::move(operation->done);
      if (status.ok()) status = Carry(operation.get());
    }
  }
  if (executor == nullptr) done(std::move(status));
}

void SimulatedDisk::EndDead(std::unique_ptr<Operation> operation) {
  if (!end_dead_operations_ || operation->done == nullptr) return;
  executor_->Post([done = std::move(operation->done)] { done(PowerIsOff()); });
}

void SimulatedDisk::CompleteOne(uint64_t boot) {
  std::unique_ptr<Operation> operation;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    if (boot != boot_) return;
    const size_t pick = shuffled_ ? NextDraw(&draws_) % under_way_.size() : 0;
    operation = std::move(under_way_[pick]);
    under_way_.erase(under_way_.begin() + static_cast<ptrdiff_t>(pick));
    status = Carry(operation.get());
  }
  operation->done(std::move(status));
}

absl::Status SimulatedDisk::Carry(Operation* operation) {
  SimulatedInode* const inode = operation->inode.get();
  const uint64_t bytes =
      operation->kind == Call::kRead ? operation->into.size() : operation->from.size();
  if (bytes > inode->now.size() || operation->offset > inode->now.size() - bytes) {
    return absl::OutOfRangeError(
        absl::StrCat(operation->Where(), ": the file has ", inode->now.size()));
  }
  const std::optional<Fault> fault = operation->fault;
  if (operation->kind == Call::kSync) {
    inode->Sync(operation->completed_before, fault.has_value());
  } else if (operation->kind == Call::kRead && !fault) {
    std::copy_n(inode->now.begin() + static_cast<ptrdiff_t>(operation->offset), bytes,
                operation->into.begin());
  } else if (operation->kind == Call::kWrite && (!fault || *fault == Fault::kShortWrite)) {
    const uint64_t written = fault ? bytes / kSector / 2 * kSector : bytes;
    inode->Apply(operation->offset, operation->from, written, ++completions_);
  }
  if (fault) return FaultStatus(operation->kind, *fault, operation->Where());
  return absl::OkStatus();
}

void SimulatedDisk::Cut(uint64_t seed) {
  uint64_t draws = seed;
  const uint64_t mode = NextDraw(&draws) % 4;
  for (const auto& operation : under_way_) {
    if (operation->kind != Call::kWrite || operation->fault) continue;
    SimulatedInode* const inode = operation->inode.get();
    const uint64_t bytes = operation->from.size();
    if (operation->offset + bytes > inode->now.size()) continue;
    inode->Apply(operation->offset, operation->from, bytes, ++completions_);
  }
  for (std::unique_ptr<Operation>& operation : under_way_) EndDead(std::move(operation));
  under_way_.clear();
  for (auto& file : files_) file.second->Cut(mode, &draws);
  locks_.clear();
  plan_.EndCut();
  on_ = false;
  ++boot_;
}

void SimulatedDisk::CutPower(uint64_t seed) {
  MutexLock lock(&mu_);
  if (on_) Cut(seed);
}

void SimulatedDisk::CutPowerAtCall(uint64_t n, uint64_t seed) {
  MutexLock lock(&mu_);
  plan_.CutAt(n, seed);
}

void SimulatedDisk::PowerOn() {
  MutexLock lock(&mu_);
  on_ = true;
}

bool SimulatedDisk::on() const {
  MutexLock lock(&mu_);
  return on_;
}

}  // namespace eps
