// The n-th allocation of a process fails. The process aborts, ends with an error, or finishes with
// the right bits; a new process then brings the job to the same bits from the files that it finds.
//
// Each attempt is a process of its own, on real files. EPS_ALLOCATIONS=N tries about N allocations
// instead of 60, and EPS_ALLOCATIONS=all tries all of them. EPS_ALLOCATIONS_TALLY=FILE keeps count,
// so that an interrupted run can continue. EPS_ALLOCATION=N tries only this one.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/testing/tally.h"
#include "eps_server/core/testing/durable_cluster.h"
#include "gtest/gtest.h"
#include "storage/backends/durable_backend.h"
#include "storage/cuts/residual_budget.h"
#include "storage/disk/disk.h"
#include "storage/testing/log_store.h"

namespace {

std::atomic<uint64_t> allocations{0};
std::atomic<uint64_t> fails_at{0};

void* Allocate(size_t size, size_t alignment) {
  if (++allocations == fails_at) return nullptr;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(size == 0 ? 1 : size);
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void* AllocateOrThrow(size_t size, size_t alignment) {
  void* const memory = Allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return AllocateOrThrow(size, 1); }
void* operator new[](size_t size) { return AllocateOrThrow(size, 1); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return Allocate(size, 1); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return Allocate(size, 1); }
void* operator new(size_t size, std::align_val_t a) {
  return AllocateOrThrow(size, static_cast<size_t>(a));
}
void* operator new[](size_t size, std::align_val_t a) {
  return AllocateOrThrow(size, static_cast<size_t>(a));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kShards = 2;
constexpr int kCleanError = 3;

// Real files whose operations block, and complete on an executor, so that everything happens in one
// order.
class InOrder final : public Disk {
 public:
  InOrder(Disk* disk, Executor* executor) : disk_(disk), executor_(executor) {}

  absl::Status CreateFolder(const std::string& path) override { return disk_->CreateFolder(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return disk_->List(path);
  }
  absl::Status CreateFile(const std::string& path, uint64_t size) override {
    return disk_->CreateFile(path, size);
  }
  absl::StatusOr<std::unique_ptr<AsyncFile>> Open(const std::string& path) override {
    auto file = disk_->Open(path);
    if (!file.ok()) return file.status();
    return std::unique_ptr<AsyncFile>(std::make_unique<File>(*std::move(file), executor_));
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
  class File final : public AsyncFile {
   public:
    File(std::unique_ptr<AsyncFile> file, Executor* executor)
        : file_(std::move(file)), executor_(executor) {}
    void Read(uint64_t offset, absl::Span<uint8_t> into, Done done) override {
      Tell(ReadBlocking(file_.get(), offset, into), std::move(done));
    }
    void Write(uint64_t offset, absl::Span<const uint8_t> from, Done done) override {
      Tell(WriteBlocking(file_.get(), offset, from), std::move(done));
    }
    void Sync(Done done) override { Tell(SyncBlocking(file_.get()), std::move(done)); }
    const std::string& path() const override { return file_->path(); }
    uint64_t size() const override { return file_->size(); }
    FileIdentity identity() const override { return file_->identity(); }

   private:
    void Tell(absl::Status status, Done done) {
      executor_->Post([status = std::move(status), done = std::move(done)] { done(status); });
    }
    const std::unique_ptr<AsyncFile> file_;
    Executor* const executor_;
  };

  Disk* const disk_;
  Executor* const executor_;
};

// The files that a shard's process has open.
struct Place {
  std::unique_ptr<InOrder> disk;
  std::unique_ptr<LogStore> store;
  std::unique_ptr<Catalogue> catalogue;
};

[[noreturn]] void EndWith(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::_Exit(kCleanError);
}

// Runs one process: brings the job in `folder` to its end and writes the digest.
void Live(const JobSpec& spec, const std::string& folder, bool logs) {
  DiskOptions disk_options;
  disk_options.allow_io_uring = false;
  const std::unique_ptr<Disk> disk = NewRealDisk(disk_options);
  std::vector<Place> places(kShards);
  CoreCluster::Options options;
  options.shards = kShards;
  options.limits.cut_steps = 1;
  options.on_abort = [](ShardId, const effect::Abort& abort) {
    EndWith(absl::InternalError(abort.why));
  };
  options.new_backend = [&](const JobSpec& job, const ChunkMap& chunks, std::vector<ChunkId> owned,
                            ShardId shard, Executor* executor, MemoryAccount* account,
                            BackendDoneFn done) {
    Place* const place = &places[shard.value()];
    const std::string own = absl::StrCat(folder, "/", shard.value());
    place->disk = std::make_unique<InOrder>(disk.get(), executor);
    auto store = LogStore::Open(disk.get(), own + "/catalogue", 4096);
    if (!store.ok()) EndWith(store.status());
    place->store = *std::move(store);
    place->catalogue = std::make_unique<Catalogue>(place->store.get());
    DurableOptions durable;
    durable.disk = place->disk.get();
    durable.blocking_disk_or_null = disk.get();
    durable.catalogue = place->catalogue.get();
    durable.folder = own + "/job";
    durable.staging_bytes = uint64_t{64} << 10;
    durable.residual_bytes = ResidualBudget(job, chunks, owned, /*durable=*/true);
    if (logs) {
      durable.log = ShardCore::LogNeeds(job, chunks, owned, kShards);
      durable.log.steps = options.limits.cut_steps;
    }
    auto backend = NewNvmeBackend(job, chunks, std::move(owned), shard, kShards, executor, account,
                                  durable, std::move(done));
    if (!backend.ok()) EndWith(backend.status());
    return *std::move(backend);
  };
  CoreTraining training(spec, options, /*fetches=*/true);
  const absl::Status finished = training.Finish([&] { training.cluster().RunSome(100); }, 300);
  if (!finished.ok()) EndWith(finished);
  std::ofstream(folder + "/digest") << training.End().digest;
}

// The parameter says whether the shards have contribution logs.
class DurableMemory : public testing::TestWithParam<bool> {
 protected:
  DurableMemory()
      : spec_(SmallDurableSpec(Clip::kLagged, Mode::kSealed, "topk:0.05")),
        expected_(UndisturbedOutcome(spec_).digest) {
    // Uses memory if possible, because thousands of syncs are slow.
    const bool in_memory = access("/dev/shm", W_OK) == 0;
    folder_ = (in_memory ? std::string("/dev/shm") : testing::TempDir()) + "/eps-memory-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  ~DurableMemory() override { fs::remove_all(folder_); }

  // Runs a process whose n-th allocation fails; 0 fails none. Returns its status as waitpid reports
  // it.
  int Spawn(uint64_t n) {
    const pid_t child = fork();
    EPS_CHECK(child >= 0);
    if (child == 0) {
      const int null = open("/dev/null", O_WRONLY);
      if (null >= 0) dup2(null, STDERR_FILENO);
      alarm(60);
      allocations = 0;
      fails_at = n;
      Live(spec_, folder_, GetParam());
      fails_at = 0;
      std::ofstream(folder_ + "/allocations") << allocations.load();
      std::_Exit(0);
    }
    int ended = 0;
    EPS_CHECK(waitpid(child, &ended, 0) == child);
    return ended;
  }
  std::string Read(const char* name) const {
    std::ifstream in(folder_ + "/" + name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  void Clear() {
    for (const auto& entry : fs::directory_iterator(folder_)) fs::remove_all(entry.path());
  }

  const JobSpec spec_;
  const std::string expected_;
  std::string folder_;
};

TEST_P(DurableMemory, NextProcessRecoversFromFailedAllocation) {
  ASSERT_EQ(Spawn(0), 0);
  ASSERT_EQ(Read("digest"), expected_);
  const uint64_t count = std::strtoull(Read("allocations").c_str(), nullptr, 10);
  ASSERT_GT(count, 1000u);
  const char* const mode = std::getenv("EPS_ALLOCATIONS");
  const bool all = mode != nullptr && std::string(mode) == "all";
  const uint64_t stride = all ? 1 : count / NumberFromEnvironment("EPS_ALLOCATIONS", 60);
  const char* const file = std::getenv("EPS_ALLOCATIONS_TALLY");
  const std::string tally_file =
      absl::StrCat(file == nullptr ? "" : file, GetParam() ? ".log" : "");
  Tally tally(file == nullptr ? nullptr : tally_file.c_str());
  if (const uint64_t alone = NumberFromEnvironment("EPS_ALLOCATION", 0); alone > 0) {
    Clear();
    Spawn(alone);
    ASSERT_EQ(Spawn(0), 0);
    EXPECT_EQ(Read("digest"), expected_);
    return;
  }
  for (uint64_t n = std::max<uint64_t>(tally["next"], 1); n < count; n += stride) {
    // Varies the offset in each stride, so that not every round hits the same place of a loop.
    const uint64_t at = n + (all ? 0 : n * 7919 % stride);
    Clear();
    const int ended = Spawn(at);
    const bool aborted = WIFSIGNALED(ended) && WTERMSIG(ended) == SIGABRT;
    const bool clean = WIFEXITED(ended) && WEXITSTATUS(ended) == kCleanError;
    const bool finished = WIFEXITED(ended) && WEXITSTATUS(ended) == 0;
    ++tally[aborted ? "aborted" : clean ? "clean_errors" : finished ? "finished" : "other"];
    EXPECT_TRUE(aborted || clean || finished) << "allocation " << at << ": ended with " << ended;
    if (finished) {
      EXPECT_EQ(Read("digest"), expected_) << "allocation " << at;
    }
    ASSERT_EQ(Spawn(0), 0) << "after allocation " << at;
    ASSERT_EQ(Read("digest"), expected_) << "after allocation " << at;
    tally["next"] = n + stride;
    if (tally["next"] % 100 == 0) tally.Save();
  }
  tally.Save();
  std::printf("%lu allocations; %s\n", count, tally.ToString().c_str());
  EXPECT_GT(tally["aborted"], 0u);
}

INSTANTIATE_TEST_SUITE_P(Logs, DurableMemory, testing::Bool());

}  // namespace
}  // namespace eps

// An uncaught exception must end the process where it is thrown; gtest would catch it.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::GTEST_FLAG(catch_exceptions) = false;
  return RUN_ALL_TESTS();
}
