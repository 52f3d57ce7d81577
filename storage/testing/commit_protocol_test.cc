// Power cuts in a shard's commit protocol: two slots of data with a header each. The right protocol
// loses nothing. Each wrong protocol shows its known kind of loss, which proves that the simulated
// disk can produce it.

#include <cstdlib>
#include <cstring>
#include <random>

#include "base/check.h"
#include "base/checksum.h"
#include "gtest/gtest.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

constexpr uint64_t kData = 2 * kDiskBlock;
constexpr uint64_t kPiece = kDiskBlock;
constexpr uint64_t kHeaders = 2 * kData;
constexpr uint64_t kFile = kHeaders + 2 * kDiskBlock;
constexpr uint64_t kMagic = 0x6570732d63757400;

struct Variant {
  bool sync_data_first = true;
  bool data_crc = true;
  bool two_headers = true;
  bool acknowledge_early = false;
};

struct Tally {
  int job_lost = 0;
  int corrupt = 0;
  int acknowledged_lost = 0;
};

struct Header {
  uint64_t magic = 0;
  uint64_t version = 0;
  uint32_t data_crc = 0;
  uint32_t header_crc = 0;
  uint32_t Crc() const {
    return Crc32c({reinterpret_cast<const char*>(this), offsetof(Header, header_crc)});
  }
};

struct alignas(kDiskBlock) Page {
  uint8_t bytes[kFile] = {};
};

// One shard and its disk; every method is one of the protocol's steps.
class Shard {
 public:
  Shard(const Variant& variant, uint64_t seed) : variant_(variant), random_(seed) { Reset(); }

  // Commits versions until the disk has done `operations` operations, then cuts the power and
  // checks which version the file holds.
  void Round(Tally* tally) {
    disk_->CutPowerAtCall(1 + random_() % 20, random_());
    while (Commit(version_ + 1)) {
    }
    disk_->PowerOn();
    file_ = *disk_->Open("f");
    Recover(tally);
  }

 private:
  void Reset() {
    disk_ = std::make_unique<SimulatedDisk>(SimulatedDisk::Options());
    EPS_CHECK(disk_->CreateFile("f", kFile).ok());
    file_ = *disk_->Open("f");
    version_ = acknowledged_ = 0;
    EPS_CHECK(Commit(0));
  }

  static void Fill(uint64_t version, uint8_t* data) {
    for (uint64_t at = 0; at < kData; at += 8) {
      const uint64_t word = (version * kData + at + 1) * 0x9e3779b97f4a7c15;
      std::memcpy(data + at, &word, 8);
    }
  }

  bool Write(uint64_t offset, const uint8_t* from, uint64_t bytes) {
    bool ok = false;
    file_->Write(offset, {from, bytes}, [&ok](const absl::Status& status) { ok = status.ok(); });
    return ok;
  }
  bool Sync() {
    bool ok = false;
    file_->Sync([&ok](const absl::Status& status) { ok = status.ok(); });
    return ok;
  }
  uint64_t HeaderAt(uint64_t slot) const {
    return kHeaders + (variant_.two_headers ? slot * kDiskBlock : 0);
  }

  // Returns false if the power failed.
  bool Commit(uint64_t version) {
    const uint64_t slot = version % 2;
    Fill(version, page_.bytes);
    const uint32_t data_crc =
        Crc32c({reinterpret_cast<const char*>(page_.bytes), static_cast<size_t>(kData)});
    for (uint64_t at = 0; at < kData; at += kPiece) {
      if (!Write(slot * kData + at, page_.bytes + at, kPiece)) return false;
    }
    if (variant_.sync_data_first && !Sync()) return false;
    Header header = {kMagic, version, data_crc, 0};
    header.header_crc = header.Crc();
    std::memset(page_.bytes, 0, kDiskBlock);
    std::memcpy(page_.bytes, &header, sizeof(header));
    // Repeated at the end of the block, so that a torn header is told from a whole one.
    std::memcpy(page_.bytes + kDiskBlock - 8, &version, 8);
    if (variant_.acknowledge_early) acknowledged_ = version;
    if (!Write(HeaderAt(slot), page_.bytes, kDiskBlock)) return false;
    if (!Sync()) return false;
    version_ = acknowledged_ = version;
    return true;
  }

