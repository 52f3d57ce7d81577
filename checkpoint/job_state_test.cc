// States of a few chunks on real files: folders of servers, checkpoints, and what is found in them.

#include "checkpoint/job_state.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/executor.h"
#include "base/files/files.h"
#include "base/memory_account.h"
#include "base/testing/test_specs.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/state_folder.h"
#include "checkpoint/testing/job_states.h"
#include "compression/codec.h"
#include "eps/v1/types.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/backends/durable_storage.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/job_folders.h"
#include "storage/cuts/rocksdb_store.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

TEST_F(JobStateTest, ReadsBackFromBothForms) {
  const MemoryState state(HeadOf());
  for (const uint32_t servers : {1, 2, 5}) {
    const std::string name = absl::StrCat("of-", servers);
    Write(state, servers, name);
    const auto folder = *Open(name);
    const auto found = folder->OpenCut(std::nullopt);
    ASSERT_TRUE(found.ok()) << found.status();
    ExpectSame(**found, state);
    EXPECT_EQ((*found)->head().servers, servers);
    EXPECT_EQ((*found)->head().promised, Term(5)) << "terms go on from there";
    EXPECT_THAT((*found)->head().config,
                AllOf(HasSubstr("eval_steps: 3"), HasSubstr(absl::StrCat("addresses: ", servers)),
                      HasSubstr("path: " + Path(name)), HasSubstr("kind: dram")));
    const std::string moved = absl::StrCat("moved-from-", servers);
    Write(**found, 3, moved);
    const auto of_three = *Open(moved);
    ExpectSame(**of_three->OpenCut(std::nullopt), state);
    const auto checkpoint = SaveCheckpoint(**found, Path("saved"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto saved = OpenCheckpointState(*checkpoint);
    ASSERT_TRUE(saved.ok()) << saved.status();
    ExpectSame(**saved, state);
    EXPECT_EQ((*saved)->note(), "");
    EXPECT_EQ((*saved)->head().servers, servers);
    EXPECT_EQ((*saved)->head().promised, Term(3));
  }
}

TEST_F(JobStateTest, IsWrittenWholeOrNotAtAll) {
  const MemoryState state(HeadOf());
  fs::create_directories(Path(".new.tmp/server-0"));  // by a crash
  Write(state, 1, "new");
  EXPECT_FALSE(fs::exists(Path(".new.tmp")));
  EXPECT_FALSE(fs::exists(Path("new/server-0/catalogue/slot-0.eps")));
  EXPECT_EQ(WriteStateFolder(state, 1, Path("new/")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(PlanStateFolder(state, 1, Path("new")).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(WriteStateFolder(state, 4000, Path("b")).message()),
              HasSubstr("would hold nothing"));
  EXPECT_EQ(WriteStateFolder(state, 0, Path("b")).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(Path("b")));

  // One that cannot be read to its end.
  Flip(Slot("new", 0, 0), 4096);
  const auto folder = *Open("new");
  const auto damaged = *folder->OpenCut(std::nullopt);
  EXPECT_EQ(WriteStateFolder(*damaged, 2, Path("b")).code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(fs::exists(Path("b")));
  EXPECT_FALSE(fs::exists(Path(".b.tmp")));

  StatePlan plan = *PlanStateFolder(state, 2, Path("c"));
  ASSERT_EQ(plan.servers.size(), 2u);
  EXPECT_TRUE(CheckFits(plan, "c").ok());
  plan.free_bytes = plan.bytes - 10;
  EXPECT_EQ(CheckFits(plan, "c").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(CheckFits(plan, "c").message()), HasSubstr(": 10 are missing"));
  Write(state, 2, "c");
  uint64_t bytes = 0;
  for (const uint32_t server : {0, 1}) {
    for (const uint32_t slot : {0, 1}) {
      bytes += fs::file_size(absl::StrCat(Slot("c", server, slot)));
    }
  }
  EXPECT_EQ(bytes, plan.bytes) << "as was planned";
}

TEST_F(JobStateTest, DamageIsNamedWithFileAndOffset) {
  const MemoryState state(HeadOf());
  const struct {
    const char* what;
    uint64_t offset;  // from the end if it is beyond a gigabyte
    const char* says;
  } kCases[] = {
      {"header", 100, "slot-0.eps: header at offset 0: CRC32C"},
      {"weights", 4096 + 5, "slot-0.eps: chunk [0-9]+: [0-9]+ bytes at offset 4096: CRC32C"},
  };
  for (const auto& damage : kCases) {
    fs::remove_all(Path("damaged"));
    Write(state, 2, "damaged");
    ASSERT_TRUE(Read("damaged").ok());
    Flip(Slot("damaged", 1, 0), damage.offset);
    const absl::Status status = Read("damaged");
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << damage.what << ": " << status;
    EXPECT_THAT(std::string(status.message()), ContainsRegex(damage.says));
    EXPECT_THAT(std::string(status.message()), HasSubstr("server-1"));
  }
  // Residuals lie behind all chunks; those of this cut in slot 0.
  fs::remove_all(Path("damaged"));
  Write(state, 1, "damaged");
  const auto chunk_bytes = [&] {
    uint64_t bytes = 4096;
    for (const Chunk& chunk : state.chunks().chunks()) {
      bytes += (3 * ((chunk.elements + 15) / 16 * 16) * 4 + 4095) / 4096 * 4096 + 4096;
    }
    return bytes;
  };
  Flip(Slot("damaged", 0, 0), chunk_bytes() + 5000);
  const absl::Status status = Read("damaged");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("slot-0.eps: residuals at offset ", chunk_bytes())));
  // Footer of the first chunk.
  const Chunk& first = state.chunks().chunk(ChunkId(0));
  Flip(Slot("damaged", 0, 0),
       4096 + (3 * ((first.elements + 15) / 16 * 16) * 4 + 4095) / 4096 * 4096 + 24);
  EXPECT_THAT(std::string(Read("damaged").message()),
              ContainsRegex("slot-0.eps: footer of chunk 0 at offset [0-9]+: CRC32C"));
}

TEST_F(JobStateTest, RefusesAnIncompleteJob) {
  const MemoryState state(HeadOf());
  Write(state, 2, "two");
  EXPECT_EQ(Read("two", JobId(1)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Open("nothing").status().code(), absl::StatusCode::kNotFound);

  // Another job beside it has to be told from it.
  const MemoryState other(HeadOf(2));
  Write(other, 1, "mixed");
  fs::copy(Path("two/server-1"), Path("mixed/server-1"), fs::copy_options::recursive);
  const absl::Status several = Read("mixed");
  EXPECT_EQ(several.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(several.message()), HasSubstr("--job"));
  EXPECT_TRUE(Read("mixed", other.head().spec.id()).ok());
  const absl::Status missing = Read("mixed", state.head().spec.id());
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("shard 0 of 2"));
  EXPECT_THAT(*(*Open("mixed"))->Table(), AllOf(HasSubstr("shard 0 of 2"), HasSubstr("server-1")));

  fs::copy(Path("two/server-1"), Path("two/server-2"), fs::copy_options::recursive);
  EXPECT_THAT(std::string(Read("two").message()), HasSubstr("are both shard 1 of 2"));
  fs::remove_all(Path("two/server-2"));

  // A shard of the same job from a state of another number of servers.
  Write(state, 3, "three");
  fs::remove_all(Path("two/server-1"));
  fs::rename(Path("three/server-1"), Path("two/server-1"));
  EXPECT_THAT(std::string(Read("two").message()), HasSubstr("do not belong together"));

  // Shards whose cuts are of different steps.
  JobStateHead later = HeadOf();
  later.border.id = {Step(8), Term(3)};
  Write(MemoryState(later), 2, "later");
  fs::remove_all(Path("two/server-1"));
  fs::rename(Path("later/server-1"), Path("two/server-1"));
  EXPECT_THAT(std::string(Read("two").message()),
              AllOf(HasSubstr("no cut is there on all shards"), HasSubstr("step 7 (term 3)"),
                    HasSubstr("server-1 has step 8 (term 3)")));
}

TEST_F(JobStateTest, TakesTheNewestCommonCut) {
  const MemoryState state(HeadOf());
  Write(state, 2, "ahead");
  {
    // The lead was faster: it has a cut that the other one has not.
    const auto store = *OpenRocksDb(Path("ahead/server-0/catalogue"));
    Catalogue catalogue(store.get());
    CatalogueCut cut = catalogue.Cuts(state.head().spec.id())->back();
    cut.border.id = {Step(8), Term(4)};
    cut.border.version = Version(7);
    ASSERT_TRUE(catalogue.AddCut(state.head().spec.id(), cut, {"\x08\x08"}).ok());
  }
  for (int i = 0; i < 2; ++i) {
    const auto folder = *Open("ahead");
    const auto found = folder->OpenCut(std::nullopt);
    ASSERT_TRUE(found.ok()) << found.status();
    ExpectSame(**found, state);
    EXPECT_THAT(*folder->Table(), AllOf(HasSubstr("youngest common cut: step 7 (term 3)"),
                                        HasSubstr("cuts: step 7 (term 3), step 8 (term 4)")));
  }
}

TEST_F(JobStateTest, OneReaderAtATime) {
  Write(MemoryState(HeadOf()), 1, "read");
  const auto folder = *Open("read");
  const absl::Status second = Open("read").status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr("a server is using this folder"));
}

// ---- Old jobs.

class OldJobsTest : public JobStateTest {
 protected:
  static constexpr uint64_t kOldBytes = 2 * 8192;

  OldJobsTest() {
    Write(MemoryState(HeadOf()), 2, "two");
    for (const uint32_t server : {0, 1}) {
      const auto store = *OpenRocksDb(Server(server) + "/catalogue");
      Catalogue catalogue(store.get());
      CatalogueJob job;
      job.id = old_.id();
      job.spec_text = old_.ToText();
      job.shard = server;
      job.shards = 2;
      EXPECT_TRUE(catalogue.AddJob(job).ok());
      CatalogueCut cut = catalogue.Cuts(SpecOf(1).id())->back();
      cut.border.id = {Step(99), Term(4)};
      EXPECT_TRUE(catalogue.AddCut(old_.id(), cut, {}).ok());
      EXPECT_TRUE(catalogue.SetServed({SpecOf(1).id(), {"x:1", "x:2"}}).ok());
      fs::create_directories(Folder(server));
      for (const char* const file : {"/slot-0.eps", "/slot-1.eps"}) {
        std::ofstream(Folder(server) + file) << std::string(8192, 'o');
      }
    }
    std::ofstream(JobConfigFile(Path("two"), old_.id())) << "old";
  }
  std::string Server(uint32_t server) const {
    return absl::StrCat(Path("two"), "/server-", server);
  }
  std::string Folder(uint32_t server) const {
    return absl::StrCat(Server(server), "/", JobFolderName(old_.id()));
  }
  std::string Table() const { return *(*Open("two"))->Table(); }
  absl::StatusOr<uint64_t> Remove(JobId job, RemoveServed served = RemoveServed::kRefuse) const {
    return (*Open("two"))->Remove(job, served);
  }
  // The other job is there to its last byte.
  void ExpectOther() const {
    const absl::Status status = Read("two", SpecOf(1).id());
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(Table(), HasSubstr("served\n"));
  }

  const JobSpec old_ = SpecOf(2);
  const std::string name_ = absl::StrCat(absl::Hex(old_.id().value(), absl::kZeroPad16));
};

TEST_F(OldJobsTest, AreListedAndRemovedFromAllServers) {
  EXPECT_THAT(Table(),
              AllOf(HasSubstr(absl::StrCat("job ", name_, ", ")), HasSubstr("gpt2, "),
                    HasSubstr(" parameters, 2 servers, youngest common cut: step 99 (term 4)"),
                    HasSubstr("shard 1 of 2, term 0, cuts: step 99 (term 4), 16,384 bytes\n"),
                    HasSubstr("shard 1 of 2, term 5, cuts: step 7 (term 3), ")));
  EXPECT_EQ(*Remove(old_.id()), 2 * kOldBytes);
  EXPECT_FALSE(fs::exists(Folder(0)));
  EXPECT_FALSE(fs::exists(Folder(1)));
  EXPECT_FALSE(fs::exists(JobConfigFile(Path("two"), old_.id())));
  EXPECT_THAT(Table(), Not(HasSubstr(name_)));
  ExpectOther();
  EXPECT_EQ(Remove(old_.id()).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(OldJobsTest, TheServedOneStaysWithoutForce) {
  const JobId served = SpecOf(1).id();
  const absl::Status refused = Remove(served).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("server-0"), HasSubstr("--force")));
  ExpectOther();
  // Also where it is the second server that serves it: the first one loses nothing either.
  {
    const auto store = *OpenRocksDb(Server(0) + "/catalogue");
    ASSERT_TRUE(Catalogue(store.get()).SetServed({old_.id(), {"x:1", "x:2"}}).ok());
  }
  EXPECT_THAT(std::string(Remove(served).status().message()), HasSubstr("server-1"));
  EXPECT_TRUE(Read("two", served).ok());
  EXPECT_TRUE(Remove(served, RemoveServed::kRemove).ok());
  EXPECT_EQ(Read("two", served).code(), absl::StatusCode::kNotFound);
}

TEST_F(OldJobsTest, SeveralGoOneAfterTheOther) {
  const auto folder = *StateFolder::Open(Path("two"));
  for (const JobId job : {old_.id(), SpecOf(1).id()}) {
    const absl::StatusOr<uint64_t> removed = folder->Remove(job, RemoveServed::kRemove);
    EXPECT_TRUE(removed.ok()) << removed.status();
  }
  EXPECT_THAT(*folder->Table(), HasSubstr("no jobs in"));
}

TEST_F(OldJobsTest, LeftoversOfRemovalsAreListedAndRemoved) {
  // A folder in the folder cannot be removed: the second server's part of the job stays.
  fs::create_directories(Folder(0) + "/kept/by-somebody");
  EXPECT_FALSE(Remove(old_.id()).ok());
  EXPECT_THAT(Table(), AllOf(HasSubstr("nothing refers to " + Folder(0) + ", "),
                             HasSubstr("shard 0 of 2 of job " + name_ + " is not here"),
                             HasSubstr(absl::StrCat("eps state rm ", Path("two"), " ", name_))));
  fs::remove_all(Folder(0) + "/kept");
  EXPECT_TRUE(Remove(old_.id()).ok());
  EXPECT_FALSE(fs::exists(Folder(0)) || fs::exists(Folder(1)));
  ExpectOther();
  // The configuration alone.
  std::ofstream(JobConfigFile(Path("two"), old_.id())) << "old";
  EXPECT_THAT(Table(), HasSubstr(absl::StrCat("job-", name_, ".yaml, 3 bytes")));
  EXPECT_TRUE(Remove(old_.id()).ok());
  EXPECT_THAT(Table(), Not(HasSubstr(name_)));
}

TEST_F(OldJobsTest, OneServersFolderWillDo) {
  const auto folder = *StateFolder::Open(Server(1));
  EXPECT_THAT(*folder->Table(), AllOf(HasSubstr("shard 1 of 2, term 0"), HasSubstr(name_)));
  EXPECT_EQ(*folder->Remove(old_.id(), RemoveServed::kRefuse), kOldBytes);
  EXPECT_TRUE(fs::exists(Folder(0)));
  EXPECT_TRUE(fs::exists(JobConfigFile(Path("two"), old_.id())));
}

TEST_F(OldJobsTest, AFullDiskNamesThem) {
  StorageOptions options;
  options.kind = "nvme";
  options.path = Server(0);
  options.staging_bytes = uint64_t{8} << 20;
  options.log_steps = 8;
  const JobSpec spec = SpecOf(3);
  const ChunkMap chunks = ChunkMap::Build(spec);
  ShardPlace place;
  place.log.step_bytes = uint64_t{1} << 50;  // more than any disk has
  place.log.entry_bytes = 4096;
  MemoryAccount account;
  ThreadPool pool(1);
  const auto storage = *DurableStorage::Open(options);
  const absl::Status status = storage
                                  ->NewBackend(spec, chunks, {chunks.chunks().front().id}, place,
                                               &pool, &account, [](BackendDone) {})
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  const uint64_t bytes = kOldBytes + fs::file_size(Slot("two", 0, 0)) * 2;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat("other jobs hold ", bytes, " bytes in ", Server(0))),
                    HasSubstr("eps state rm " + Server(0) + " JOB")));
}

TEST(StepRecords, ReadBackAndNeverPastTheirEnd) {
  const std::vector<std::string> records = {"", "\x08\x05", "\x08\x06"};
  const std::string text = JoinRecords(records);
  EXPECT_EQ(text.size(), 16u);
  EXPECT_EQ(*SplitRecords(text), records);
  EXPECT_TRUE(SplitRecords("")->empty());
  EXPECT_THAT(std::string(SplitRecords(text.substr(0, 15)).status().message()),
              HasSubstr("at offset 10"));
  EXPECT_THAT(std::string(SplitRecords(text + "abc").status().message()),
              HasSubstr("at offset 16"));
  EXPECT_EQ(SplitRecords(std::string(4, '\xff')).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(SplitRecords(std::string("\1\0\0\0\xff", 5)).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace eps
