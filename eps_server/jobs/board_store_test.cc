#include "eps_server/jobs/board_store.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "eps_server/jobs/testing/board_requests.h"
#include "gtest/gtest.h"
#include "storage/cuts/rocksdb_store.h"
#include "storage/records/sealed_record.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// A board in a real database, which the tests close and open again.
class BoardStoreTest : public testing::Test {
 protected:
  BoardStoreTest()
      : folder_(absl::StrCat(testing::TempDir(), "/board-",
                             testing::UnitTest::GetInstance()->current_test_info()->name(), "-",
                             getpid())) {
    fs::remove_all(folder_);
    Open();
  }
  ~BoardStoreTest() override {
    database_.reset();  // its threads may still write files
    fs::remove_all(folder_);
  }

  void Open() {
    board_.reset();
    database_.reset();
    auto database = OpenRocksDb(folder_);
    ASSERT_TRUE(database.ok()) << database.status();
    database_ = *std::move(database);
    auto board = BoardStore(database_.get()).Read(++boards_, 0);
    status_ = board.status();
    if (board.ok()) board_ = *std::move(board);
  }
  void Take(const absl::StatusOr<BoardPlan>& plan) {
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE(BoardStore(database_.get()).Write(*plan).ok());
    board_->Commit(*plan, 0);
  }
  std::string Value(const std::string& key) const {
    const auto found = *database_->Scan(key);
    return found.empty() ? "" : found[0].second;
  }
  void Put(const std::string& key, std::string value) {
    ASSERT_TRUE(database_->Write({{key, std::move(value)}}).ok());
    Open();
  }
  size_t Records() const { return database_->Scan("")->size(); }

  const std::string folder_;
  std::unique_ptr<KeyValueStore> database_;
  std::unique_ptr<JobBoard> board_;
  absl::Status status_;
  uint64_t boards_ = 100;
};

TEST_F(BoardStoreTest, WritesNothingWithoutAJob) {
  Take(board_->Remove(RemoveOf("a")));
  Open();
  ASSERT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(Records(), 0u);
}

TEST_F(BoardStoreTest, ReadsWhatItWrote) {
  v1::SubmitJobRequest request = SubmitOf("a");
  for (int i = 0; i < 20; ++i) (*request.mutable_labels())[absl::StrCat("k", i)] = "v";
  Take(board_->Submit(request, 5, 6));
  Take(board_->Submit(SubmitOf("b"), 7, 8));
  Take(board_->Claim(ClaimOf(1, "a")));
  v1::ReportJobRequest report = ReportOf(board_->List(ListOf("a")).jobs(0));
  report.mutable_progress()->set_checkpoint_step(4);
  report.mutable_progress()->set_checkpoint("/out/4");
  Take(board_->Report(report));
  Take(*board_->Expired(JobBoard::kLeaseMs));
  Take(board_->Claim(ClaimOf(2, "b")));
  const v1::ListJobsReply before = board_->List(ListOf());
  Open();
  ASSERT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(board_->List(ListOf()).DebugString(), before.DebugString());
  EXPECT_EQ(board_->head().board, 101u) << "the name of the first process's board";
  // The board's own fields: who may come back, and whose checkpoint it is.
  Take(board_->Claim(ClaimOf(1, "a")));
  EXPECT_EQ(board_->List(ListOf("a")).jobs(0).driver().generation(),
            before.jobs(0).driver().generation());
  report.mutable_progress()->set_checkpoint_step(3);
  Take(board_->Report(report));
  EXPECT_EQ(board_->List(ListOf("a")).jobs(0).progress().checkpoint_step(), 4u);
}

TEST_F(BoardStoreTest, ForgetsRemovedJobs) {
  Take(board_->Submit(SubmitOf("a"), 5, 6));
  Take(board_->Claim(ClaimOf(1, "a")));
  v1::ReportJobRequest end = EndOf(board_->List(ListOf("a")).jobs(0), 0);
  end.set_job_id(9);
  Take(board_->Report(end));
  Take(board_->Remove(RemoveOf("a")));
  Open();
  ASSERT_TRUE(status_.ok()) << status_;
  EXPECT_TRUE(board_->List(ListOf()).jobs().empty());
  EXPECT_EQ(board_->head().revision, 4u);
  EXPECT_EQ(Records(), 1u);
  ASSERT_EQ(board_->LeftJobs().size(), 1u) << "but its servers may hold it";
  EXPECT_EQ(board_->LeftJobs()[0].job_id(), 9u);
}

TEST_F(BoardStoreTest, NamesTheKeyOfADamagedRecord) {
  Take(board_->Submit(SubmitOf("a"), 5, 6));
  for (const std::string key : {"board/head", "board/job/a"}) {
    const std::string good = Value(key);
    std::string bad = good;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 4);
    Put(key, bad);
    EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss) << status_;
    EXPECT_TRUE(absl::StrContains(status_.message(), key)) << status_;
    Put(key, good.substr(0, 7));
    EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss) << status_;
    Put(key, SealRecord(key, "x"));
    EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss) << status_;
    EXPECT_TRUE(absl::StrContains(status_.message(), key)) << status_;
    Put(key, good);
    EXPECT_TRUE(status_.ok()) << status_;
  }
}

TEST_F(BoardStoreTest, RefusesRecordsThatDisagree) {
  Take(board_->Submit(SubmitOf("a"), 5, 6));
  const std::string old_head = Value("board/head");
  const std::string job = Value("board/job/a");
  Put("board/job/b", job);
  EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss) << status_;
  EXPECT_TRUE(absl::StrContains(status_.message(), "board/job/b")) << status_;
  Put("board/job/b", SealRecord("board/job/b", *UnsealRecord("board/job/a", job)));
  EXPECT_TRUE(absl::StrContains(status_.message(), "its job is a")) << status_;
  ASSERT_TRUE(database_->Write({{"board/job/b", std::nullopt}}).ok());
  Put("board/other", job);
  EXPECT_TRUE(absl::StrContains(status_.message(), "board/other")) << status_;
  ASSERT_TRUE(database_->Write({{"board/other", std::nullopt}}).ok());
  Open();
  Take(board_->Claim(ClaimOf(1, "a")));
  Put("board/head", old_head);
  EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss) << status_;
  EXPECT_TRUE(absl::StrContains(status_.message(), "board/head")) << status_;
  ASSERT_TRUE(database_->Write({{"board/head", std::nullopt}}).ok());
  Open();
  EXPECT_TRUE(absl::StrContains(status_.message(), "board/head: it is missing")) << status_;
}

TEST_F(BoardStoreTest, KeepsNothingWithoutADatabase) {
  BoardStore store(nullptr);
  const auto board = store.Read(3, 0);
  ASSERT_TRUE(board.ok()) << board.status();
  EXPECT_EQ((*board)->head().board, 3u);
  EXPECT_TRUE(store.Write(*(*board)->Submit(SubmitOf("a"), 5, 6)).ok());
  Open();
  EXPECT_TRUE(board_->List(ListOf()).jobs().empty());
}

}  // namespace
}  // namespace eps
