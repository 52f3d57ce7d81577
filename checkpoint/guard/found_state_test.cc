#include "checkpoint/guard/found_state.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "checkpoint/state_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/job_folders.h"
#include "storage/cuts/rocksdb_store.h"
#include "storage/testing/catalogue_samples.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

constexpr uint32_t kServers = 3;

class FoundStateTest : public testing::Test {
 protected:
  FoundStateTest() {
    root_ =
        absl::StrCat(testing::TempDir(), "/found-",
                     testing::UnitTest::GetInstance()->current_test_info()->name(), "-", getpid());
    root_ = fs::path(root_).lexically_normal().string();
    fs::remove_all(root_);
  }
  ~FoundStateTest() override { fs::remove_all(root_); }

  std::string Server(uint32_t server) const { return absl::StrCat(root_, "/server-", server); }
  // Creates a server's folder with the job, and with its cut.
  void Put(uint32_t server, bool cut = true) const {
    fs::create_directories(Server(server) + "/" + JobFolderName(job_.id));
    std::ofstream(Server(server) + "/" + JobFolderName(job_.id) + "/slot-0.eps") << "state";
    const auto store = *OpenRocksDb(Server(server) + "/catalogue");
    Catalogue catalogue(store.get());
    CatalogueJob job = job_;
    job.shard = server;
    EXPECT_TRUE(catalogue.AddJob(job).ok());
    if (!cut) return;
    EXPECT_TRUE(catalogue.AddCut(job.id, SampleCut(7, 2), {}).ok());
  }
  FoundState Find(uint32_t servers = kServers) const {
    const absl::StatusOr<FoundState> found = FindState(root_, servers, job_.id);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *found : FoundState();
  }

  std::string root_;
  const CatalogueJob job_ = SampleJob("one");  // of three servers
};

TEST_F(FoundStateTest, FindsNothingInMissingAndEmptyFolders) {
  EXPECT_FALSE(Find().known);
  fs::create_directories(Server(1));
  EXPECT_FALSE(Find().known);
  EXPECT_EQ(Find().missing, "");
  EXPECT_TRUE(fs::is_empty(Server(1)));
}

TEST_F(FoundStateTest, FindsAWholeState) {
  for (const uint32_t server : {0, 1, 2}) Put(server);
  EXPECT_TRUE(Find().known);
  EXPECT_EQ(Find().missing, "");
  EXPECT_FALSE(FindState(root_, kServers, SampleJob("two").id)->known);
}

TEST_F(FoundStateTest, NamesThePartThatIsMissing) {
  for (const uint32_t server : {0, 2}) Put(server);
  for (const bool folder : {false, true}) {
    if (folder) fs::create_directories(Server(1));
    EXPECT_TRUE(Find().known);
    EXPECT_THAT(Find().missing, AllOf(HasSubstr("missing in " + Server(1)), HasSubstr(Server(0)),
                                      HasSubstr("step 7 (term 2)")));
  }
  // Servers tell that the state is of another number of servers.
  EXPECT_EQ(Find(2).missing, "");
  EXPECT_EQ(Find(4).missing, "");
}

TEST_F(FoundStateTest, NothingIsMissingBeforeTheFirstCut) {
  for (const uint32_t server : {0, 2}) Put(server, /*cut=*/false);
  EXPECT_TRUE(Find().known);
  EXPECT_EQ(Find().missing, "");
}

TEST_F(FoundStateTest, NamesAMissingCatalogue) {
  for (const uint32_t server : {0, 1, 2}) Put(server);
  fs::remove_all(Server(2) + "/catalogue");
  EXPECT_THAT(Find().missing, HasSubstr(Server(2) + "/catalogue"));
}

TEST_F(FoundStateTest, SetsTheRestAside) {
  for (const uint32_t server : {0, 2}) Put(server);
  ASSERT_TRUE(SetStateAside(root_).ok());
  EXPECT_FALSE(Find().known);
  EXPECT_EQ(Find().missing, "");
  Put(0);
  const std::string lost = root_ + "/lost+found/server-2";
  EXPECT_TRUE(fs::exists(lost + "/" + JobFolderName(job_.id) + "/slot-0.eps"));
  const auto folder = StateFolder::Open(root_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_THAT(*(*folder)->Table(), HasSubstr(absl::StrCat("set aside: ", lost, ", ")));
  for (const std::string& other : {Server(0), lost + "/..", root_ + "/lost+found"}) {
    EXPECT_EQ((*folder)->RemoveLost(other).status().code(), absl::StatusCode::kNotFound) << other;
  }
  EXPECT_GT(*(*folder)->RemoveLost(lost), 0u);
  EXPECT_FALSE(fs::exists(lost));
  EXPECT_THAT(*(*folder)->Table(), AllOf(HasSubstr("lost+found/server-0"), Not(HasSubstr(lost))));
}

}  // namespace
}  // namespace eps