  bool ReadHeader(uint64_t slot, Header* header) const {
    const uint8_t* const block = page_.bytes + HeaderAt(slot);
    uint64_t repeated = 0;
    std::memcpy(header, block, sizeof(*header));
    std::memcpy(&repeated, block + kDiskBlock - 8, 8);
    if (header->magic != kMagic || header->Crc() != header->header_crc) return false;
    if (repeated != header->version) return false;
    return !variant_.data_crc ||
           header->data_crc ==
               Crc32c({reinterpret_cast<const char*>(page_.bytes) + header->version % 2 * kData,
                       static_cast<size_t>(kData)});
  }

  void Recover(Tally* tally) {
    file_->Read(0, {page_.bytes, kFile},
                [](const absl::Status& status) { EPS_CHECK_MSG(status.ok(), status.ToString()); });
    Header newest;
    bool any = false;
    for (uint64_t slot = 0; slot < (variant_.two_headers ? 2 : 1); ++slot) {
      Header header;
      if (!ReadHeader(slot, &header)) continue;
      if (!any || header.version > newest.version) newest = header;
      any = true;
    }
    if (!any) {
      ++tally->job_lost;
      Reset();
      return;
    }
    std::vector<uint8_t> expected(kData);
    Fill(newest.version, expected.data());
    const uint8_t* const found = page_.bytes + newest.version % 2 * kData;
    if (std::memcmp(expected.data(), found, kData) != 0) ++tally->corrupt;
    if (newest.version < acknowledged_) ++tally->acknowledged_lost;
    version_ = acknowledged_ = newest.version;
  }

  const Variant variant_;
  std::mt19937_64 random_;
  std::unique_ptr<SimulatedDisk> disk_;
  std::unique_ptr<AsyncFile> file_;
  uint64_t version_ = 0;
  uint64_t acknowledged_ = 0;
  Page page_;
};

Tally CutMany(const Variant& variant) {
  const int cuts = std::getenv("EPS_LONG") != nullptr ? 2000000 : 20000;
  const auto shard = std::make_unique<Shard>(variant, 42);
  Tally tally;
  for (int i = 0; i < cuts; ++i) shard->Round(&tally);
  std::printf("%d cuts: job lost %d, corrupt %d, acknowledged version lost %d\n", cuts,
              tally.job_lost, tally.corrupt, tally.acknowledged_lost);
  return tally;
}

TEST(CommitProtocol, DataSyncHeaderSyncAcknowledge) {
  const Tally tally = CutMany({});
  EXPECT_EQ(tally.job_lost, 0);
  EXPECT_EQ(tally.corrupt, 0);
  EXPECT_EQ(tally.acknowledged_lost, 0);
}

// Works because the checksum rejects torn data and the other slot remains.
TEST(CommitProtocol, WithoutFirstSyncOnlyTheChecksumProtects) {
  Variant variant;
  variant.sync_data_first = false;
  const Tally tally = CutMany(variant);
  EXPECT_EQ(tally.job_lost, 0);
  EXPECT_EQ(tally.corrupt, 0);
  EXPECT_EQ(tally.acknowledged_lost, 0);
}

TEST(CommitProtocol, WithoutSyncAndChecksumDataIsCorrupt) {
  Variant variant;
  variant.sync_data_first = false;
  variant.data_crc = false;
  const Tally tally = CutMany(variant);
  EXPECT_EQ(tally.job_lost, 0);
  EXPECT_GT(tally.corrupt, 200);
  EXPECT_EQ(tally.acknowledged_lost, 0);
}

TEST(CommitProtocol, OneOverwrittenHeaderLosesTheJob) {
  Variant variant;
  variant.two_headers = false;
  const Tally tally = CutMany(variant);
  EXPECT_GT(tally.job_lost, 200);
  EXPECT_EQ(tally.corrupt, 0);
}

TEST(CommitProtocol, AcknowledgementBeforeTheLastSyncBreaks) {
  Variant variant;
  variant.acknowledge_early = true;
  const Tally tally = CutMany(variant);
  EXPECT_EQ(tally.job_lost, 0);
  EXPECT_EQ(tally.corrupt, 0);
  EXPECT_GT(tally.acknowledged_lost, 500);
}

}  // namespace
}  // namespace eps
