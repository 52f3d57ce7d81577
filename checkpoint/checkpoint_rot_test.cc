// One flipped bit in any file of a checkpoint: it is refused with the file's name, or nothing that
// a resume reads differs. Long modes: base/testing/flips.h.

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/testing/flips.h"
#include "base/testing/tally.h"
#include "base/testing/test_specs.h"
#include "checkpoint/checkpoint.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// All that a resume takes from the folder.
absl::StatusOr<std::string> DigestOf(const std::string& folder, const JobSpec& spec,
                                     const ChunkMap& chunks) {
  const auto reader = CheckpointReader::Open(folder);
  if (!reader.ok()) return reader.status();
  const absl::Status fits = (*reader)->CheckFits(spec);
  if (!fits.ok()) return fits;
  const Border& border = (*reader)->border();
  Sha256 sha;
  sha.Update(absl::StrCat(border.step, " ", border.version, " ", border.update, " ", border.term,
                          " ", border.lagged_norm, " ", (*reader)->spec().ToText()));
  for (const Chunk& chunk : chunks.chunks()) {
    const auto state = (*reader)->ReadChunk(spec, chunk);
    if (!state.ok()) return state.status();
    sha.Update(*state);
  }
  return ToHex(sha.Finish());
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void FlipBit(const std::string& path, uint64_t at, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 1 << bit));
  ASSERT_TRUE(file.good()) << path;
}

TEST(CheckpointRot, AFlippedBitIsLocatedOrHarmless) {
  const JobSpec spec = TinySyntheticSpec();
  const ChunkMap chunks = ChunkMap::Build(spec);
  const std::string root = absl::StrCat(testing::TempDir(), "/checkpoint-rot-", getpid());
  fs::remove_all(root);
  auto writer = CheckpointWriter::Create(root, 5, spec, chunks);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const Chunk& chunk : chunks.chunks()) {
    std::string state(StateBytes(spec, chunk), '\0');
    for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<char>(i % 4 == 3 ? 60 : i);
    const absl::Status status = (*writer)->WriteChunk(chunk.id, state);
    ASSERT_TRUE(status.ok()) << status;
  }
  const absl::Status committed = (*writer)->Commit({5, 4, 4, 2, 0.5}, FilesOfJob(spec));
  ASSERT_TRUE(committed.ok()) << committed;
  const std::string folder = root + "/checkpoint-5";
  const auto expected = DigestOf(folder, spec, chunks);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const std::vector<std::string> files = FilesIn(folder);
  Flips flips = MakeFlips(500, [&](Dice dice) {
    const std::string& path = files[dice(files.size())];
    const uint64_t at = dice(fs::file_size(path));
    const int bit = static_cast<int>(dice(8));
    FlipBit(path, at, bit);
    const auto found = DigestOf(folder, spec, chunks);
    FlipBit(path, at, bit);
    const std::string name = path.substr(folder.size() + 1);
    const std::string where = absl::StrCat(name, " at ", at, ", bit ", bit);
    if (found.ok()) {
      return Flipped{"harmless", *found == *expected ? absl::OkStatus()
                                                     : absl::DataLossError(where + ": served")};
    }
    // A damaged sum in the manifest is told as that file and the manifest differing.
    const bool is_manifest = absl::EndsWith(name, "manifest.json");
    const bool located =
        absl::StrContains(found.status().message(), is_manifest ? "manifest" : name);
    return Flipped{"noticed", located
                                  ? absl::OkStatus()
                                  : absl::DataLossError(absl::StrCat(where, ": not located by ",
                                                                     found.status().ToString()))};
  });
  flips.ExpectMore("noticed", flips.goal * 9 / 10);
  fs::remove_all(root);
}

}  // namespace
}  // namespace eps
