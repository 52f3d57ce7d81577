#include "storage/cuts/rocksdb_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/catalogue_samples.h"

namespace eps {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string FreshFolder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name;
  fs::remove_all(folder);
  return folder;
}

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void WriteFile(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), bytes.size());
}

// A process that writes cuts until it is killed.
class Writer {
 public:
  explicit Writer(const std::string& folder) {
    int ends[2];
    EPS_CHECK(pipe(ends) == 0);
    pid_ = fork();
    EPS_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      execl("storage/testing/catalogue_writer", "catalogue_writer", folder.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    acks_ = fdopen(ends[0], "r");
  }
  ~Writer() { Kill(); }

  // Returns the next step that it reports as durable; 0 after its last report.
  uint64_t NextAck() {
    unsigned long long step = 0;
    return std::fscanf(acks_, "%llu\n", &step) == 1 ? step : 0;
  }
  // Kills it and returns the last step that it acknowledged.
  uint64_t Kill() {
    if (acks_ == nullptr) return 0;
    kill(pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself: " << status;
    uint64_t last = 0;
    while (const uint64_t step = NextAck()) last = step;
    std::fclose(acks_);
    acks_ = nullptr;
    return last;
  }

 private:
  pid_t pid_ = 0;
  std::FILE* acks_ = nullptr;
};

TEST(RocksDbStore, KeepsAcknowledgedCutsAfterAKill) {
  const std::string folder = FreshFolder("killed");
  const JobId job = SampleJob("killed").id;
  uint64_t durable = 0;
  for (int round = 0; round < 20; ++round) {
    uint64_t acked = 0;
    {
      Writer writer(folder);
      for (int i = 0; i < 1 + round * 7 % 23; ++i) acked = std::max(acked, writer.NextAck());
      acked = std::max(acked, writer.Kill());
    }
    ASSERT_GT(acked, durable);
    const auto store = OpenRocksDb(folder);
    ASSERT_EQ(store.status(), absl::OkStatus());
    const Catalogue catalogue(store->get());
    const auto cuts = catalogue.Cuts(job);
    ASSERT_EQ(cuts.status(), absl::OkStatus());
    durable = cuts->back().border.id.step.value();
    ASSERT_GE(durable, acked);
    ASSERT_LE(durable, acked + 1);
    ASSERT_LE(cuts->size(), 3u);
    for (const CatalogueCut& cut : *cuts) {
      EXPECT_EQ(cut, SampleCut(cut.border.id.step.value(), cut.border.id.term.value()));
    }
    ASSERT_GE(catalogue.FindJob(job)->promised, Term(durable));
    ASSERT_LE(catalogue.FindJob(job)->promised, Term(durable + 1));
  }
}

TEST(RocksDbStore, OneOpenerAtATime) {
  const std::string folder = FreshFolder("locked");
  {
    Writer writer(folder);
    ASSERT_GT(writer.NextAck(), 0u);
    const auto second = OpenRocksDb(folder);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
    EXPECT_THAT(second.status().message(), HasSubstr(folder));
  }
  const auto first = OpenRocksDb(folder);
  ASSERT_EQ(first.status(), absl::OkStatus());
  const auto second = OpenRocksDb(folder);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
}

TEST(RocksDbStore, CreatesTheFolderAndItsParents) {
  const std::string folder = FreshFolder("parents") + "/a/b";
  EXPECT_EQ(OpenRocksDb(folder).status(), absl::OkStatus());
  const std::string file = FreshFolder("file");
  WriteFile(file, "x");
  const auto store = OpenRocksDb(file + "/below");
  EXPECT_EQ(store.status().code(), absl::StatusCode::kInternal) << store.status();
  EXPECT_THAT(store.status().message(), HasSubstr(file));
}

TEST(RocksDbStore, ReadingChangesNoFile) {
  const std::string folder = FreshFolder("read");
  EXPECT_EQ(OpenRocksDbForReading(folder + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenRocksDbForReading(folder).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE((*OpenRocksDb(folder))->Write({{"key", "value"}}).ok());
  const auto files = [&folder] {
    std::map<std::string, std::string> contents;
    for (const auto& entry : fs::directory_iterator(folder)) {
      contents[entry.path().filename().string()] = ReadFile(entry.path());
    }
    return contents;
  };
  const auto before = files();
  {
    const auto store = OpenRocksDbForReading(folder);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ((*store)->Scan("k")->size(), 1u) << "a key that only the log holds";
    EXPECT_FALSE((*store)->Write({{"other", "value"}}).ok());
  }
  EXPECT_TRUE(files() == before);
  fs::remove(folder + "/CURRENT");
  EXPECT_EQ(OpenRocksDbForReading(folder).status().code(), absl::StatusCode::kDataLoss);
}

TEST(RocksDbStore, ScansInOrderAndByPrefix) {
  const auto store = OpenRocksDb(FreshFolder("scan"));
  ASSERT_EQ(store.status(), absl::OkStatus());
  ASSERT_EQ(
      (*store)->Write(
          {{"b/2", "x"}, {"a", "y"}, {"b/1", std::string("\0\xff", 2)}, {"b", ""}, {"c", "z"}}),
      absl::OkStatus());
  ASSERT_EQ((*store)->Write({{"c", std::nullopt}, {"absent", std::nullopt}}), absl::OkStatus());
  using Pair = std::pair<std::string, std::string>;
  EXPECT_THAT(*(*store)->Scan("b/"),
              testing::ElementsAre(Pair("b/1", std::string("\0\xff", 2)), Pair("b/2", "x")));
  EXPECT_EQ((*store)->Scan("")->size(), 4u);
  EXPECT_TRUE((*store)->Scan("c")->empty());
}

// Creates a catalogue with a table, a log and a manifest, and returns its folder.
std::string UsedCatalogue(const std::string& name, std::vector<CatalogueCut>* cuts) {
  const std::string folder = FreshFolder(name);
  const CatalogueJob job = SampleJob("used");
  for (uint64_t opened = 0; opened < 3; ++opened) {
    const auto store = OpenRocksDb(folder);
    EPS_CHECK(store.ok());
    Catalogue catalogue(store->get());
    if (opened == 0) EPS_CHECK(catalogue.AddJob(job).ok());
    for (uint64_t i = 0; i < 3; ++i) {
      cuts->push_back(SampleCut(opened * 3 + i, 1));
      EPS_CHECK(catalogue.AddCut(job.id, cuts->back(), {}).ok());
    }
  }
  return folder;
}

// Returns OK if all cuts are found, otherwise the error.
absl::Status OpenAndCompare(const std::string& folder, const std::vector<CatalogueCut>& expected) {
  const auto store = OpenRocksDb(folder);
  if (!store.ok()) return store.status();
  const auto cuts = Catalogue(store->get()).Cuts(SampleJob("used").id);
  if (!cuts.ok()) return cuts.status();
  return *cuts == expected ? absl::OkStatus() : absl::UnknownError("other cuts found");
}

// Flips one bit in every `stride`-th byte of every file that holds data.
TEST(RocksDbStore, FlippedBitsAreDetectedOrHarmless) {
  std::vector<CatalogueCut> cuts;
  const std::string good = UsedCatalogue("rot", &cuts);
  const std::string folder = FreshFolder("rotten");
  const size_t stride = std::getenv("EPS_LONG") != nullptr ? 1 : 13;
  std::set<std::string> kinds;
  size_t seen = 0;
  for (const auto& entry : fs::directory_iterator(good)) {
    const std::string name = entry.path().filename();
    if (name.rfind("LOG", 0) == 0 || name == "LOCK" || name == "IDENTITY" ||
        name.rfind("OPTIONS", 0) == 0) {
      continue;  // RocksDB's own notes, which hold none of our data
    }
    const std::string bytes = ReadFile(entry.path());
    kinds.insert(fs::path(name).has_extension() ? fs::path(name).extension().string()
                                                : name.substr(0, 7));
    for (size_t at = 0; at < bytes.size(); at += stride) {
      fs::remove_all(folder);
      fs::copy(good, folder);
      std::string rotten = bytes;
      rotten[at] = static_cast<char>(rotten[at] ^ 1 << (at % 8));
      WriteFile(folder + "/" + name, rotten);
      const absl::Status status = OpenAndCompare(folder, cuts);
      if (status.ok()) continue;
      ++seen;
      ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << name << " at " << at << status;
      ASSERT_THAT(status.message(), HasSubstr(folder)) << name << " at " << at;
    }
  }
  EXPECT_THAT(kinds, testing::UnorderedElementsAre(".log", ".sst", "MANIFES", "CURRENT"));
  EXPECT_GT(seen, 100u);
}

TEST(RocksDbStore, AMissingFileIsDataLoss) {
  std::vector<CatalogueCut> cuts;
  const std::string good = UsedCatalogue("complete", &cuts);
  const std::string folder = FreshFolder("incomplete");
  for (const auto& entry : fs::directory_iterator(good)) {
    const std::string name = entry.path().filename();
    if (name != "CURRENT" && name.rfind("MANIFEST", 0) != 0 && entry.path().extension() != ".sst") {
      continue;
    }
    fs::remove_all(folder);
    fs::copy(good, folder);
    fs::remove(folder + "/" + name);
    const absl::Status status = OpenAndCompare(folder, cuts);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << name << ": " << status;
    // RocksDB falls back to LevelDB's name of a table, *.ldb, and reports that name.
    EXPECT_THAT(std::string(status.message()), HasSubstr(entry.path().stem()));
  }
}

}  // namespace
}  // namespace eps
