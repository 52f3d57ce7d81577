// A fuzz target for libFuzzer; base/safetensors_corpus_test.cc calls the same functions in every
// test run. base/files/testdata/README.md has the command that builds and runs the fuzzer.

#include "base/testing/safetensors_fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/files/safetensors.h"
#include "base/files/safetensors_folder.h"

namespace eps {
namespace {

constexpr size_t kMaxMessage = 2048;

// A file without a name that lives as long as this.
class MemoryFile {
 public:
  explicit MemoryFile(absl::string_view bytes) : fd_(memfd_create("untrusted", MFD_CLOEXEC)) {
    EPS_CHECK(fd_ >= 0);
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t wrote = write(fd_, bytes.data() + done, bytes.size() - done);
      EPS_CHECK(wrote > 0);
      done += static_cast<size_t>(wrote);
    }
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_); }

 private:
  const int fd_;
};

void CheckRefusal(const absl::Status& status, const std::string& path) {
  EPS_CHECK_MSG(absl::IsDataLoss(status), status.ToString());
  EPS_CHECK_MSG(absl::StartsWith(status.message(), absl::StrCat(path, ": ")), status.ToString());
  EPS_CHECK_MSG(status.message().size() < kMaxMessage, status.ToString());
}

// Every element, in pieces; what is no float is refused by its dtype.
void ReadAll(const SafetensorsReader& file, const SafetensorsEntry& entry) {
  const uint64_t elements = entry.elements();
  EPS_CHECK(elements == 0 || entry.bytes % elements == 0);
  std::vector<float> piece(std::min<uint64_t>(elements, 4096));
  uint64_t first = 0;
  do {
    const size_t count = std::min<uint64_t>(piece.size(), elements - first);
    const absl::Status status = file.Read(entry, first, count, piece.data());
    EPS_CHECK_MSG(status.ok() || absl::IsUnimplemented(status), status.ToString());
    first += count;
  } while (first < elements);
  EPS_CHECK(!file.Read(entry, elements, 1, piece.data()).ok());
}

}  // namespace

bool ReadUntrustedSafetensors(absl::string_view bytes) {
  const MemoryFile memory(bytes);
  const auto file = SafetensorsReader::Open(memory.path());
  if (!file.ok()) {
    CheckRefusal(file.status(), memory.path());
    return false;
  }
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : (*file)->entries()) {
    EPS_CHECK(entry.offset >= 8 && entry.offset + entry.bytes <= bytes.size());
    EPS_CHECK(end == 0 || entry.offset == end);
    end = entry.offset + entry.bytes;
    EPS_CHECK((*file)->Find(entry.name).ok());
    ReadAll(**file, entry);
  }
  EPS_CHECK(end == 0 || end == bytes.size());
  return true;
}

bool ReadUntrustedIndex(absl::string_view bytes) {
  const auto index = ParseSafetensorsIndex(bytes, "index");
  if (!index.ok()) {
    CheckRefusal(index.status(), "index");
    return false;
  }
  for (const auto& [tensor, file] : *index) {
    EPS_CHECK(!absl::StrContains(file, '/') && absl::EndsWith(file, ".safetensors"));
  }
  return true;
}

}  // namespace eps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  eps::ReadUntrustedSafetensors(bytes);
  eps::ReadUntrustedIndex(bytes);
  return 0;
}
