// Flips one bit in any file of the catalogue's database, after a clean close or a killed process:
// opening and reading either returns DataLoss that names the file, or yields the original content.
// For long modes see base/testing/flips.h.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/testing/flips.h"
#include "base/testing/tally.h"
#include "gtest/gtest.h"
#include "rocksdb/env.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/rocksdb_store.h"

namespace eps {
namespace {

constexpr char kFolder[] = "/catalogue";

using Contents = std::map<std::string, std::string>;
using Files = std::map<std::string, std::string>;  // by path

std::unique_ptr<rocksdb::Env> InMemory() {
  return std::unique_ptr<rocksdb::Env>(rocksdb::NewMemEnv(rocksdb::Env::Default()));
}

Files ReadFiles(rocksdb::Env* env) {
  std::vector<std::string> names;
  EPS_CHECK(env->GetChildren(kFolder, &names).ok());
  Files files;
  for (const std::string& name : names) {
    if (name == "LOCK") continue;  // holds no bytes
    const std::string path = absl::StrCat(kFolder, "/", name);
    std::string bytes;
    const rocksdb::Status read = rocksdb::ReadFileToString(env, path, &bytes);
    // A thread of RocksDB deletes files that the database no longer needs.
    if (env->FileExists(path).IsNotFound()) continue;
    EPS_CHECK_MSG(read.ok(), path << ": " << read.ToString());
    if (!bytes.empty()) files[path] = std::move(bytes);
  }
  return files;
}

// Returns the files of one moment, also of an open database. Its threads write and delete files
// while they are copied, so that only two equal copies in a row are of one moment.
Files FilesIn(rocksdb::Env* env) {
  Files files = ReadFiles(env);
  for (Files next = ReadFiles(env); next != files; next = ReadFiles(env)) files = std::move(next);
  return files;
}

absl::StatusOr<Contents> ContentsOf(const KeyValueStore& store) {
  const auto found = store.Scan("");
  if (!found.ok()) return found.status();
  return Contents(found->begin(), found->end());
}

struct Left {
  Files files;
  Contents contents;
};

// Returns the files that several processes left, some killed and some closed properly.
std::vector<Left> WhatIsLeft() {
  const std::unique_ptr<rocksdb::Env> env = InMemory();
  std::vector<Left> all;
  size_t writes = 0;
  for (int opened = 0; opened < 6; ++opened) {
    auto store = OpenRocksDbIn(env.get(), kFolder);
    EPS_CHECK(store.ok());
    for (int i = 0; i < 4 + opened; ++i) {
      std::vector<KeyValueStore::Change> changes;
      for (size_t k = 0; k < 4; ++k) {
        const size_t size = writes % 5 == 3 && k == 0 ? 50000 : 40 + 37 * k;
        changes.push_back({absl::StrCat("key/", (writes * 3 + k) % 40),
                           std::string(size, static_cast<char>('a' + writes % 26))});
      }
      changes.push_back({absl::StrCat("key/", (writes + 5) % 40), std::nullopt});
      EPS_CHECK((*store)->Write(changes).ok());
      ++writes;
    }
    const Contents contents = *ContentsOf(**store);
    all.push_back({FilesIn(env.get()), contents});
    store->reset();
    all.push_back({FilesIn(env.get()), contents});
  }
  return all;
}

// Returns "table", "log" and so on.
std::string KindOf(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  if (absl::EndsWith(name, ".sst")) return "table";
  if (absl::EndsWith(name, ".log")) return "log";
  const size_t end = std::min(name.find('-'), name.find('.'));
  return name.substr(0, end);  // MANIFEST, CURRENT, OPTIONS, IDENTITY
}

Flipped Flip(const std::vector<Left>& all, Dice dice) {
  const Left& left = all[dice(all.size())];
  auto file = left.files.begin();
  std::advance(file, static_cast<ptrdiff_t>(dice(left.files.size())));
  const std::string& path = file->first;
  const uint64_t at = dice(file->second.size());
  const std::unique_ptr<rocksdb::Env> env = InMemory();
  EPS_CHECK(env->CreateDirIfMissing(kFolder).ok());
  for (const auto& [name, bytes] : left.files) {
    std::string content = bytes;
    if (name == path) content[at] = static_cast<char>(content[at] ^ 1 << dice(8));
    EPS_CHECK(rocksdb::WriteStringToFile(env.get(), content, name).ok());
  }

  Flipped flipped;
  const std::string kind = KindOf(path);
  const auto store = OpenRocksDbIn(env.get(), kFolder);
  const absl::StatusOr<Contents> found =
      store.ok() ? ContentsOf(**store) : absl::StatusOr<Contents>(store.status());
  const auto wrong = [&](const std::string& what) {
    flipped.status = absl::DataLossError(absl::StrCat(path, " at ", at, ": ", what));
  };
  if (!found.ok()) {
    flipped.outcome = kind + "_located";
    const std::string name = path.substr(path.rfind('/') + 1);
    if (!absl::IsDataLoss(found.status()) || !absl::StrContains(found.status().message(), name)) {
      wrong(absl::StrCat("not located by ", found.status().ToString()));
    }
  } else if (*found == left.contents) {
    flipped.outcome = kind + "_harmless";
  } else {
    flipped.outcome = kind + "_served";
    wrong("other contents are read");
  }
  return flipped;
}

TEST(RocksDbRot, FlippedBitsAreLocatedOrHarmless) {
  const std::vector<Left> all = WhatIsLeft();
  Flips flips = MakeFlips(500, [&all](Dice dice) { return Flip(all, dice); });
  flips.ExpectMore("table_located", flips.goal / 20);
  flips.ExpectMore("log_located", flips.goal / 50);
  flips.ExpectMore("MANIFEST_located", flips.goal / 50);
  flips.ExpectMore("CURRENT_located", flips.goal / 50);
}

}  // namespace
}  // namespace eps
